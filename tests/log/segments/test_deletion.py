"""Segments after the cut: retention, deletion, rewriting; which bytes must be deleted, and when.

Covers: kafkawire.log.segments.deletion, kafkawire.log.segments.store.delete_delay,
kafkawire.log.segments.store.swap.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.merge.plan import plan_rewrite
from kafkawire.offsets.catalog.port import (
    DELETING,
    LIVE,
    NEVER,
    SegmentRange,
    SegmentRow,
    StaleSwap,
)
from tests.kit.env import EPOCH_MS, InlineOffload, SettableClock
from tests.kit.log.cutting import cut, expected, fill, segments, started
from tests.kit.log.logs import FOLDER, World, read_all
from tests.kit.waiting import settle

HOUR_MS = 3_600_000


def later(world: World, ms: int) -> None:
    assert isinstance(world.env.clock, SettableClock)
    world.env.clock.ms += ms


async def rows(world: World, *states: int) -> list[SegmentRow]:
    return await world.storage.segments(1, states or (LIVE,), 1000)


async def two_cuts(world: World, name: str = "t0") -> Partition:
    for _ in range(2):
        await fill(world.find(name), 40)
        await cut(world)
    return world.find(name)


async def delete_topic(world: World, name: str) -> None:
    info = world.catalog.by_name[name]
    await world.metadata.delete_topics([info.id])
    world.catalog.remove_topic(info.id)
    world.log.remove_topic(info)
    await world.log.commit_log.wait_until_committed()


async def test_segments_older_than_retention_ms_are_deleted_after_delay() -> None:
    world = await started()
    partition = await two_cuts(world)
    partition.config.retention_ms = HOUR_MS
    world.log.segments.deletion.settings_changed([partition.number])
    border = partition.segments.end[0]
    later(world, HOUR_MS + border)  # the newest record of the first segment is border - 1
    size = partition.size_bytes
    await world.log.segments.tend()
    assert partition.log_start == border
    assert len(partition.segments) == 1
    assert partition.size_bytes < size
    assert [row.state for row in await rows(world, LIVE, DELETING)] == [DELETING, LIVE]
    assert len(segments(world)) == 2, "a reader may be reading it"
    later(world, world.config.file_delete_delay_ms + 1000)
    await world.log.segments.tend()
    assert len(segments(world)) == 1
    assert len(await rows(world, LIVE, DELETING)) == 1
    assert await read_all(partition) == expected(border, 80)
    await world.crash()
    assert await read_all(world.find("t0")) == expected(border, 80)


async def test_retention_finds_due_segments_in_sql() -> None:
    world = await started()
    partition = await two_cuts(world)
    assert partition.config.retention_ms == 7 * 24 * HOUR_MS
    await world.log.segments.deletion.expire()
    assert partition.log_start == 0
    later(world, 7 * 24 * HOUR_MS + 1000)
    border = partition.segments.end[1]
    await world.log.segments.deletion.expire()
    assert partition.log_start >= border
    assert not await world.storage.expiring(NEVER, 10)


async def test_increased_retention_is_noticed_when_old_one_is_due() -> None:
    world = await started()
    partition = await two_cuts(world)
    partition.config.retention_ms *= 2
    later(world, 7 * 24 * HOUR_MS + 1000)
    await world.log.segments.deletion.expire()
    assert partition.log_start == 0
    (soonest, *_) = await world.storage.expiring(NEVER, 1)
    assert abs(soonest.due_ms - (EPOCH_MS + 14 * 24 * HOUR_MS)) < 2 * 60_000


async def test_retention_bytes_counts_segments() -> None:
    world = await started()
    partition = await two_cuts(world)
    partition.config.retention_bytes = partition.size_bytes - partition.segments.length[0]
    world.log.retention.touched.add(partition.number)
    border = partition.segments.end[0]
    await world.log.retention.run()
    assert partition.log_start == border
    assert partition.size_bytes == partition.config.retention_bytes


async def test_pinned_segment_is_kept_after_delay() -> None:
    world = await started()
    partition = await two_cuts(world)
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("warm")
    reading = asyncio.ensure_future(
        partition.log.read(partition.plan(0, 600, partition.high_watermark, True))
    )
    await settle()
    await partition.delete_records(80)
    await world.log.segments.tend()
    later(world, 10 * HOUR_MS)
    await world.log.segments.tend()
    assert len(segments(world)) == 1
    for _ in range(3):
        world.env.offload.release("warm")
        await settle()
    assert (await reading)[0]
    await world.log.segments.tend()
    assert segments(world) == []


async def test_deleted_topic_is_removed_from_shared_segment_in_time() -> None:
    world = await started(2)
    await fill(world.find("t0"), 5)
    await fill(world.find("t1"), 20)
    await cut(world)
    await delete_topic(world, "t0")
    await world.log.segments.tend()
    secret = b"3:" + bytes(500)
    (name,) = segments(world)
    assert secret in world.fs.files[f"{FOLDER}/segments/{name}"].data
    later(world, world.config.segment_dead_max_ms)
    await world.log.segments.tend()
    later(world, world.config.file_delete_delay_ms + 1000)
    await world.log.segments.tend()
    (row,) = await rows(world, LIVE, DELETING)
    assert row.generation == 1
    (name,) = segments(world)
    assert name == row.uuid.hex() + ".segment"
    partition = world.find("t1")
    assert await read_all(partition) == expected(0, 20)
    await world.crash()
    assert await read_all(world.find("t1")) == expected(0, 20)


async def test_deletion_interrupted_by_crash_is_completed() -> None:
    world = await started(2)
    await fill(world.find("t0"), 5)
    await fill(world.find("t1"), 20)
    await cut(world)
    info = world.catalog.by_name["t0"]
    await world.metadata.delete_topics([info.id])
    await world.crash()
    await world.log.segments.tend()
    left = {mapping.number for mapping in await world.storage.segment_mappings([1])}
    assert left == {world.find("t1").number}


async def test_half_dead_segment_is_rewritten_at_once() -> None:
    world = await started(2)
    await fill(world.find("t0"), 3)
    await fill(world.find("t1"), 20)
    await cut(world)
    partition = world.find("t1")
    await partition.delete_records(partition.segments.end[0])
    await world.log.segments.tend()
    later(world, world.config.file_delete_delay_ms + 1000)
    await world.log.segments.tend()
    (row,) = [row for row in await rows(world, LIVE, DELETING) if row.generation]
    assert row.live_bytes < row.size_bytes < 5000
    assert await read_all(world.find("t0")) == expected(0, 3)


async def test_many_small_segments_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.log.segments.merge.plan.MAX_SMALL", 3)
    world = await started(2)
    for _ in range(5):
        await fill(world.find("t0"), 20)
        await fill(world.find("t1"), 2)
        await cut(world)
    one, two = world.find("t0"), world.find("t1")
    end = one.cut_offset
    assert len(one.segments) == 5
    size = one.size_bytes
    await world.log.segments.tend()
    assert len(one.segments) == 1
    assert one.cut_offset == end
    assert one.size_bytes == size
    assert len(two.segments) == 1
    later(world, world.config.file_delete_delay_ms + 1000)
    await world.log.segments.tend()
    assert len(segments(world)) == 1
    for _ in range(2):
        assert await read_all(world.find("t0")) == expected(0, 100)
        assert await read_all(world.find("t1")) == expected(0, 10)
        await world.crash()


async def test_more_segments_than_one_plan_holds_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkawire.log.segments.merge.plan.MAX_SMALL", 3)
    monkeypatch.setattr("kafkawire.log.segments.merge.merger.MAX_PLANNED", 4)
    world = await started(1)
    for _ in range(12):
        await fill(world.find("t0"), 20)
        await cut(world)
    partition = world.find("t0")
    end = partition.cut_offset
    await world.log.segments.tend()
    assert len(partition.segments) <= 3
    assert await read_all(partition, 0) == expected(0, partition.next_offset)
    assert partition.cut_offset == end


async def test_merged_segment_respects_segment_bytes() -> None:
    world = await started(1)
    await world.topic("segments", segment_bytes=str(1 << 20))
    await world.topic("limited", retention_bytes=str(16 << 20))
    rewriter = world.log.segments.rewriter
    assert rewriter._most_of(world.find("t0").number) == 1 << 30
    assert rewriter._most_of(world.find("segments").number) == 1 << 20
    assert rewriter._most_of(world.find("limited").number) == 2 << 20


async def test_rewrite_of_changed_segments_is_abandoned() -> None:
    world = await started(2)
    await fill(world.find("t0"), 20)
    await fill(world.find("t1"), 20)
    await cut(world)
    rewriter = world.log.segments.rewriter
    found = await rewriter._plan(await rows(world))
    await world.find("t0").delete_records(20)
    await world.log.segments.deletion.run_pending()
    with pytest.raises(StaleSwap):
        await rewriter._rewrite(found)
    assert len(await rows(world, 0, LIVE)) == 1
    assert await read_all(world.find("t1")) == expected(0, 20)


async def test_damaged_partition_is_excluded_from_rewrite(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started(3)
    for at in range(3):
        await fill(world.find(f"t{at}"), 12)
    await cut(world)
    (name,) = segments(world)
    world.fs.files[f"{FOLDER}/segments/{name}"].data[64 + 200] ^= 1  # of t0
    await delete_topic(world, "t1")
    later(world, HOUR_MS)
    await world.log.segments.tend()
    later(world, world.config.segment_dead_max_ms)
    await world.log.segments.tend()
    assert "cannot be merged" in caplog.text
    assert len(await rows(world)) == 2
    assert await read_all(world.find("t2")) == expected(0, world.find("t2").next_offset)
    assert world.find("t0").segments.segment[0] == 1
    await world.log.segments.tend()
    assert len(await rows(world)) == 2, "it is not tried again at once"


def segment_range(number: int, segment_id: int, start: int, end: int) -> SegmentRange:
    return SegmentRange(number, segment_id, start, end, 64, 10, 0, 0, 0, -1, 1, 1)


def segment_row(segment_id: int, live_bytes: int = 10, kind: str = "a") -> SegmentRow:
    row = SegmentRow(bytes(16), 1, 0, segment_id, LIVE, 100, live_bytes)
    row.retention_class = kind
    return row


def test_only_contiguous_segments_are_merged() -> None:
    inputs = [segment_row(at) for at in (3, 1, 7, 8)]
    *_, plan = plan_rewrite(
        inputs,
        [
            *(
                segment_range(1, 3, 0, 5),
                segment_range(1, 1, 5, 9),
                segment_range(1, 7, 9, 10),
                segment_range(1, 8, 10, 12),
            ),
            *(segment_range(2, 3, 0, 5), segment_range(2, 7, 5, 9)),
            *(segment_range(3, 3, 0, 5), segment_range(3, 1, 6, 9), segment_range(3, 7, 9, 10)),
        ],
    )
    assert plan is not None
    assert [row.id for row in plan.inputs] == [1, 7, 8]
    assert [row.segment_id for row in plan.parts[1]] == [1, 7, 8]
    assert [row.segment_id for row in plan.parts[2]] == [7]
    assert {row.number for row in plan.list_replaced([2])} == {1, 3}


def test_merge_inputs_are_ordered_by_offset() -> None:
    inputs = [segment_row(at) for at in (4, 9, 5)]
    *_, plan = plan_rewrite(
        inputs, [segment_range(1, 9, 0, 5), segment_range(1, 4, 5, 6), segment_range(1, 5, 6, 7)]
    )
    assert plan is not None
    assert [row.id for row in plan.inputs] == [9, 4, 5]


def test_bytes_of_partition_in_merge_are_bounded() -> None:
    inputs = [segment_row(at) for at in range(6)]
    rows = [segment_range(1, at, at, at + 1) for at in range(6)]  # of 10 bytes
    *_, plan = plan_rewrite(inputs, rows, lambda _: 35)
    assert plan is not None
    assert [row.id for row in plan.inputs] == [0, 1, 2]
    *_, plan = plan_rewrite(inputs, rows, lambda _: 5)
    assert plan is not None
    assert len(plan.inputs) == 1
