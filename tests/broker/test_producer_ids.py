"""Producer ids: unique, and taken from blocks that are durable."""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.broker.producer_ids import BLOCK, ProducerIds
from tests.kit.admin import FakeMetadata


async def test_producer_ids_are_unique() -> None:
    metadata = FakeMetadata([])
    first, second = ProducerIds(metadata), ProducerIds(metadata)  # type: ignore[arg-type]
    taken = await asyncio.gather(
        *(source.next_id() for _ in range(BLOCK + 1) for source in (first, second))
    )
    assert len(set(taken)) == 2 * (BLOCK + 1)
    assert metadata.steps == ["sql lease"] * 4


async def test_producer_id_is_returned_only_after_its_block_is_durable() -> None:
    metadata = FakeMetadata([])
    ids = ProducerIds(metadata)  # type: ignore[arg-type]
    metadata.fails = OSError("full")
    with pytest.raises(OSError, match="full"):
        await ids.next_id()
    metadata.fails = None
    assert await ids.next_id() == 0
