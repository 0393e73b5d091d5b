"""InitProducerId: ids of idempotent producers, and the refusal of transactions.

Covers: kafkawire.handlers.init_producer_id.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.broker.producer_ids import BLOCK, ProducerIds
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from tests.kit.admin import FakeBroker, FakeMetadata, call


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id_returns_new_ids(version: int) -> None:
    broker = FakeBroker()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    first = await call(broker, request, version)
    second = await call(broker, request, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert second.producer_id == first.producer_id + 1


@pytest.mark.parametrize(
    ("transactional_id", "producer_id", "epoch", "code"),
    [
        ("tx", -1, -1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("", -1, -1, ErrorCode.INVALID_REQUEST),
        (None, 7, -1, ErrorCode.INVALID_REQUEST),
        (None, -1, 7, ErrorCode.INVALID_REQUEST),
        (None, 7, 7, ErrorCode.NONE),
    ],
)
async def test_init_producer_id_errors(
    transactional_id: str | None, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id, 1000, producer_id, epoch)
    answer = await call(FakeBroker(), request, 4)
    assert answer.error_code == code
    assert (answer.producer_id == -1) == bool(code)
    assert answer.producer_epoch == (-1 if code else 0)  # a new id, whatever the request named


async def test_producer_ids_are_unique() -> None:
    metadata = FakeMetadata([])
    first, second = ProducerIds(metadata), ProducerIds(metadata)  # type: ignore[arg-type]
    taken = await asyncio.gather(
        *(source.take() for _ in range(BLOCK + 1) for source in (first, second))
    )
    assert len(set(taken)) == 2 * (BLOCK + 1)
    assert metadata.steps == ["sql lease"] * 4


async def test_producer_id_is_returned_only_after_its_block_is_durable() -> None:
    metadata = FakeMetadata([])
    ids = ProducerIds(metadata)  # type: ignore[arg-type]
    metadata.fails = OSError("full")
    with pytest.raises(OSError, match="full"):
        await ids.take()
    metadata.fails = None
    assert await ids.take() == 0
