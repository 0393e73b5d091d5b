"""New leaders copy the segments of a decommissioned broker, so that nothing needs it any more.

Covers: kafkawire.log.segments.merge.decommissioned, kafkawire.log.segments.merge.merger.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.merge import decommissioned
from kafkawire.metadata.catalog import DECOMMISSIONING
from kafkawire.offsets.catalog.port import DELETING, LIVE, SegmentRow
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.logs import batch, read_all
from tests.kit.log.pair import Member, Pair
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.waiting import settle, until


@pytest.fixture
async def pair() -> Pair:
    made = Pair()
    await made.start()
    return made


async def fill(member: Member, *partitions: Partition, count: int = 3) -> None:
    """Append a few records and cut them."""
    for at in range(count):
        for partition in partitions:
            value = b"%d-%d" % (partition.number, partition.next_offset + at)
            partition.append(batch(value, timestamp_ms=EPOCH_MS + at), EPOCH_MS)
    await member.log.commit_log.wait_until_committed()
    await cut(member)


async def cut(member: Member) -> None:
    log = member.log
    log.journals.prepare(again=True)
    await until(lambda: bool(log.journals.ready))
    log.commit_log.roll()
    await log.commit_log.wait_until_committed()
    await until(lambda: all(each.indexed for each in log.journals if each.rolled))
    await settle()
    assert await log.segments.cut()
    await log.checkpoint()


def leave(pair: Pair, node_id: int = 1, value: str | None = "true") -> None:
    pair.configure(node_id, DECOMMISSIONING, value)


async def rows_of(member: Member, *states: int) -> list[SegmentRow]:
    return await member.storage.segments(member.node_id, states or (LIVE,), 100)


def later(member: Member, seconds: float) -> None:
    """Let the clock of a member pass the pause between two rounds, or after a failure."""
    assert isinstance(member.env.clock, SettableClock)
    member.env.clock.ms += int(seconds * 1000)


async def is_free(pair: Pair) -> bool:
    """Whether no mapping row points to a segment of broker 1, which then deletes them all."""
    if await rows_of(pair.first):
        return False
    await pair.first.log.segments.tend()
    await pair.first.log.segments.sweep(now=True)
    assert pair.fs.listdir("/data/brokers/1/segments") == []
    return not await rows_of(pair.first, LIVE, DELETING)


@pytest.mark.parametrize("used", [True, False])
async def test_new_leader_copies_segments_of_used_and_unused_partitions(
    pair: Pair, used: bool
) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    await fill(pair.first, partition)
    before = await read_all(partition)
    second = await pair.hand_over([partition.number], 2)
    if used:
        await second.find(partition.number)
    await second.log.segments.tend()
    assert not await rows_of(second), "its broker is not decommissioned"
    leave(pair)
    await second.log.segments.tend()
    assert len(await rows_of(second)) == 2
    assert (partition.number in second.log.partitions) == used
    assert await is_free(pair)
    assert await read_all(await second.find(partition.number)) == before
    assert not second.log.segments.store.others
    await second.kill()
    await second.start()
    assert await read_all(await second.find(partition.number)) == before


async def test_copies_name_the_class_generation_and_retention_of_their_source(pair: Pair) -> None:
    (partition,) = await pair.topic("t", retention_ms="60000")
    await fill(pair.first, partition)
    (source,) = await rows_of(pair.first)
    due = [each.due_ms for each in await pair.first.storage.segment_mappings([source.id])]
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    await second.log.segments.tend()
    (made,) = await rows_of(second)
    assert made.retention_class == source.retention_class
    assert made.generation == source.generation + 1
    mappings = await second.storage.segment_mappings([made.id])
    assert [each.due_ms for each in mappings] == due


async def test_aborted_transactions_stay_aborted(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    producer = Producer(7)
    for commit in (True, False, True):
        producer.send(partition, b"%d" % partition.next_offset)
        producer.end(partition, commit=commit)
    await pair.first.log.commit_log.wait_until_committed()
    await cut(pair.first)
    before = await committed_records(partition)
    assert len(before) == 2
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    await second.log.segments.tend()
    assert await is_free(pair)
    assert await committed_records(await second.find(partition.number)) == before


async def test_two_leaders_copy_their_parts_of_a_shared_segment(pair: Pair) -> None:
    third = await pair.join(3)
    one, two = await pair.topic("t", 2)
    await fill(pair.first, one, two)
    before = {each.number: await read_all(each) for each in (one, two)}
    assert len(await rows_of(pair.first)) == 1
    leave(pair)
    await pair.hand_over([one.number], 2)
    await pair.second.log.segments.tend()
    await third.log.segments.tend()
    assert not await rows_of(third)
    assert [len(each) for each in (await rows_of(pair.first), await rows_of(pair.second))] == [1, 1]
    await pair.hand_over([two.number], 3)
    later(third, decommissioned.ROUND_S)
    await third.log.segments.tend()
    assert await is_free(pair)
    for member, number in ((pair.second, one.number), (third, two.number)):
        assert await read_all(await member.find(number)) == before[number]


async def test_move_back_during_the_copy_loses_nothing(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    before = await read_all(partition)
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    run = second.env.worker.run

    async def run_and_move(*arguments: Any) -> Any:
        result = await run(*arguments)
        leave(pair, value=None)
        await pair.hand_over([partition.number], 1)
        return result

    second.env.worker.run = run_and_move  # type: ignore[method-assign, assignment]
    await second.log.segments.tend()
    await second.log.segments.swapper.check_unknown_outcomes()
    assert not await rows_of(second)
    assert pair.fs.listdir("/data/brokers/2/segments") == []
    assert await read_all(await pair.first.find(partition.number)) == before


async def test_undo_ends_it(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    await fill(pair.first, partition)
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    assert await second.log.segments.rewriter.run()
    leave(pair, value=None)
    await second.log.segments.tend()
    assert len(await rows_of(second)) == len(await rows_of(pair.first)) == 1


async def test_brokers_that_leave_themselves_copy_nothing(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    leave(pair, 2)
    await second.log.segments.tend()
    assert not await rows_of(second)


async def test_failed_copy_is_repeated_later(pair: Pair) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    second = await pair.hand_over([partition.number], 2)
    leave(pair)
    run = second.env.worker.run

    async def fails(*_: Any) -> Any:
        raise WorkerError("killed")

    second.env.worker.run = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(WorkerError):
        await second.log.segments.tend()
    second.env.worker.run = run  # type: ignore[method-assign]
    await second.log.segments.tend()
    assert not await rows_of(second)
    later(second, 60)
    await second.log.segments.tend()
    assert len(await rows_of(second)) == 1
    assert await is_free(pair)


async def test_missing_file_is_reported_and_stays_with_its_broker(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = await pair.topic("t")
    await fill(pair.first, partition)
    (segment,) = pair.first.log.segments.store.by_id.values()
    second = await pair.hand_over([partition.number], 2)
    pair.fs.remove(segment.path)
    leave(pair)
    await second.log.segments.tend()
    assert f"segment {segment.name} of broker 1 has no file" in caplog.text
    assert len(await rows_of(pair.first)) == 1
    with pytest.raises(KafkaError) as caught:
        await read_all(await second.find(partition.number))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


async def test_ranges_of_deleted_topics_are_not_copied(pair: Pair) -> None:
    gone, kept = [(await pair.topic(name))[0] for name in ("gone", "kept")]
    await fill(pair.first, gone, kept)
    second = await pair.hand_over([gone.number, kept.number], 2)
    await pair.first.metadata.delete_topics([gone.topic_id])
    second.catalog.remove_topic(gone.topic_id)
    leave(pair)
    await second.log.segments.tend()
    (made,) = await rows_of(second)
    mappings = await second.storage.segment_mappings([made.id])
    assert [each.number for each in mappings] == [kept.number]


async def test_many_segments_are_read_in_slices(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decommissioned, "PAGE", 2)
    monkeypatch.setattr(decommissioned, "PAGES_AT_ONCE", 1)
    here, there = await pair.topic("t", 2)
    for _ in range(5):
        await fill(pair.first, there)
    await fill(pair.first, here)
    second = await pair.hand_over([here.number], 2)
    leave(pair)
    asked: list[int] = []
    segments = second.storage.segments

    async def counted(*arguments: Any) -> Any:
        asked.append(arguments[0])
        return await segments(*arguments)

    find = second.log.segments.rewriter._decommissioned
    second.storage.segments = counted  # type: ignore[method-assign, assignment]
    for _ in range(2):
        assert await find.next_segment(()) is None
    assert asked == [1, 1]
    found = await find.next_segment(())
    assert found is not None
    assert found.row.node_id == 1
    assert await find.next_segment((found.row.id,)) is None
    assert await find.next_segment((found.row.id,)) is None, "the end of the round"
    for _ in range(4):
        assert await find.next_segment((found.row.id,)) is None
    calls = len(asked)
    assert await find.next_segment((found.row.id,)) is None
    assert len(asked) == calls, "nothing was found in the last round, so there is a pause"
