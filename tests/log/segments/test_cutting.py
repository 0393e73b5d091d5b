"""Cutting: journals become segments, readers find each batch in one place, crashes leave no files.

Covers: kafkawire.log.segments.cut.cutter, kafkawire.log.segments.store.swap,
kafkawire.log.segments.manager, kafkawire.log.segments.store.swap, kafkawire.log.partition.truncate,
kafkawire.log.journal.reindex_job.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import SegmentRead
from kafkawire.log.partition.state import Frame
from kafkawire.log.segments.cut.plan import share_of
from kafkawire.offsets.catalog.port import LIVE, STARTED
from tests.kit.env import EPOCH_MS, InlineOffload, SettableClock
from tests.kit.log.cutting import ROOM, cut, expected, fill, segments, started
from tests.kit.log.logs import FOLDER, World, batch, read_all, values
from tests.kit.log.transactional import Producer
from tests.kit.waiting import settle


async def test_cut_records_are_read_from_segments_and_journals_recycled() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    size = partition.size_bytes
    assert len(list(world.log.journals)) > 3
    await cut(world)
    assert len(list(world.log.journals)) == 1
    assert 40 < partition.cut_offset < 60
    assert partition.size_bytes == size
    assert len(partition.journal_extents) == 0
    assert len(partition.segments) == len(segments(world)) == 1
    assert await read_all(partition) == expected(0, 60)
    for again in (world.restart, world.crash):
        await again()
        partition = world.find("t0")
        assert partition.cut_offset > 40
        assert partition.size_bytes == size
        assert await read_all(partition) == expected(0, 60)
    await fill(partition, 1)
    assert await read_all(partition) == expected(0, 61)


async def test_read_crosses_segments_and_journals() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 40)
    await cut(world)
    await fill(partition, 40)
    await cut(world)
    assert len(partition.segments) == 2
    border = partition.segments.end[0]
    one = len(batch(b"10:" + bytes(500)))
    plan = partition.plan(border - 2, 4 * one, partition.high_watermark, True)
    assert isinstance(plan, SegmentRead)
    assert plan.size_bytes == 4 * one
    assert values(await partition.log.read(plan)) == expected(border - 2, border + 2)
    assert plan.size_bytes == 4 * one
    plan = partition.plan(partition.cut_offset - 2, ROOM, partition.high_watermark, True)
    got = values(await partition.log.read(plan))
    assert got == expected(partition.cut_offset - 2, 80)
    plan = partition.plan(partition.cut_offset - 2, ROOM, partition.cut_offset + 1, True)
    got = values(await partition.log.read(plan))
    assert got == expected(partition.cut_offset - 2, partition.cut_offset + 1)


@pytest.mark.parametrize(("room", "first", "count"), [(0, True, 1), (0, False, 0), (1300, True, 2)])
async def test_fetch_limits_hold_in_segments(room: int, first: bool, count: int) -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 40)
    await cut(world)
    plan = partition.plan(7, room, partition.high_watermark, first)
    assert values(await partition.log.read(plan)) == expected(7, 7 + count)


async def test_small_partitions_share_a_segment_and_large_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkawire.log.segments.store.grouping.LARGE_BYTES", 10_000)
    world = await started(4)
    await world.topic("short", retention_ms="1000")
    for name in ("t0", "t1", "t2", "short"):
        await fill(world.find(name), 5)
    await fill(world.find("t3"), 60)
    await cut(world)
    assert len(segments(world)) == 3
    shared = {world.find(f"t{at}").segments.segment[0] for at in range(3)}
    assert len(shared) == 1
    rows = await world.storage.segments(1, (LIVE,), 10)
    assert sorted(row.retention_class for row in rows) == [
        "delete/local/2^10ms",
        "delete/local/2^30ms",
        "delete/local/2^30ms",
    ]
    for at in range(3):
        assert await read_all(world.find(f"t{at}")) == expected(0, 5)


async def test_timestamps_epochs_and_log_starts_over_segments_and_journals() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 40)
    await cut(world)
    await fill(partition, 40)
    await cut(world)
    for at in (0, 3, partition.segments.end[0], partition.cut_offset, 79):
        assert await partition.offset_for_time(EPOCH_MS + at) == (at, EPOCH_MS + at)
    assert await partition.offset_for_time(EPOCH_MS + 80) is None
    assert await partition.max_timestamp() == (79, EPOCH_MS + 79)
    assert partition.epoch_end(0) == (0, 80)
    size = partition.size_bytes
    assert await partition.delete_records(10) == 10
    assert partition.size_bytes == size, "files go whole"
    assert await partition.offset_for_time(0) == (10, EPOCH_MS + 10)
    assert await read_all(partition) == expected(10, 80)
    with pytest.raises(KafkaError):
        partition.plan(9, ROOM, 80, True)
    border = partition.segments.end[0]
    await partition.delete_records(border)
    assert len(partition.segments) == 1
    await world.crash()
    partition = world.find("t0")
    assert len(partition.segments) == 1
    assert await read_all(partition) == expected(border, 80)
    await partition.delete_records(80)
    assert partition.size_bytes == 0
    await world.crash()
    partition = world.find("t0")
    assert (partition.log_start, partition.next_offset) == (80, 80)
    await fill(partition, 1)
    assert await read_all(partition) == expected(80, 81)


async def test_cut_stops_at_last_stable_offset() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 17)
    producer = Producer(1)
    producer.send(partition, b"17:" + bytes(500))
    await partition.log.wait_until_committed()
    await fill(partition, 42)
    await cut(world)
    assert partition.cut_offset == 17
    assert share_of(partition, 100) is None
    await world.crash()
    partition = world.find("t0")
    assert (partition.cut_offset, partition.last_stable_offset) == (17, 17)
    assert partition.rows.base[0] == 17
    journals = len(list(world.log.journals))
    assert journals > 2, "the rest waits in its journals"
    assert await read_all(partition) == expected(0, 60)
    producer.end(partition, commit=True)
    await partition.log.wait_until_committed()
    world.log.segments.cutter._stuck.clear()
    await cut(world)
    assert partition.cut_offset > 40
    assert (await read_all(partition))[:60] == expected(0, 60)


def append_by_hand(partition: Partition, raw: bytearray, count: int) -> None:
    """Queue batches that the broker refuses from clients: batches of transactions."""
    base = partition.offsets.assign(count)
    raw[:8] = base.to_bytes(8, "big")
    frame = Frame(partition, [memoryview(raw)], base, base + count, len(raw), EPOCH_MS)
    partition.log.frames.append(frame)
    partition.log.batch_bytes += len(raw)
    partition.log.schedule_flush()


async def stored_bytes(partition: Partition) -> bytes:
    plan = partition.plan(0, ROOM, partition.high_watermark, True)
    return b"".join(await partition.log.read(plan))


async def test_transactional_batches_are_cut_byte_for_byte() -> None:
    world = await started()
    partition = world.find("t0")
    for producer in range(30):
        pairs = [(b"k", b"%d" % producer + bytes(200)), (None, None)]
        more: Any = {"timestamp_ms": EPOCH_MS, "producer_id": producer, "producer_epoch": 0}
        append_by_hand(partition, build(pairs, attributes=0x10, base_sequence=0, **more), 2)
        marker = [(bytes(4) if producer % 2 else b"\0\0\0\1", bytes(6))]
        append_by_hand(partition, build(marker, attributes=0x30, **more), 1)
        await partition.log.wait_until_committed()
    await settle()
    before = await stored_bytes(partition)
    await cut(world)
    assert partition.cut_offset > 30
    assert await stored_bytes(partition) == before
    await world.crash()
    assert await stored_bytes(world.find("t0")) == before


async def test_segment_bytes_bounds_a_partitions_share() -> None:
    world = await started()
    partition = world.find("t0")
    partition.config.segment_bytes = 3000
    await fill(partition, 60)
    await cut(world)
    lengths = list(partition.segments.length)
    assert len(lengths) > 5
    assert max(lengths) <= 3000
    assert await read_all(partition) == expected(0, 60)


async def test_crash_between_row_and_transaction_leaves_nothing() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("cut")
    cutting = asyncio.ensure_future(world.log.segments.cut())
    await settle()
    assert [row.state for row in await world.storage.segments(1, (STARTED,), 10)] == [STARTED]
    job = world.env.offload.held
    for _, work in job:
        work()  # the file is written, and the caller does not receive the result
    cutting.cancel()
    assert len(segments(world)) == 1
    world.env.offload.held = []
    world.env.offload.holding.clear()
    await world.crash()
    await settle()
    assert segments(world) == []
    assert await world.storage.segments(1, (STARTED, LIVE), 10) == []
    assert await read_all(world.find("t0")) == expected(0, 60)
    await cut(world)
    assert await read_all(world.find("t0")) == expected(0, 60)


async def test_failed_cut_is_abandoned_and_retried() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    world.fs.faults.failing_syncs = 1
    with pytest.raises(OSError, match="input/output"):
        await world.log.segments.cut()
    assert segments(world) == []
    assert await world.storage.segments(1, (STARTED, LIVE), 10) == []
    await cut(world)
    assert await read_all(partition) == expected(0, 60)


async def test_damage_in_journal_is_reported_and_blocks_only_its_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started(2)
    one, two = world.find("t0"), world.find("t1")
    for _ in range(30):
        await fill(one, 1)
        await fill(two, 1)
    log_position = one.rows.log_position[1]
    journal = world.log.journals.by_number[log_position >> 32]
    world.fs.files[journal.path].data[(log_position & 0xFFFFFFFF) + 100] ^= 1
    await cut(world)
    assert "t0-0 cannot be cut" in caplog.text
    assert one.cut_offset == 0
    assert two.cut_offset > 10
    assert await read_all(two) == expected(0, 30)


async def test_damage_in_segment_is_reported_before_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    await cut(world)
    (name,) = segments(world)
    world.fs.files[f"{FOLDER}/segments/{name}"].data[64 + 5000] ^= 1
    plan = partition.plan(0, ROOM, 60, True)
    got = values(await partition.log.read(plan))
    assert got == expected(0, len(got))
    assert 5 < len(got) < 10
    for _ in range(2):
        with pytest.raises(KafkaError, match="t0-0: offsets 8-8 are damaged") as refused:
            await partition.log.read(partition.plan(len(got), ROOM, 60, True))
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert len([r for r in caplog.records if r.levelname == "CRITICAL"]) == 1
    assert (await read_all(partition, 20)) == expected(20, 60), "records after it are served"


async def test_damaged_trailer_is_reported_at_first_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    await cut(world)
    (name,) = segments(world)
    path = f"{FOLDER}/segments/{name}"
    world.fs.files[path].data[-10] ^= 1
    assert await read_all(partition) == expected(0, 60)
    assert "its trailer is damaged" in caplog.text
    await world.restart()
    partition = world.find("t0")
    node = world.fs.files[path]
    node.resize(len(node.data) - 1)
    for _ in range(2):
        with pytest.raises(KafkaError, match="its row says") as refused:
            await partition.log.read(partition.plan(0, ROOM, 60, True))
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert caplog.text.count("its row says") == 2, "by the segment's name, and by offsets"
    assert "t0-0: offsets 0-" in caplog.text
    world.fs.remove(path)
    await world.restart()
    assert "is missing: reading its records returns an error" in caplog.text
    with pytest.raises(KafkaError, match="is gone") as refused:
        await read_all(world.find("t0"))
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert re.search(
        "t0-0: offsets 0-[0-9]+ are damaged: the file of segment .* is gone", caplog.text
    )


async def test_old_small_journal_is_rolled_and_cut() -> None:
    world = World(journal_roll_ms=1000)
    await world.start()
    (partition,) = await world.topic("t")
    await fill(partition, 3)
    log, clock = world.log.segments, world.env.clock
    assert isinstance(clock, SettableClock)
    for _ in range(6):
        clock.ms += 600
        await log.cut()
        await settle()
    assert partition.cut_offset == 3
    assert await read_all(partition) == expected(0, 3)


async def test_records_deleted_during_cut_stay_deleted() -> None:
    world = await started(2)
    await fill(world.find("t0"), 20)
    await fill(world.find("t1"), 20)
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("cut")
    cutting = asyncio.ensure_future(world.log.segments.cut())
    await settle()
    info = world.catalog.by_name["t0"]
    await world.metadata.delete_topics([info.id])
    world.catalog.remove_topic(info.id)
    world.log.remove_topic(info)
    world.env.offload.release("cut")
    await cutting
    assert await read_all(world.find("t1")) == expected(0, 20)
    await world.crash()
    assert await read_all(world.find("t1")) == expected(0, 20)
