"""A schema registry for tests of values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkawire_spark.pipeline.values import registry as client
from tests.kit.spark.registry import FakeRegistry, running


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.0)
    monkeypatch.delenv(client.USER_INFO, raising=False)
    with running() as registry:
        yield registry
