"""Idempotence: the state that a partition keeps of each producer (protocol.md section 4)."""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.producers import Producers, last_sequence
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.log.logs import World, batch, read_all

PRODUCER = 7


def stored(producers: Producers, *firsts: int, epoch: int = 0) -> None:
    """Batches of two records that were written."""
    for first in firsts:
        last = last_sequence(first, 2)
        assert producers.check(PRODUCER, epoch, first, last) is None
        producers.queue(PRODUCER, epoch, first, last, first * 10, EPOCH_MS + first)
        producers.depart()
        producers.apply_in_flight()


def head(first: int, count: int, base_offset: int) -> tuple[int, ...]:
    """The head of a batch of the producer in the log."""
    return (
        base_offset, 0, 0, 2, 0, 0, count - 1, EPOCH_MS, EPOCH_MS, PRODUCER, 0, first, count,
    )  # fmt: skip


def refused(producers: Producers, epoch: int, first: int, last: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(PRODUCER, epoch, first, last)
    return caught.value.code


def test_unknown_producer_may_begin_at_any_sequence() -> None:
    producers = Producers()
    assert producers.check(PRODUCER, 3, 42, 42) is None


def test_next_sequence_must_follow_last() -> None:
    producers = Producers()
    stored(producers, 0, 2)
    assert producers.check(PRODUCER, 0, 4, 4) is None
    assert refused(producers, 0, 5, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, 0, 3, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_duplicates_of_last_five_batches_get_original_offsets() -> None:
    producers = Producers()
    stored(producers, 0, 2, 4, 6, 8, 10)
    for first in (2, 4, 6, 8, 10):
        assert producers.check(PRODUCER, 0, first, first + 1) == (first * 10, EPOCH_MS + first)
    assert refused(producers, 0, 0, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, 0, 10, 12) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_around() -> None:
    producers = Producers()
    first = (1 << 31) - 1
    assert last_sequence(first, 2) == 0
    stored(producers, first)
    assert producers.check(PRODUCER, 0, 1, 1) is None
    assert producers.check(PRODUCER, 0, first, 0) is not None


def test_epochs_only_increase_and_restart_sequence() -> None:
    producers = Producers()
    stored(producers, 0, 2, epoch=5)
    assert refused(producers, 4, 4, 4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(producers, 6, 4, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    stored(producers, 0, epoch=6)
    assert producers.check(PRODUCER, 6, 2, 2) is None
    assert refused(producers, 5, 4, 4) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_queued_batches_count_until_they_fail() -> None:
    producers = Producers()
    stored(producers, 0)
    producers.queue(PRODUCER, 0, 2, 3, 20, EPOCH_MS)
    assert producers.check(PRODUCER, 0, 2, 3) == (20, EPOCH_MS)
    producers.depart()
    assert producers.check(PRODUCER, 0, 2, 3) == (20, EPOCH_MS)
    producers.queue(PRODUCER, 0, 4, 5, 40, EPOCH_MS)
    producers.rollback()
    assert producers.check(PRODUCER, 0, 2, 3) is None
    assert producers.check(PRODUCER, 0, 0, 1) == (0, EPOCH_MS)


def test_written_batch_keeps_state_of_later_queued_one() -> None:
    producers = Producers()
    producers.queue(PRODUCER, 0, 0, 0, 0, EPOCH_MS)
    producers.depart()
    producers.queue(PRODUCER, 0, 1, 1, 1, EPOCH_MS)
    producers.apply_in_flight()
    assert producers.check(PRODUCER, 0, 1, 1) == (1, EPOCH_MS)
    producers.depart()
    producers.apply_in_flight()
    assert producers.check(PRODUCER, 0, 2, 2) is None


def test_producer_state_survives_checkpoint() -> None:
    producers, again = Producers(), Producers()
    stored(producers, 0, 2, 4)
    again.load(producers.entries())
    assert again.states == producers.states


def test_replay_of_checkpointed_batches_changes_nothing() -> None:
    producers = Producers()
    stored(producers, 0, 2)
    before = dict(producers.states)
    producers.replay(head(0, 2, 0))
    assert producers.states == before
    producers.replay(head(4, 2, 40))
    assert producers.check(PRODUCER, 0, 6, 6) is None


def test_idle_producers_expire() -> None:
    producers = Producers()
    stored(producers, 0)
    producers.queue(8, 0, 0, 0, 5, EPOCH_MS - 100)
    assert producers.expire(EPOCH_MS) == []
    assert producers.expire(EPOCH_MS + 1) == [PRODUCER]
    assert producers.check(PRODUCER, 0, 99, 99) is None
    assert producers.check(8, 0, 0, 0) is not None


def numbered(sequence: int, *values: bytes) -> memoryview:
    return batch(
        *(values or (b"x",)), producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
    )


async def test_duplicate_in_same_write_batch_is_stored_once() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("commit")
    first = partition.append(numbered(0), EPOCH_MS)
    again = partition.append(numbered(0), EPOCH_MS)
    assert (first.base_offset, again.base_offset) == (0, 0)
    for _ in range(5):
        await asyncio.sleep(0)
    late = partition.append(numbered(0), EPOCH_MS)
    answered: list[BaseException | None] = []
    log.commit_log.after_commit(answered.append)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (late.base_offset, answered) == (0, [])
    world.env.offload.release("commit")
    await log.commit_log.wait_until_committed()
    assert answered == [None]
    assert await read_all(partition) == [(0, b"x")]


async def test_retry_after_failed_write_is_stored() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    partition.append(numbered(0), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    world.fs.faults.failing_writes = 1
    partition.append(numbered(1, b"again"), EPOCH_MS)
    with pytest.raises(KafkaError):
        await log.commit_log.wait_until_committed()
    assert partition.append(numbered(1, b"again"), EPOCH_MS).base_offset == 1
    await log.commit_log.wait_until_committed()
    assert await read_all(partition) == [(0, b"x"), (1, b"again")]


async def test_refused_batch_leaves_no_producer_state() -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t", max_message_bytes="300", compression_type="gzip")
    with pytest.raises(KafkaError):
        partition.append(numbered(0, world.env.random.randbytes(400)), EPOCH_MS)
    assert partition.producers.fresh == {}
    partition.append(numbered(5), EPOCH_MS)
