"""Newest timestamps that a producer computed wrongly: no lookup and no deletion rests on them.

Covers: kafkawire.log.partition.time_lookup, kafkawire.log.segments.cut.job.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import Record, iter_batches, pack, read_head
from kafkawire.codec.compression import LZ4, ZSTD
from kafkawire.log.io.ports import Buffer
from kafkawire.log.partition.index_eviction import evict
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.cut.job import correct_heads
from tests.kit.codec.odd_batches import unreadable, with_newest
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.cutting import JOURNAL, cut
from tests.kit.log.logs import World, read_all
from tests.kit.waiting import settle

COUNT = 12
HOUR_MS = 3_600_000
MIDDLE = 5
"""The record that is newer than the first and the last one."""


def items(newest: int, size: int = 20) -> list[Record]:
    """Records of two hours ago, one of which is newer."""
    found = [Record(n, EPOCH_MS - 2 * HOUR_MS + n, b"k", b"v" * size) for n in range(COUNT)]
    found[MIDDLE].timestamp = newest
    return found


def too_old(newest: int = EPOCH_MS, codec: int = 0, size: int = 20) -> memoryview:
    """A batch whose head has the time of its last record, as a client says that takes records to be
    in order."""
    batch = pack(items(newest, size), codec=codec)
    return memoryview(bytearray(with_newest(batch, EPOCH_MS - 2 * HOUR_MS + COUNT - 1)))


def too_new(claimed: int, codec: int = 0) -> memoryview:
    batch = pack(items(EPOCH_MS - HOUR_MS, 20), codec=codec)
    return memoryview(bytearray(with_newest(batch, claimed)))


async def started(**values: Any) -> tuple[World, Partition]:
    world = World(journal_bytes=JOURNAL, hot_bytes=0, **values)
    await world.start()
    (partition,) = await world.topic("t", retention_ms=str(HOUR_MS), max_message_bytes="1000000")
    return world, partition


async def append(world: World, partition: Partition, *batches: memoryview) -> None:
    for batch in batches:
        partition.append(batch, EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    await settle()


def filler(count: int) -> list[memoryview]:
    """Batches that fill several journals, older than all others."""
    old = [Record(n, EPOCH_MS - 3 * HOUR_MS, b"k", bytes(200)) for n in range(COUNT)]
    return [memoryview(pack(old)) for _ in range(count)]


async def newest_heads(partition: Partition) -> list[int]:
    plan = partition.plan(partition.log_start, 1 << 20, partition.high_watermark, True)
    buffers: list[Buffer] = await partition.log.read(plan)
    return [head.max_timestamp for each in buffers for _, head in iter_batches(each)]


@pytest.mark.parametrize("codec", [0, LZ4, ZSTD])
@pytest.mark.parametrize("where", ["hot", "restarted", "rolled", "evicted", "evicted later", "cut"])
async def test_lookups_by_time_find_the_record(codec: int, where: str) -> None:
    world, partition = await started()
    await append(world, partition, *filler(1), too_old(codec=codec))
    if where == "evicted later":  # corrected while its rows are in memory
        assert await partition.max_timestamp() == (COUNT + MIDDLE, EPOCH_MS)
    if where in ("rolled", "evicted", "evicted later", "cut"):
        await append(world, partition, *filler(6))
    if where.startswith("evicted"):
        await world.log.indexer.run()
        assert evict(world.log.journals, world.log.partitions, 0)
        assert partition.evicted
    if where == "restarted":
        await world.restart()
        partition = world.find("t")
    if where == "cut":
        await cut(world)
        assert partition.cut_offset > COUNT
    found = (COUNT + MIDDLE, EPOCH_MS)
    for _ in range(2):
        assert await partition.offset_for_time(EPOCH_MS) == found
        assert await partition.offset_for_time(EPOCH_MS - HOUR_MS) == found
        assert await partition.max_timestamp() == found
        assert await partition.offset_for_time(EPOCH_MS + 1) is None
    await append(world, partition, too_old(EPOCH_MS + 7, codec))
    assert (await partition.max_timestamp())[1] == EPOCH_MS + 7, "what came later, too"


@pytest.mark.parametrize("after_cut", [False, True])
async def test_a_time_that_no_record_has_is_not_found(after_cut: bool) -> None:
    world, partition = await started()
    claims = [too_new(EPOCH_MS + n) for n in range(5)]
    await append(world, partition, *claims, *filler(6))
    if after_cut:
        await cut(world)
    assert await partition.max_timestamp() == (MIDDLE, EPOCH_MS - HOUR_MS)
    assert await partition.offset_for_time(EPOCH_MS - HOUR_MS + 1) is None
    assert await partition.offset_for_time(EPOCH_MS - HOUR_MS) == (MIDDLE, EPOCH_MS - HOUR_MS)


@pytest.mark.parametrize("codec", [0, ZSTD])
@pytest.mark.parametrize("rolled", [False, True])
async def test_retention_keeps_records_that_are_not_old(codec: int, rolled: bool) -> None:
    world, partition = await started()
    await append(world, partition, too_old(codec=codec))
    if rolled:
        await append(world, partition, *filler(6))
    await world.log.retention.run()
    assert partition.log_start == 0
    world.env.clock.ms = EPOCH_MS + HOUR_MS + 1  # type: ignore[attr-defined]
    assert isinstance(world.env.clock, SettableClock)
    await world.log.retention.run()
    assert partition.log_start == partition.next_offset


async def test_retention_believes_heads_where_they_are_trusted() -> None:
    world, partition = await started(record_validation="head")
    await append(world, partition, too_old())
    assert await partition.offset_for_time(EPOCH_MS) is None
    await world.log.retention.run()
    assert partition.log_start == COUNT


async def test_segments_have_the_newest_times_of_their_records() -> None:
    world, partition = await started()
    small = too_old(codec=ZSTD)
    await append(world, partition, small, too_old(size=600), *filler(3), too_new(EPOCH_MS + 9))
    await append(world, partition, *filler(6))
    everything = await read_all(partition)
    await cut(world)
    assert partition.cut_offset >= 6 * COUNT
    assert partition.segments.newest[0] == EPOCH_MS
    heads = await newest_heads(partition)
    assert heads[:2] == [EPOCH_MS, EPOCH_MS]
    assert heads[5] == EPOCH_MS - HOUR_MS
    assert await read_all(partition) == everything
    await world.log.retention.run()
    assert partition.log_start == 0
    world.env.clock.ms = EPOCH_MS + HOUR_MS + 1  # type: ignore[attr-defined]
    await world.log.retention.run()
    assert partition.log_start == partition.next_offset


async def test_cut_believes_heads_where_they_are_trusted() -> None:
    world, partition = await started(record_validation="head")
    await append(world, partition, too_old(), *filler(6))
    await cut(world)
    assert partition.segments.newest[0] == EPOCH_MS - 2 * HOUR_MS + COUNT - 1


def test_only_wrong_heads_are_rewritten() -> None:
    wrong, right = too_old(), memoryview(pack(items(EPOCH_MS)))
    assert correct_heads([right, right], [COUNT, COUNT]) is None
    assert correct_heads([wrong], [8]) is None, "walked when it was appended"
    both = memoryview(bytes(right) + bytes(wrong))
    made = correct_heads([right, wrong, both], [COUNT, COUNT, 2 * COUNT])
    assert made is not None
    assert made[0] is right
    assert made[1] == right
    assert made[2] == bytes(right) * 2


def test_what_cannot_be_read_keeps_its_head() -> None:
    for name, raw in unreadable(items(EPOCH_MS)).items():
        old = with_newest(raw, 7)
        assert correct_heads([memoryview(old)], [COUNT]) is None, name
    damaged = bytearray(too_old())
    damaged[-5] ^= 1
    assert correct_heads([memoryview(damaged)], [COUNT]) is None, "its checksum must stay wrong"
    assert read_head(damaged).max_timestamp < EPOCH_MS
