"""Read plans, views and cold reads; the index beyond its memory; offsets by timestamp.

Covers: kafkawire.log.partition.index_eviction.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.read_limits import InFlight
from kafkawire.log.journal.index_columns import ROW_BYTES
from kafkawire.log.journal.index_file import read_index
from kafkawire.log.partition import index_eviction as eviction
from kafkawire.log.partition.hot_index import MAX_TAIL_BYTES, HotIndex
from kafkawire.log.partition.index_eviction import evict
from kafkawire.log.partition.partition import Partition, Plan
from kafkawire.log.partition.read_plan import HotRead, SegmentRead
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.log.logs import World, batch, read_all, values
from tests.kit.waiting import settle

SIZE = len(batch(b"x"))


async def fill(world: World, count: int, size_bytes: int = 1000) -> Partition:
    """Append committed batches one by one; the value contains the number."""
    await world.start()
    (partition,) = await world.topic("t")
    for at in range(count):
        value = b"%d:" % at + bytes(size_bytes)
        partition.append(batch(value, timestamp_ms=EPOCH_MS + at * 10), EPOCH_MS + at * 10)
        await world.log.commit_log.wait_until_committed()
    await settle()
    return partition


async def fetch(partition: Partition, plan: Plan) -> list[int]:
    """The offsets read through a plan, by views or by reading; both agree on the size."""
    if isinstance(plan, HotRead):
        views, release = partition.log.views(plan)
        size, got = sum(map(len, views)), values(list(views))
        release()
    else:
        buffers = await partition.log.read(plan)
        size, got = sum(map(len, buffers)), values(buffers)
    assert size == plan.size_bytes or not isinstance(plan, HotRead)
    return [offset for offset, _ in got]


async def one_frame(world: World, batches: int) -> Partition:
    """Batches of two records each that share a frame."""
    await world.start()
    (partition,) = await world.topic("t")
    for _ in range(batches):
        partition.append(batch(b"a", b"b"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert len(partition.rows) == 1
    return partition


@pytest.mark.parametrize("hot_bytes", [1 << 20, 0])
@pytest.mark.parametrize(
    ("offset", "end", "batches_of_room", "first", "expected"),
    [
        (0, 20, 100, True, range(0, 20)),
        (0, 20, 3, True, range(0, 6)),
        (7, 20, 3, True, range(6, 12)),  # the batch that holds the offset, from its start
        (7, 20, 0, True, range(6, 8)),  # at least one batch, of any size (KIP-74)
        (7, 20, 0, False, range(0, 0)),
        (19, 20, 3, True, range(18, 20)),
        (0, 4, 100, True, range(0, 4)),  # not beyond the end
        (20, 20, 100, True, range(0, 0)),
        (4, 4, 100, True, range(0, 0)),
    ],
)
async def test_plan_limits_frame_to_whole_batches(
    offset: int, end: int, batches_of_room: int, first: bool, expected: range, hot_bytes: int
) -> None:
    world = World(journal_bytes=4096, hot_bytes=hot_bytes)
    partition = await one_frame(world, 10)
    if not hot_bytes:
        for _ in range(4):
            partition.append(batch(bytes(2000)), EPOCH_MS)
            await world.log.commit_log.wait_until_committed()
        await settle()
    two = len(batch(b"a", b"b"))
    plan = partition.plan(offset, batches_of_room * two + two // 2, end, first)
    assert not isinstance(plan, SegmentRead)
    assert isinstance(plan, HotRead) is bool(hot_bytes) or not plan.runs
    assert await fetch(partition, plan) == list(expected)


async def test_offsets_outside_log_are_out_of_range() -> None:
    partition = await fill(World(), 3)
    for offset in (-1, 4):
        with pytest.raises(KafkaError) as refused:
            partition.plan(offset, 100, 3, True)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.plan(3, 100, 3, True).size_bytes == 0
    await partition.delete_records(2)
    with pytest.raises(KafkaError):
        partition.plan(1, 100, 3, True)


async def test_plan_of_many_small_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.log.partition.read_plan.MAX_RUNS", 4)
    partition = await fill(World(), 10, 10)
    assert await fetch(partition, partition.plan(2, 1 << 20, 10, True)) == [2, 3, 4, 5]


async def test_cold_reads_merge_adjacent_ranges_and_are_bounded() -> None:
    world = World(journal_bytes=8192, hot_bytes=0)
    partition = await fill(world, 30)
    assert isinstance(world.env.offload, InlineOffload)
    world.log.commit_log.reader._in_flight = InFlight(3000)
    world.env.offload.hold("read")
    plans = [partition.plan(at, 2500, 30, True) for at in (0, 4, 8)]
    assert not any(isinstance(plan, HotRead) for plan in plans)
    tasks = [asyncio.ensure_future(fetch(partition, plan)) for plan in plans]
    await settle()
    assert len(world.env.offload.held) == 1, "the others wait for memory"
    assert sum(journal.pins for journal in world.log.journals) == 3
    for _ in range(3):
        world.env.offload.release("read")
        world.env.offload.hold("read")
        await settle()
    assert [task.result()[0] for task in tasks] == [0, 4, 8]
    assert sum(journal.pins for journal in world.log.journals) == 0


async def test_views_pin_their_journals_until_released() -> None:
    partition = await fill(World(), 2)
    plan = partition.plan(0, 1 << 20, 2, True)
    assert isinstance(plan, HotRead)
    _, release = partition.log.views(plan)
    assert partition.log.journals.active.pins == 1
    release()
    release()
    assert partition.log.journals.active.pins == 0


async def test_cold_plan_of_deleted_journal_is_out_of_range() -> None:
    world = World(journal_bytes=4096, hot_bytes=0)
    partition = await fill(world, 20)
    plan = partition.plan(0, 1 << 20, 20, True)
    await partition.delete_records(20)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    with pytest.raises(KafkaError) as refused:
        await partition.log.read(plan)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_read_of_deleted_topic_ends() -> None:
    world = World(journal_bytes=4096, hot_bytes=0)
    partition = await fill(world, 20)
    info = world.catalog.by_name["t"]
    await world.metadata.delete_topics([info.id])
    world.catalog.remove_topic(info.id)
    world.log.remove_topic(info)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    with pytest.raises(KafkaError) as refused:
        await partition.log.read(partition.plan(0, 1 << 20, 20, True))
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def evicted(monkeypatch: pytest.MonkeyPatch, count: int = 40) -> tuple[World, Partition]:
    """A partition most of whose rows are in index files only."""
    monkeypatch.setattr(eviction, "MAX_INDEX_BYTES", 5 * ROW_BYTES)
    monkeypatch.setattr("kafkawire.log.recovery.restore.MAX_INDEX_BYTES", 5 * ROW_BYTES)
    world = World(journal_bytes=4096, hot_bytes=0)
    partition = await fill(world, count)
    evict(world.log.journals, world.log.partitions, 5 * ROW_BYTES)
    assert len(partition.rows) <= 6
    assert partition.evicted >= 10
    return world, partition


async def test_evicted_rows_are_found_in_index_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, partition = await evicted(monkeypatch)
    assert [offset for offset, _ in await read_all(partition)] == list(range(40))
    assert await fetch(partition, partition.plan(17, 10, 40, True)) == [17]
    assert await fetch(partition, partition.plan(17, 10, 40, False)) == []
    for at in (0, 16, 39):
        assert await partition.offset_for_time(EPOCH_MS + at * 10) == (at, EPOCH_MS + at * 10)
    assert await partition.max_timestamp() == (39, EPOCH_MS + 390)
    size = partition.size_bytes
    for again in (world.restart, world.crash):
        await again()
        partition = world.find("t")
        assert partition.evicted >= 10
        assert partition.size_bytes == size
        assert [offset for offset, _ in await read_all(partition)] == list(range(40))


async def test_log_start_moves_through_evicted_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, partition = await evicted(monkeypatch)
    size = partition.size_bytes
    assert await partition.delete_records(17) == 17
    assert partition.size_bytes < size
    assert [offset for offset, _ in await read_all(partition)] == list(range(17, 40))
    await world.crash()
    assert [offset for offset, _ in await read_all(world.find("t"))] == list(range(17, 40))


async def test_damaged_index_file_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    world, partition = await evicted(monkeypatch)
    node = world.fs.files["/data/brokers/1/journals/0000000001.index"]
    node.data[80] ^= 1
    reads = [partition.log.read(partition.plan(0, 1 << 20, 40, True)) for _ in range(3)]
    for found in await asyncio.gather(*reads):
        assert values(found)[0][0] == 0
    rebuilt = read_index(world.fs, "/data/brokers/1/journals", 1)
    assert rebuilt is not None
    assert not rebuilt.stored, "store times are in the index file alone"
    assert [offset for offset, _ in await read_all(partition)] == list(range(40))


async def test_offsets_by_timestamp() -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")
    for times in ((5, 7), (3, 3), (9, 20), (15, 30)):
        for at in times:
            partition.append(batch(b"x", timestamp_ms=EPOCH_MS + at), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    expected = {0: 0, 5: 0, 6: 1, 8: 4, 10: 5, 21: 7, 30: 7}
    for time, offset in expected.items():
        found = await partition.offset_for_time(EPOCH_MS + time)
        assert found is not None
        assert found[0] == offset, time
    assert await partition.offset_for_time(EPOCH_MS + 31) is None
    assert await partition.max_timestamp() == (7, EPOCH_MS + 30)
    await partition.delete_records(6)  # the record of 20 is gone, and with it the old maximum
    assert await partition.offset_for_time(EPOCH_MS) == (6, EPOCH_MS + 15)
    assert await partition.offset_for_time(EPOCH_MS + 16) == (7, EPOCH_MS + 30)
    assert await partition.max_timestamp() == (7, EPOCH_MS + 30)


async def test_timestamps_of_uncommitted_records_are_not_found() -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")
    assert await partition.max_timestamp() == (-1, -1)
    partition.append(batch(b"x", timestamp_ms=EPOCH_MS), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("commit")
    partition.append(batch(b"x", timestamp_ms=EPOCH_MS + 5), EPOCH_MS)
    await settle()
    assert partition.next_offset == 2
    assert await partition.offset_for_time(EPOCH_MS + 1) is None
    assert await partition.max_timestamp() == (0, EPOCH_MS)
    world.env.offload.release("commit")


def test_running_maximum_follows_appends_and_deletions() -> None:
    rows = HotIndex()
    for at, newest in enumerate((5, 9, 3, 7)):
        rows.add(at, at, 1, 1, newest)
    assert [rows.since(t) for t in (4, 6, 9, 10)] == [0, 1, 1, 4]
    rows.add(4, 4, 1, 1, 12)
    assert (rows.since(10), rows.latest()) == (4, 12)
    rows.drop_front(2)
    assert [rows.since(t) for t in (3, 4, 8)] == [0, 1, 2]
    rows.drop_front(3)
    assert (rows.latest(), rows.since(0)) == (-1, 0)


@pytest.mark.parametrize("count", [1, 2, 5, 64, 65, 200])
async def test_newest_rows_are_read_however_many_are_packed(count: int) -> None:
    world = World(flush="os")
    await world.start()
    (partition,) = await world.topic("t")
    written: list[int] = []
    for number in range(count):
        value = b"%d" % number
        partition.append(batch(value, timestamp_ms=EPOCH_MS + number), EPOCH_MS + number)
        await world.log.commit_log.wait_until_committed()
        written.append(len(batch(value)))
        assert len(partition.tail) < MAX_TAIL_BYTES
    index = partition.rows
    assert not partition.tail
    assert list(index.base) == list(range(count))
    assert list(index.count) == [1] * count
    assert list(index.newest) == [EPOCH_MS + number for number in range(count)]
    assert list(index.length) == written
    assert list(index.log_position) == sorted(index.log_position)
    assert await read_all(partition) == [(number, b"%d" % number) for number in range(count)]
