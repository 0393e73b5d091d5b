"""Cleaning compacted topics in a whole Log: what is due, and what readers see.

Covers: kafkawire.log.segments.compact.cleaner, kafkawire.log.segments.compact.job.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.records import Offset, OffsetRecord, encode_record
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.io.worker_jobs import ScrubArguments
from kafkawire.log.partition.partition import Partition
from kafkawire.offsets.catalog.port import LIVE, STARTED
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.groups.script import GroupSettings
from tests.kit.log.compacted import clean, cut, cut_all, files, fill, latest, read, started, update
from tests.kit.log.logs import World


async def test_only_cut_part_is_cleaned() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 40)
    before = await read(partition)
    assert len(before) == 80
    await cut(world)
    end, size = partition.cut_offset, partition.size_bytes
    assert 40 < end < 80
    await clean(world)
    assert partition.size_bytes < size // 2
    assert (partition.cut_offset, partition.next_offset) == (end, 80)
    got = await read(partition)
    assert latest(got) == latest(before)
    assert [r for r in got if r.offset >= end] == before[end:], "never the part not yet cut"
    cleaned = [r for r in got if r.offset < end]
    assert [r.offset for r in cleaned] == list(range(end - 5, end)), "one record a key"
    assert cleaned == before[end - 5 : end]
    for again in (world.restart, world.crash):
        await again()
        partition = world.find("t")
        assert await read(partition) == got
    assert await read(partition, 1, room=1) == got, "an offset in a gap leads on to the next"
    assert await partition.offset_for_time(EPOCH_MS) == (end - 5, cleaned[0].timestamp)
    await fill(partition, 1)
    assert partition.next_offset == 82
    for key, (offset, value) in latest(await read(partition)).items():
        assert value is not None
        assert value.startswith(b"%d:" % offset), key


async def test_replaced_files_are_deleted_after_delay() -> None:
    world = await started(file_delete_delay_ms=60_000)
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 40)
    await cut(world)
    (old,) = files(world)
    await clean(world)
    assert len(files(world)) == 2
    assert isinstance(world.env.clock, SettableClock)
    world.env.clock.ms += 60_001
    await world.log.segments.tend()
    assert old not in files(world)
    (row,) = await world.storage.segments(1, (LIVE,), 10)
    assert row.retention_class == "cleaned/local/ever"
    assert row.generation == 1
    assert not await world.storage.segments(1, (STARTED,), 10)


async def test_a_second_cleaning_waits_until_enough_is_dirty() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.8")
    await fill(partition, 60, keys=40)
    await cut(world)
    await clean(world)
    assert len(partition.segments) == 1
    await fill(partition, 20, keys=40)
    await cut(world)
    segments = list(partition.segments.segment)
    assert len(segments) == 2
    await clean(world)
    assert list(partition.segments.segment) == segments, "half is dirty, not four fifths"
    partition.config.min_cleanable_dirty_ratio = 0.3
    world.log.segments.settings_changed([partition.number])
    await clean(world)
    assert len(partition.segments) == 1
    await clean(world)
    assert len(await read(partition)) == 40 + partition.next_offset - partition.cut_offset


async def test_min_and_max_compaction_lag() -> None:
    world = await started()
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    (young,) = await world.topic("young", cleanup_policy="compact", min_compaction_lag_ms="60000")
    (old,) = await world.topic(
        "old",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="1",
        max_compaction_lag_ms="90000",
    )
    for partition in (young, old):
        await fill(partition, 40)
    await cut_all(world)
    await clean(world)
    assert len(await read(young)) == len(await read(old)) == 80
    clock.ms += 60_077
    await clean(world)
    assert len(await read(young)) == 80, "its newest record is not old enough"
    clock.ms += 1
    await clean(world)
    assert (len(await read(young)), len(await read(old))) == (5, 80)
    clock.ms = EPOCH_MS + 90_000
    await clean(world)
    assert len(await read(old)) == 5


async def test_changed_cleanup_policy_takes_effect_at_once() -> None:
    world = await started()
    (partition,) = await world.topic("t")
    await fill(partition, 40)
    await update(partition, (None, b"without a key"))
    await cut_all(world)
    await clean(world)
    assert len(await read(partition)) == 81
    partition.config.cleanup_compact = True
    world.log.segments.settings_changed(None)
    await clean(world)
    assert len(await read(partition)) == 5, "records without key cannot be kept"
    with pytest.raises(KafkaError, match="without a key"):
        await update(partition, (None, b"x"))
    with pytest.raises(KafkaError) as refused:
        await update(partition, *[(b"k", b"v")] * 60, (None, b"x"), codec=4)
    assert refused.value.code == ErrorCode.INVALID_RECORD


async def test_small_partitions_are_cleaned_together() -> None:
    world = await started()
    parts = await world.topic("t", 6, cleanup_policy="compact")
    for partition in parts:
        await fill(partition, 10)
    await cut_all(world)
    await clean(world)
    assert len({partition.segments.segment[0] for partition in parts}) == 1
    for partition in parts:
        assert [r.offset for r in await read(partition)] == list(range(15, 20))
    await clean(world)


async def test_large_partition_is_split_over_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.log.segments.compact.plan.LARGE_BYTES", 1)
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    partition.config.segment_bytes = 3000
    await fill(partition, 60, keys=50)
    before = await read(partition)
    await cut_all(world)
    assert len(partition.segments) > 5
    await clean(world)
    lengths = list(partition.segments.length)
    assert len(lengths) > 3
    assert max(lengths) < 6000, "a piece that was read is not divided"
    got = await read(partition)
    assert got == before[-50:]
    for offset in range(120):
        expected = [r for r in got if r.offset >= offset]
        assert await read(partition, offset, room=1000) == expected
    assert not await world.storage.segments(1, (STARTED,), 10)


async def test_more_keys_than_map_holds_are_cleaned_in_several_rounds() -> None:
    world = await started(log_cleaner_dedupe_buffer_size=16 << 10)  # 921 keys
    (partition,) = await world.topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for start in range(0, 3000, 100):
        await update(
            partition, *[(b"%d" % (n % 1500), b"%d" % n) for n in range(start, start + 100)]
        )
    before = latest(await read(partition))
    await cut_all(world)
    await clean(world)
    got = await read(partition)
    assert latest(got) == before
    assert len(got) == 1500
    rows = await world.storage.segments(1, (LIVE,), 10)
    assert {row.retention_class for row in rows} == {"cleaned/local/ever"}
    await world.crash()
    assert await read(world.find("t")) == got


async def test_tombstones_are_removed_after_delete_retention() -> None:
    world = await started()
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    (partition,) = await world.topic("t", cleanup_policy="compact", delete_retention_ms="1000")
    await update(partition, (b"a", b"1"), (b"b", b"1"))
    await update(partition, (b"a", None))
    await cut_all(world)
    await clean(world)
    assert [(r.key, r.value) for r in await read(partition)] == [(b"b", b"1"), (b"a", None)]
    clock.ms += 1000
    for n in range(3):
        await update(partition, (b"c", b"%d" % n), ms=1000)
    await cut_all(world)
    await clean(world)
    assert [(r.key, r.value) for r in await read(partition)] == [(b"b", b"1"), (b"c", b"2")]
    assert (await read(partition))[0].timestamp == EPOCH_MS


async def test_compact_and_delete_removes_old_records() -> None:
    world = await started()
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    (partition,) = await world.topic("t", cleanup_policy="compact,delete", retention_ms="60000")
    await fill(partition, 40)
    await cut_all(world)
    await clean(world)
    assert len(await read(partition)) == 5
    clock.ms += 61_000
    await update(partition, (b"k", b"v"), (b"l", b"v"), ms=61_000)
    await cut_all(world)
    await world.log.segments.deletion.expire()
    assert partition.log_start == 80
    assert len(await read(partition)) == 2


async def test_producer_continues_after_cleaning() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    mine = {"producer_id": 9, "producer_epoch": 0}
    for n in range(3):
        assert await update(partition, (b"a", b"%d" % n), base_sequence=n, **mine) == n
    await fill(partition, 30)
    await update(partition, (b"a", b"last"))
    await cut_all(world)
    await clean(world)
    heads = []
    plan = partition.plan(0, 1 << 20, partition.high_watermark, True)
    for buffer in await partition.log.read(plan):
        heads += [head for _, head in iter_batches(bytes(buffer))]
    assert [(h.base_offset, h.count, h.base_sequence) for h in heads if h.producer_id == 9] == [
        (2, 0, 2)
    ]
    for again in (world.restart, world.crash):
        await again()
        partition = world.find("t")
        assert await update(partition, (b"a", b"2"), base_sequence=2, **mine) == 2, "a retry"
        with pytest.raises(KafkaError) as refused:
            await update(partition, (b"a", b"9"), base_sequence=9, **mine)
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_timestamps_of_emptied_batches_are_ignored() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await update(partition, (b"a", b"1"), ms=500, producer_id=9, producer_epoch=0, base_sequence=0)
    await update(partition, (b"b", b"1"), ms=20)
    await update(partition, (b"a", b"2"), ms=10)
    await cut_all(world)
    assert await partition.max_timestamp() == (0, EPOCH_MS + 500)
    await clean(world)
    assert [r.offset for r in await read(partition)] == [1, 2]
    assert partition.segments.mapping(partition.number, 0).batches == 3
    assert await partition.max_timestamp() == (1, EPOCH_MS + 20)
    assert await partition.offset_for_time(EPOCH_MS + 21) is None
    problems = await world.env.worker.run("scrub", ScrubArguments(_path(world, partition)))
    assert not problems.problems


def _path(world: World, partition: Partition) -> str:
    return world.log.segments.store.by_id[partition.segments.segment[0]].path


async def test_offsets_topic_is_cleaned_and_loads_over_gaps() -> None:
    world = await started()
    (partition,) = await world.topic("__consumer_offsets", cleanup_policy="compact")
    for n in range(60):
        pairs = []
        for group in ("g", "h"):
            value = Offset(n, -1, "m" * 50, EPOCH_MS, -1)
            pairs.append(encode_record(OffsetRecord(group, "t", n % 3, value)))
        await update(partition, *pairs)
    await update(partition, encode_record(OffsetRecord("h", "t", 0, None)))
    size, journals = partition.size_bytes, len(list(world.log.journals))
    await cut_all(world)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert len(list(world.log.journals)) < journals, "journals that held it are free"
    await clean(world)
    assert partition.size_bytes < size // 10
    for again in (None, world.crash):
        if again is not None:
            await again()
        partition = world.find("__consumer_offsets")
        place = group_snapshot("/groups", partition.topic_id, 0)
        loaded = GroupLoader(
            world.env, GroupSettings(), partition, world.log.commit_log, place
        )  # fmt: skip
        await loaded.load()
        assert loaded.next_offset == 121
        offsets = loaded.shard.offsets.by_group
        assert {p: o.offset for p, o in offsets["g"]["t"].items()} == {0: 57, 1: 58, 2: 59}
        assert {p: o.offset for p, o in offsets["h"]["t"].items()} == {1: 58, 2: 59}
