"""Transactions in the log: markers, the last stable offset, aborted transactions for readers, hot
and in segments, through crashes, cuts and merges.

Covers: kafkawire.log.partition.partition, kafkawire.log.partition.transactions,
kafkawire.log.recovery.restore, kafkawire.log.journal.index_file,
kafkawire.log.segments.store.index_cache, kafkawire.codec.control.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, iter_batches
from kafkawire.codec.control import ABORT, Aborted, ControlContent, TransactionMarker, read_marker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition import transactions as module
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead, aborted_listed
from kafkawire.log.partition.transactions import OFFSET_MAX
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, read_all
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.waiting import settle

ONE = 1
"""Bytes of an answer: one batch."""


async def started(**more: Any) -> tuple[World, Partition]:
    world = World(**more)
    await world.start()
    (partition,) = await world.topic("t")
    return world, partition


async def committed(partition: Partition) -> None:
    await partition.log.wait_until_committed()
    await settle()


def known(partition: Partition) -> tuple[int, dict[int, int], list[Aborted]]:
    """LSO, open transactions, aborted ones whose markers are in the journals."""
    transactions = partition.producers.transactions
    if transactions is None:
        return partition.last_stable_offset, {}, []
    aborted = transactions.aborted.ended_in(0, OFFSET_MAX)
    return partition.last_stable_offset, dict(transactions.open), aborted


async def interleaved(partition: Partition) -> None:
    """Offsets 0-9: A begins at 0 and commits at 7, B begins at 1 and aborts at 5, C is open from
    8 on."""
    a, b, c = Producer(1), Producer(2), Producer(3)
    a.send(partition, b"a0")
    b.send(partition, b"b1", b"b2")
    a.send(partition, b"a3")
    partition.append(batch(b"p4"), EPOCH_MS)
    b.end(partition, commit=False)
    await committed(partition)
    assert partition.last_stable_offset == 0
    a.send(partition, b"a6")
    a.end(partition, commit=True)
    c.send(partition, b"c8")
    partition.append(batch(b"p9"), EPOCH_MS)
    await committed(partition)


SEEN = [(0, b"a0"), (3, b"a3"), (4, b"p4"), (6, b"a6")]


async def test_a_marker_is_written_as_kafka_writes_it() -> None:
    _, partition = await started()
    producer = Producer(1)
    producer.send(partition, b"x")
    producer.end(partition, commit=False)
    await committed(partition)
    plan = partition.plan(1, 1 << 20, 2, True)
    views, release = partition.log.views(plan)  # type: ignore[arg-type]
    ((at, head),) = iter_batches(views[0])
    assert (head.size_bytes, head.attributes, head.base_sequence) == (
        78,
        TRANSACTIONAL | CONTROL,
        -1,
    )
    assert (head.producer_id, head.producer_epoch, head.base_offset) == (1, 0, 1)
    assert read_marker(views[0], at, head) == ControlContent(ABORT, 1)
    release()


async def test_the_last_stable_offset_and_what_a_committed_reader_gets() -> None:
    _, partition = await started()
    await interleaved(partition)
    assert (partition.last_stable_offset, partition.high_watermark) == (8, 10)
    assert known(partition) == (8, {3: 8}, [(2, 1, 5)])
    for size in (ONE, 1 << 20):
        assert await committed_records(partition, max_bytes=size) == SEEN
    assert len(await read_all(partition)) == 10, "control batches and aborted records too"


async def test_a_reader_that_begins_inside_an_aborted_transaction() -> None:
    _, partition = await started()
    await interleaved(partition)
    for start in range(9):
        expected = [pair for pair in SEEN if pair[0] >= start]
        assert await committed_records(partition, start, ONE) == expected
    assert [bool(partition.list_aborted(at, 8)) for at in (1, 5, 6)] == [True, True, False]


async def test_the_open_transaction_survives_every_end() -> None:
    world, partition = await started()
    await interleaved(partition)
    before = known(partition)
    for power in (True, False):
        await world.crash(power)
        assert known(world.find("t")) == before
    await world.restart()
    assert known(world.find("t")) == before
    partition = world.find("t")
    with pytest.raises(KafkaError) as caught:
        partition.append(batch(b"x", producer_id=3, producer_epoch=0, base_sequence=1), EPOCH_MS)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    third = Producer(3)
    third.sequences[partition.number] = 1
    third.send(partition, b"c10")
    third.end(partition, commit=False)
    await committed(partition)
    assert known(partition) == (12, {}, [(2, 1, 5), (3, 8, 11)])
    assert await committed_records(partition) == [*SEEN, (9, b"p9")]
    await world.crash()
    assert known(world.find("t")) == (12, {}, [(2, 1, 5), (3, 8, 11)])


async def test_a_marker_that_is_not_committed_holds_the_last_stable_offset() -> None:
    _, partition = await started(commit_delay_ms=60_000)
    producer = Producer(1)
    producer.send(partition, b"x")
    await committed(partition)
    producer.end(partition, commit=True)
    await settle()
    assert (partition.next_offset, partition.high_watermark) == (2, 1)
    assert partition.last_stable_offset == 0
    await committed(partition)
    assert partition.last_stable_offset == 2


async def test_delete_records_past_the_beginning_of_an_open_transaction() -> None:
    world, partition = await started()
    producer = Producer(1)
    for at in range(4):
        producer.send(partition, b"%d" % at)
    await committed(partition)
    await partition.delete_records(2)
    assert (partition.log_start, partition.last_stable_offset) == (2, 2)
    await world.crash()
    partition = world.find("t")
    assert known(partition) == (2, {1: 0}, [])
    producer.end(partition, commit=False)
    await committed(partition)
    assert known(partition) == (5, {}, [(1, 0, 4)])
    assert await committed_records(partition) == []


async def test_a_failed_write_leaves_transactions_as_they_were() -> None:
    world, partition = await started()
    producer = Producer(1)
    producer.send(partition, b"x")
    await committed(partition)
    before = known(partition)
    world.fs.faults.failing_writes = 1
    producer.end(partition, commit=False)
    with pytest.raises(KafkaError):
        await partition.log.wait_until_committed()
    assert known(partition) == before
    producer.end(partition, commit=False)
    await committed(partition)
    assert known(partition) == (2, {}, [(1, 0, 1)])


async def test_a_fenced_coordinator_changes_nothing() -> None:
    _, partition = await started()
    producer = Producer(1, epoch=4)
    producer.send(partition, b"x")
    await committed(partition)
    for marker, code in (
        (TransactionMarker(1, 3, 1, ABORT, 0), ErrorCode.INVALID_PRODUCER_EPOCH),
        (TransactionMarker(1, 4, 1, ABORT, 2), ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        with pytest.raises(KafkaError) as caught:
            partition.append_marker(marker, EPOCH_MS)
        assert caught.value.code is code
    assert (partition.offsets.pending, known(partition)) == (1, (0, {1: 0}, []))


async def test_a_watcher_is_called_when_the_last_stable_offset_moves() -> None:
    _, partition = await started()
    seen: list[int] = []
    partition.watch(lambda moved: seen.append(moved.last_stable_offset))
    producer = Producer(1)
    producer.send(partition, b"x")
    await committed(partition)
    producer.end(partition, commit=True)
    await committed(partition)
    assert seen == [0, 2]


async def test_a_batch_of_log_append_time_and_its_marker() -> None:
    world, _ = await started()
    (partition,) = await world.topic("u", message_timestamp_type="LogAppendTime")
    producer = Producer(1)
    producer.send(partition, b"x")
    appended = partition.append_marker(TransactionMarker(1, 0, 0, ABORT, 0), EPOCH_MS + 5)
    assert appended.log_append_time_ms == EPOCH_MS + 5
    await committed(partition)
    assert await partition.max_timestamp() == (1, EPOCH_MS + 5)


# -- segments


async def cut_world() -> tuple[World, Partition]:
    """A broker whose journals are small and cold as soon as they are rolled."""
    return await started(journal_bytes=8192, hot_bytes=0)


async def filled(partition: Partition, count: int) -> None:
    """Batches that belong to no transaction, each committed: several to a journal."""
    for _ in range(count):
        offset = partition.offsets.pending
        partition.append(batch(b"%d:" % offset + bytes(500)), EPOCH_MS)
        await committed(partition)


async def cut(world: World) -> None:
    await settle()
    world.log.segments.cutter._stuck.clear()
    await world.log.segments.cut()
    await world.log.checkpoint()
    await world.log.retention.reclaim()


def plain(offsets: range) -> list[tuple[int, bytes | None]]:
    return [(at, b"%d:" % at + bytes(500)) for at in offsets]


async def test_a_cut_stops_where_a_transaction_is_open_and_goes_on_after_its_marker() -> None:
    world, partition = await cut_world()
    await filled(partition, 30)
    producer = Producer(1)
    producer.send(partition, b"open")
    await committed(partition)
    await filled(partition, 30)
    await cut(world)
    assert 0 < partition.cut_offset <= 30
    assert await committed_records(partition) == plain(range(30))
    producer.end(partition, commit=False)
    await committed(partition)
    await filled(partition, 30)
    await cut(world)
    assert partition.cut_offset > 70
    assert known(partition)[1:] == ({}, [])
    expected = plain(range(30)) + plain(range(31, 61)) + plain(range(62, 92))
    assert await committed_records(partition) == expected
    await world.crash()
    assert await committed_records(world.find("t"), max_bytes=ONE) == expected


async def test_a_transaction_begins_in_a_frame_that_began_before_it() -> None:
    """The last stable offset lies within a frame, which no cut may divide."""
    world, partition = await cut_world()
    await filled(partition, 30)
    partition.append(batch(b"before"), EPOCH_MS)
    producer = Producer(1)
    producer.send(partition, b"x")
    await committed(partition)
    assert (partition.last_stable_offset, partition.rows.base[-1]) == (31, 30)
    await filled(partition, 30)
    await cut(world)
    assert 0 < partition.cut_offset <= 30
    assert not world.log.segments.cutter.damaged
    producer.end(partition, commit=True)
    await committed(partition)
    await filled(partition, 30)
    await cut(world)
    assert partition.cut_offset > 62
    assert not world.log.segments.cutter.damaged
    found = await committed_records(partition)
    assert found[30:32] == [(30, b"before"), (31, b"x")]


async def test_a_segment_knows_transactions_that_end_after_it() -> None:
    world, partition = await cut_world()
    producer = Producer(1)
    producer.send(partition, b"aborted")
    await filled(partition, 30)
    producer.send(partition, b"aborted too")
    await committed(partition)
    marker = producer.end(partition, commit=False)
    await committed(partition)
    await cut(world)
    assert 0 < partition.cut_offset <= marker, "the marker is in the journals"
    assert known(partition)[2] == [(1, 0, marker)]
    for size in (ONE, 4096, 1 << 20):
        assert await committed_records(partition, max_bytes=size) == plain(range(1, 31))
    await filled(partition, 30)
    await cut(world)
    assert partition.cut_offset > marker
    expected = plain(range(1, 31)) + plain(range(33, 63))
    for size in (ONE, 1 << 20):
        assert await committed_records(partition, max_bytes=size) == expected


async def test_index_files_have_what_was_aborted_before_the_checkpoint() -> None:
    world, partition = await cut_world()
    producer = Producer(1)
    producer.send(partition, b"aborted")
    await filled(partition, 20)
    producer.end(partition, commit=False)
    other = Producer(2)
    other.send(partition, b"open")
    await filled(partition, 20)
    await world.log.indexer.run()
    await world.log.checkpoint()
    before = known(partition)
    assert before == (22, {2: 22}, [(1, 0, 21)])
    await world.crash()
    assert known(world.find("t")) == before
    # Without the index files the journals are scanned.
    for name in world.fs.listdir("/data/brokers/1/journals"):
        if name.endswith(".index"):
            world.fs.remove(f"/data/brokers/1/journals/{name}")
    await world.crash()
    partition = world.find("t")
    assert known(partition) == before
    assert await committed_records(partition) == plain(range(1, 21))
    await world.restart()
    assert known(world.find("t")) == before


async def test_a_page_has_a_bounded_number_of_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them are named in the answer, so that the page ends before there are too many."""
    monkeypatch.setattr(module, "MAX_LISTED", 3)
    _, partition = await started()
    for number in range(10):
        producer = Producer(number)
        producer.send(partition, b"%d" % number)
        producer.end(partition, commit=False)
    partition.append(batch(b"last"), EPOCH_MS)
    await committed(partition)
    offset, pages = 0, []
    while offset < partition.last_stable_offset:
        end = partition.committed_end(offset)
        plan = partition.plan(offset, 1 << 20, end, True)
        assert isinstance(plan, HotRead)
        pages.append([producer_id for producer_id, _ in aborted_listed(plan)])
        views, release = partition.log.views(plan)
        offset = max(head.last_offset for view in views for _, head in iter_batches(view)) + 1
        release()
        assert offset == end
    assert pages == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert partition.committed_end(offset) == offset == 21
