"""Hand-over of partitions to another broker of the data folder.

Covers: kafkawire.log.handover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from dataclasses import replace

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log import handover
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.log.compacted import fill
from tests.kit.log.logs import batch, read_all
from tests.kit.log.pair import Pair
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.waiting import ticks, until

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
async def pair() -> Pair:
    made = Pair()
    await made.start()
    return made


def append(partition: Partition, *values: bytes, **more: int) -> int:
    return partition.append(batch(*values or (b"x",), **more), EPOCH_MS).base_offset


def numbers_of(*partitions: Partition) -> list[int]:
    return [partition.number for partition in partitions]


def refuses(partition: Partition) -> bool:
    """Whether an append gets NOT_LEADER_OR_FOLLOWER."""
    try:
        append(partition)
    except KafkaError as failure:
        return failure.code == NOT_LEADER
    return False


async def test_next_leader_has_everything_and_nothing_is_left(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Records, producers, aborted transactions, epochs, log start; without a warning."""
    one, two, empty = await pair.topic("t", 3)
    append(one, b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    aborted = Producer(9)
    aborted.send(two, b"gone")
    aborted.end(two, commit=False)
    append(two, b"stays")
    await pair.first.log.commit_log.wait_until_committed()
    await one.delete_records(1)
    with caplog.at_level(logging.WARNING):
        handed = await pair.first.log.hand_over(numbers_of(one, two, empty))
        assert handed.ready == numbers_of(one, two, empty)
        assert not handed.refused
        for each in (one, two, empty):
            assert refuses(each)
            assert each.cut_offset == each.next_offset
            assert not each.removed
        assert await read_all(one) == [(1, b"b")], "readers are served"
        moved = await pair.move(handed.ready, 2)
    assert not caplog.records
    assert not pair.first.log.leadership.kept
    assert len(pair.fs.listdir("/data/brokers/1/segments")) == 1, "small ones share it"
    first, second, third = moved
    assert await read_all(first) == [(1, b"b")]
    assert [each.next_offset for each in moved] == [2, 3, 0]
    assert first.log_start == 1
    assert append(first, b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0) == 0, (
        "a duplicate"
    )
    assert append(first, b"c", producer_id=7, producer_epoch=0, base_sequence=2) == 2
    assert await committed_records(second) == [(2, b"stays")]
    assert second.epochs == [(0, 0), (1, 3)]
    append(third)
    await pair.second.log.commit_log.wait_until_committed()
    assert await read_all(third) == [(0, b"x")]


async def test_partitions_move_to_and_fro(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    numbers = numbers_of(partition)
    expected = []
    for turn in range(4):
        source = (pair.first, pair.second)[turn % 2]
        partition = await source.find(numbers[0])
        expected.append((append(partition, b"%d" % turn), b"%d" % turn))
        await source.log.commit_log.wait_until_committed()
        handed = await source.log.hand_over(numbers)
        (partition,) = await pair.move(handed.ready, 2 - turn % 2)
    assert await read_all(partition) == expected
    for member in (pair.first, pair.second):
        assert not member.log.leadership.kept
        await member.kill()
        await member.start()
    partition = await pair.first.find(numbers[0])
    assert await read_all(partition) == expected


async def test_what_is_queued_is_written_and_cut(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    answers: list[object] = []
    append(partition, b"queued")
    pair.first.log.commit_log.after_commit(answers.append)
    handed = await pair.first.log.hand_over(numbers_of(partition))
    assert answers == [None]
    assert partition.cut_offset == partition.next_offset == 1
    (moved,) = await pair.move(handed.ready, 2)
    assert await read_all(moved) == [(0, b"queued")]


async def test_much_is_cut_before_appends_are_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "EARLY_BYTES", 10)
    (partition,) = await pair.topic("t")
    append(partition, b"much")
    await pair.first.log.commit_log.wait_until_committed()
    run = pair.first.env.worker.run
    closed: list[bool] = []

    async def note(kind: str, *arguments: object) -> object:
        closed.append(partition.closed)
        if len(closed) == 1:
            append(partition, b"meanwhile")
        return await run(kind, *arguments)  # type: ignore[arg-type]

    pair.first.env.worker.run = note  # type: ignore[method-assign, assignment]
    await pair.first.log.hand_over(numbers_of(partition))
    assert closed == [False, True]
    assert await read_all(partition) == [(0, b"much"), (1, b"meanwhile")]


async def test_resume_after_a_move_that_failed(pair: Pair) -> None:
    stays, goes = await pair.topic("t", 2)
    append(stays)
    handed = await pair.first.log.hand_over(numbers_of(stays, goes))
    pair.change(numbers_of(goes), 2)
    pair.first.log.resume(handed.ready)
    assert not refuses(stays)
    assert refuses(goes), "the catalog says that it has moved"
    await pair.first.log.commit_log.wait_until_committed()
    assert await read_all(stays) == [(0, b"x"), (1, b"x")]
    assert (await pair.first.log.hand_over(numbers_of(stays))).ready == numbers_of(stays)


@pytest.mark.parametrize("what", ["start_segments", "finish_segments", "save_checkpoint"])
async def test_failure_leaves_everything_as_it_was(pair: Pair, what: str) -> None:
    (partition,) = await pair.topic("t")
    append(partition)
    works = getattr(pair.first.storage, what)

    async def fails(*_: object) -> None:
        raise OSError("the database is away")

    setattr(pair.first.storage, what, fails)
    with pytest.raises(OSError, match="away"):
        await pair.first.log.hand_over(numbers_of(partition))
    assert not refuses(partition)
    setattr(pair.first.storage, what, works)
    handed = await pair.first.log.hand_over(numbers_of(partition))
    (moved,) = await pair.move(handed.ready, 2)
    assert await read_all(moved) == [(0, b"x"), (1, b"x")]


async def test_cancelled_hand_over_leaves_everything_as_it_was(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    append(partition)
    begun = asyncio.Event()

    async def never(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    pair.first.storage.start_segments = never  # type: ignore[method-assign, assignment]
    moving = asyncio.ensure_future(pair.first.log.hand_over(numbers_of(partition)))
    await begun.wait()
    assert refuses(partition)
    moving.cancel()
    await ticks()
    assert moving.cancelled()
    assert not refuses(partition)


async def test_open_transaction_may_end(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    producer, late = Producer(1), Producer(2)
    producer.send(partition, b"in time")
    moving = asyncio.ensure_future(pair.first.log.hand_over(numbers_of(partition), 1e9))
    await until(lambda: partition.producers._refusing)
    await ticks()
    assert not partition.closed
    producer.send(partition, b"more of it")
    with pytest.raises(KafkaError, match="NOT_LEADER"):
        late.send(partition, b"begins too late")
    producer.end(partition, commit=True)
    handed = await moving
    assert handed.ready == numbers_of(partition)
    (moved,) = await pair.move(handed.ready, 2)
    assert await committed_records(moved) == [(0, b"in time"), (1, b"more of it")]
    Producer(2).send(moved, b"here")


async def test_partition_with_open_transaction_is_refused(pair: Pair) -> None:
    stays, goes = await pair.topic("t", 2)
    producer = Producer(1)
    producer.send(stays, b"x")
    append(goes)
    handed = await pair.first.log.hand_over(numbers_of(stays, goes), 0)
    assert handed.ready == numbers_of(goes)
    assert handed.refused == {stays.number: "a transaction of it has been open for more than 0 s"}
    Producer(2).send(stays, b"y")
    producer.end(stays, commit=True)
    assert refuses(goes)


async def test_partition_with_damaged_records_is_refused(pair: Pair) -> None:
    bad, good = await pair.topic("t", 2)
    append(bad)
    append(good)
    await pair.first.log.commit_log.wait_until_committed()
    pair.first.log.segments.cutter.damaged[bad.number] = 5
    handed = await pair.first.log.hand_over(numbers_of(bad, good))
    assert handed.ready == numbers_of(good)
    assert "from offset 0 on cannot be cut" in handed.refused[bad.number]
    assert not refuses(bad)


async def test_partitions_that_are_not_led_here_are_refused(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await pair.move(numbers_of(partition), 2)
    handed = await pair.first.log.hand_over([partition.number, 99])
    assert not handed.ready
    assert handed.refused == dict.fromkeys([partition.number, 99], "broker 1 does not lead it")


async def replicated(pair: Pair, **configs: str) -> Partition:
    """Create a partition that can be moved when its records are uploaded. The own disk is its only
    replica."""
    log = pair.first.log.commit_log
    log.follower_sink.update("")
    log.follower_sink.when_written(lambda: log.follower_sink.commit(log.disk_sink.committed))
    (partition,) = await pair.topic("t", 1, durability="replicated", **configs)
    return partition


def upload(pair: Pair, partition: Partition) -> None:
    """Have the remote tier contain everything of the segments of a partition."""
    partition.commit_offset = partition.cut_offset
    store = pair.first.log.segments.store
    for segment_id in partition.segments.segment:
        segment = store.get_segment(segment_id)
        segment.row = replace(segment.row, object=segment.row.uuid)


def is_uploaded(pair: Pair, partition: Partition) -> bool:
    """Whether the remote tier has the segments of a partition that its next leader will read."""
    store = pair.first.log.segments.store
    return all(store.get_segment(each).row.object for each in partition.segments.segment)


async def test_partition_is_ready_when_everything_is_uploaded(pair: Pair) -> None:
    """Older records are uploaded while appends are served, the last ones afterwards."""
    partition = await replicated(pair)
    asked: list[tuple[Set[int], bool]] = []
    pair.first.log.segments.remote.attach_uploads(
        lambda numbers: asked.append((numbers, partition.closed))
    )
    append(partition, b"older")
    await pair.first.log.commit_log.wait_until_committed()
    moving = asyncio.ensure_future(pair.first.log.hand_over(numbers_of(partition)))
    for cut, closed in ((1, False), (2, True)):
        # More than once: segments that are registered later need another call.
        await until(lambda: asked.count(({partition.number}, closed)) > 1)  # noqa: B023
        assert partition.cut_offset == cut
        assert not moving.done()
        if not closed:
            append(partition, b"meanwhile")
        upload(pair, partition)
    handed = await moving
    assert handed.ready == numbers_of(partition)
    assert refuses(partition)
    (moved,) = await pair.move(handed.ready, 2)
    assert await read_all(moved) == [(0, b"older"), (1, b"meanwhile")]


@pytest.mark.parametrize("limit", ["UPLOAD_S", "CLOSED_S"])
async def test_failed_upload_leaves_everything_as_it_was(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Uploads fail at once, or after the older records are uploaded."""
    partition = await replicated(pair)
    closed: list[bool] = []
    sent = [b"older"]

    def fails(_: Set[int]) -> None:
        closed.append(partition.closed)
        if limit == "CLOSED_S" and not partition.closed:
            sent.append(b"meanwhile")
            append(partition, b"meanwhile")
            upload(pair, partition)

    pair.first.log.segments.remote.attach_uploads(fails)
    append(partition, b"older")
    await pair.first.log.commit_log.wait_until_committed()
    with monkeypatch.context() as patch:
        patch.setattr(handover, limit, 0.5)
        with pytest.raises(TimeoutError):
            await pair.first.log.hand_over(numbers_of(partition))
    assert closed[-1] == (limit == "CLOSED_S")
    producer = Producer(1)
    producer.send(partition, b"after")
    producer.end(partition, commit=True)
    pair.first.log.segments.remote.attach_uploads(lambda _: upload(pair, partition))
    handed = await pair.first.log.hand_over(numbers_of(partition))
    (moved,) = await pair.move(handed.ready, 2)
    assert [value for _, value in await committed_records(moved)] == [*sent, b"after"]


async def uploaded_and_dirty() -> tuple[Pair, Partition]:
    """Return a compacted partition whose only segment is uploaded, and not cleaned yet."""
    pair = Pair()
    await pair.start(log_cleaner_dedupe_buffer_size=1 << 16)
    partition = await replicated(pair, cleanup_policy="compact")
    pair.first.log.segments.remote.attach_uploads(lambda _: upload(pair, partition))
    await fill(partition, 20)
    # A hand-over that is called off has cut everything.
    pair.first.log.resume((await pair.first.log.hand_over(numbers_of(partition))).ready)
    assert partition.commit_offset == partition.cut_offset == 40
    return pair, partition


async def test_segment_that_a_cleaning_replaces_is_uploaded_before_the_leader_changes() -> None:
    """The offsets are uploaded, but not the segment in which the next leader would read them."""
    pair, partition = await uploaded_and_dirty()
    before = partition.segments.segment[0]
    pair.first.log.segments.remote.attach_uploads(lambda _: None)
    await clean(pair)
    assert partition.segments.segment[0] != before
    assert partition.commit_offset == partition.cut_offset
    moving = asyncio.ensure_future(pair.first.log.hand_over(numbers_of(partition)))
    asked: list[Set[int]] = []
    pair.first.log.segments.remote.attach_uploads(asked.append)
    await until(lambda: moving.done() or len(asked) > 1)
    assert not moving.done()
    upload(pair, partition)
    assert (await moving).ready == numbers_of(partition)


@pytest.mark.parametrize("kind", ["cleaning", "merge"])
async def test_nothing_replaces_segments_between_the_upload_and_the_change_of_leader(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that began before writes a segment that the next leader could not read."""
    pair, partition = await uploaded_and_dirty()
    segments = pair.first.log.segments
    before = list(partition.segments.segment)
    if kind == "merge":
        segments.store.get_segment(before[0]).payload_bytes = 1 << 30  # most of it is dead
    offload = pair.first.env.offload
    assert isinstance(offload, InlineOffload)
    offload.hold("worker")
    rewriting = asyncio.ensure_future(
        segments.cleaner.run() if kind == "cleaning" else segments.tend()
    )
    await until(lambda: bool(offload.held))
    handed = await pair.first.log.hand_over(numbers_of(partition))
    assert handed.ready == numbers_of(partition)
    with caplog.at_level(logging.INFO):
        offload.release("worker")
        await rewriting
    assert caplog.text.count("segments changed during") == 1, "it is not repeated at once"
    assert list(partition.segments.segment) == before
    assert is_uploaded(pair, partition)
    assert len(pair.fs.listdir("/data/brokers/1/segments")) == 1, "the new file is removed"
    # The leader has not changed: it may be replaced again.
    pair.first.log.resume(handed.ready)
    await clean(pair)
    assert list(partition.segments.segment) != before


async def clean(pair: Pair) -> None:
    (partition,) = pair.first.log.partitions.values()
    pair.first.log.segments.cleaner.note_partitions(numbers_of(partition))
    await pair.first.log.segments.cleaner.run()


async def test_unused_partitions_need_no_work(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await pair.first.log.checkpoint()
    before = pair.first.log.journals.active
    handed = await pair.first.log.hand_over(numbers_of(partition))
    assert handed.ready == numbers_of(partition)
    assert pair.first.log.journals.active is before
    assert not await pair.first.log.unloader.run(0), "it would be loaded again, and take appends"
