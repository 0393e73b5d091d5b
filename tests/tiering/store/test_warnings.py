"""Warnings of the remote tier: which failures are expected, and which are logged as defects."""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import WorkerError
from kafkawire.metadata.store import MetadataError
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.store.warnings import Warnings
from tests.kit.log.logs import World

EXPECTED = [
    StoreError("SlowDown", "slow down"),
    OSError("the disk failed"),
    MetadataError("the database is locked"),
    WorkerError("the worker process ended with SIGKILL"),
    KafkaError(ErrorCode.KAFKA_STORAGE_ERROR),
]


@pytest.mark.parametrize(
    "failure", [*EXPECTED, TypeError("a defect")], ids=lambda f: type(f).__name__
)
def test_only_unexpected_exception_is_logged_with_traceback(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    Warnings(World().env, logging.getLogger("tier")).warn("an upload", failure)
    (record,) = caplog.records
    assert f"an upload failed and will be retried: {failure}" in record.getMessage()
    assert bool(record.exc_info) == (failure not in EXPECTED)
