"""Readers of committed records in the remote tier: aborted transactions come from the object's
state, once for all readers, and a damaged state hides nothing but transactions.

Covers: kafkawire.tiering.read.aborted, kafkawire.log.segments.store.index_cache.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.segment.format import STATE
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.log.segments.store.index_cache import (
    MAX_ABORTED_BYTES,
    SEGMENT_BYTES,
    AbortedCache,
    SegmentAborted,
)
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.tier.cold import ColdWorld, gets


async def world_with(*topics: str) -> ColdWorld:
    """Each topic has an aborted transaction around its other records, in one segment."""
    world = ColdWorld()
    await world.start()
    for name in topics:
        (partition,) = await world.topic(name)
        producer = Producer(1)
        if name != "plain":
            producer.send(partition, b"aborted")
        await partition.log.wait_until_committed()
        await world.fill(name, 5, 20)
        if name != "plain":
            producer.end(partition, commit=False)
    await world.log.commit_log.wait_until_committed()
    await world.cut()
    return world


async def read(partition: Partition) -> list[Aborted]:
    """The aborted transactions that one read of the whole partition names."""
    found: list[Aborted] = []
    plan = partition.plan(0, 1 << 20, partition.last_stable_offset, True)
    await partition.log.read(plan, None, found)
    return found


def damaged_object(world: ColdWorld, segment: Segment) -> bytes:
    """The bytes of a segment with one wrong byte in its state."""
    file = SegmentFile(world.fs, segment.path)
    at = file.trailer.section(STATE).body_start
    data = bytearray(file.view)
    file.close()
    data[at] ^= 1
    return bytes(data)


async def test_the_state_of_an_object_is_read_once() -> None:
    world = await world_with("t", "u")
    (segment,) = world.segments()
    await world.remote([segment])
    world.open_tier()
    found = await asyncio.gather(*[read(world.find(name)) for name in ("t", "u", "t")])
    assert found == [[(1, 0, 6)]] * 3
    asked = gets(world)
    for name in ("t", "u"):
        assert len(await committed_records(world.find(name))) == 5
    assert gets(world) == asked, "all of it is in memory"


async def test_a_damaged_state_of_an_object() -> None:
    world = await world_with("t", "plain")
    (segment,) = world.segments()
    data = damaged_object(world, segment)
    await world.remote([segment])
    world.bucket.store(segment_key(segment.row.object), data)
    world.open_tier()
    assert await read(world.find("plain")) == []
    with pytest.raises(KafkaError) as caught:
        await read(world.find("t"))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    plan = world.find("t").plan(0, 1 << 20, 7, True)
    assert await world.log.commit_log.read(plan), "readers of all records get them"


async def test_a_damaged_state_of_a_file_is_read_from_the_object() -> None:
    world = await world_with("t", "plain")
    (segment,) = world.segments()
    data = damaged_object(world, segment)
    await world.remote([segment], local=True)
    world.log.segments.store._close(segment.row.id)
    file = world.fs.open(segment.path)
    file.pwritev([data], 0)
    file.close()
    with pytest.raises(KafkaError) as caught:
        await read(world.find("t"))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert await read(world.find("plain")) == []
    world.open_tier()
    assert await read(world.find("t")) == [(1, 0, 6)]


def test_the_cache_is_bounded() -> None:
    cache = AbortedCache()
    count = MAX_ABORTED_BYTES // SEGMENT_BYTES + 10
    for segment_id in range(count):
        cache.keep(segment_id, SegmentAborted({}))
    assert cache.size_bytes <= MAX_ABORTED_BYTES
    assert cache.find(0) is None
    assert cache.find(count - 1) is not None
    first = SegmentAborted({1: [Aborted(5, 0, 3)]})
    assert cache.keep(0, first) is first
    assert cache.keep(0, SegmentAborted({})) is first
