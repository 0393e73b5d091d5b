"""Commits through log objects: order, linger, retries, refusals, the end by another life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append import object_sink as module
from kafkawire.log.append.object_sink import Gathered
from kafkawire.log.io.ports import Superseded
from kafkawire.log.partition.partition import Partition
from kafkawire.objectstore.errors import StoreError
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.logs import World, batch
from tests.kit.waiting import until


class Writer:
    """Stores when the test says so. `begun`: the objects by sequence number."""

    def __init__(self) -> None:
        self.begun: dict[int, Gathered] = {}
        self.answers: dict[int, asyncio.Future[None]] = {}
        self.attempts: list[int] = []

    async def store(self, sequence: int, gathered: Gathered) -> None:
        self.attempts.append(sequence)
        self.begun[sequence] = gathered
        self.answers[sequence] = asyncio.get_running_loop().create_future()
        await self.answers[sequence]

    def answer(self, sequence: int, failure: Exception | None = None) -> None:
        if failure is None:
            self.answers[sequence].set_result(None)
        else:
            self.answers[sequence].set_exception(failure)


class Fixture:
    """A log with a topic of durability=s3 and one of durability=local."""

    def __init__(self, world: World, remote: Partition, local: Partition) -> None:
        self.world, self.remote, self.local = world, remote, local
        self.log = world.log.commit_log
        self.writer = Writer()
        self.retained: list[int] = []
        self.reasons: list[str] = []
        self.log.object_sink.start(
            self.writer, lambda sequence, _: self.retained.append(sequence), self.reasons.append
        )

    def append(self, partition: Partition, value: bytes = b"v") -> list[BaseException | None]:
        """Append a record; return the list that its commit adds None or the failure to."""
        answered: list[BaseException | None] = []
        partition.append(batch(value), EPOCH_MS)
        partition.after_commit(answered.append)
        return answered

    def completed(self, count: int) -> bool:
        return self.log.object_sink.stored_objects == count

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(500):
            if condition():
                return
            await self.world.env.sleep(0)
        raise AssertionError("the condition was not met")


@pytest.fixture
async def fixture() -> AsyncIterator[Fixture]:
    world = World(log_object_linger_ms=0)
    await world.start()
    (remote,) = await world.topic("remote", durability="s3")
    (local,) = await world.topic("local")
    yield Fixture(world, remote, local)
    await world.abandon()


async def test_record_is_committed_when_its_object_is_stored(fixture: Fixture) -> None:
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: fixture.writer.begun)
    await fixture.log.disk_sink.wait_until_durable()
    assert (fixture.remote.next_offset, fixture.remote.high_watermark, answered) == (1, 0, [])
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    assert (answered, fixture.remote.high_watermark, fixture.retained) == ([None], 1, [0])


async def test_other_topics_do_not_wait_for_objects(fixture: Fixture) -> None:
    fixture.append(fixture.remote)
    answered = fixture.append(fixture.local)
    await fixture.until(lambda: answered)
    assert (answered, fixture.local.high_watermark) == ([None], 1)
    assert fixture.remote.high_watermark == 0


async def test_caller_waits_for_several_sinks(fixture: Fixture) -> None:
    answered: list[BaseException | None] = []
    local = fixture.append(fixture.local)
    fixture.remote.append(batch(b"v"), EPOCH_MS)
    fixture.log.call_when_durable((fixture.local.sink, fixture.remote.sink), answered.append)
    await fixture.until(lambda: local and fixture.writer.begun)
    assert (fixture.local.high_watermark, answered) == (1, [])
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    assert (answered, fixture.remote.high_watermark) == ([None], 1)


async def test_objects_complete_in_order(fixture: Fixture) -> None:
    first = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    second = fixture.append(fixture.remote)
    await fixture.until(lambda: 1 in fixture.writer.begun)
    fixture.writer.answer(1)
    await fixture.until(lambda: fixture.writer.begun[1].stored)
    assert (first, second, fixture.remote.high_watermark, fixture.retained) == ([], [], 0, [])
    fixture.writer.answer(0)
    await fixture.until(lambda: second)
    assert (first, second, fixture.retained) == ([None], [None], [0, 1])
    assert fixture.remote.high_watermark == 2


async def test_at_most_so_many_objects_are_stored_concurrently(fixture: Fixture) -> None:
    for at in range(module.MAX_STORING):
        fixture.append(fixture.remote)
        await fixture.until(partial(fixture.writer.begun.__contains__, at))
    waiting = [fixture.append(fixture.remote) for _ in range(3)]
    await fixture.log.disk_sink.wait_until_durable()
    assert len(fixture.writer.begun) == module.MAX_STORING
    fixture.writer.answer(0)
    await fixture.until(lambda: module.MAX_STORING in fixture.writer.begun)
    ends = fixture.writer.begun[module.MAX_STORING].ends
    assert ends == {fixture.remote: module.MAX_STORING + 3}
    for at in range(1, module.MAX_STORING + 1):
        fixture.writer.answer(at)
    await fixture.until(lambda: waiting[-1])
    assert waiting == [[None]] * 3


async def test_failed_attempt_is_repeated_under_the_same_number(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "wait_s", lambda *_: 0.0)
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    fixture.writer.answer(0, StoreError("SlowDown", "later"))
    await fixture.until(lambda: fixture.writer.attempts == [0, 0])
    assert (answered, fixture.log.object_sink.failed_puts) == ([], 1)
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    assert answered == [None]


async def test_log_that_was_ended_takes_nothing_more(fixture: Fixture) -> None:
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    later = fixture.append(fixture.remote)
    fixture.writer.answer(0, Superseded("broker 1 was started elsewhere"))
    await fixture.until(lambda: answered and later)
    for (failure,) in (answered, later):
        assert isinstance(failure, KafkaError)
        assert failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fixture.reasons == ["broker 1 was started elsewhere"]
    assert fixture.remote.high_watermark == 0
    with pytest.raises(KafkaError):
        fixture.remote.append(batch(b"no"), EPOCH_MS)


async def test_produces_are_refused_while_too_much_is_unreleased(fixture: Fixture) -> None:
    objects = fixture.log.object_sink
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    objects.note_retained(fixture.world.config.log_unreleased_max_bytes)
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    with pytest.raises(KafkaError) as refused:
        fixture.remote.append(batch(b"no"), EPOCH_MS)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    fixture.local.append(batch(b"yes"), EPOCH_MS)
    objects.note_released(3, fixture.world.config.log_unreleased_max_bytes)
    assert objects.released_objects == 3
    fixture.remote.append(batch(b"yes"), EPOCH_MS)


async def test_batches_are_refused_until_the_storage_is_usable(fixture: Fixture) -> None:
    fixture.log.object_sink.refuse_batches("the storage ignores conditions")
    with pytest.raises(KafkaError, match="ignores") as refused:
        fixture.remote.append(batch(b"no"), EPOCH_MS)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    fixture.local.append(batch(b"yes"), EPOCH_MS)
    fixture.log.object_sink.start(fixture.writer, lambda *_: None, fixture.reasons.append)
    fixture.remote.append(batch(b"yes"), EPOCH_MS)


async def test_object_names_at_most_so_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 4)
    world = World(log_object_linger_ms=0)
    await world.start()
    partitions = await world.topic("remote", 10, durability="s3")
    fixture = Fixture(world, partitions[0], partitions[1])
    answers = [fixture.append(partition) for partition in partitions]
    await fixture.until(lambda: len(fixture.writer.begun) == 3)
    assert [len(each.ends) for each in fixture.writer.begun.values()] == [4, 4, 2]
    for at in range(3):
        fixture.writer.answer(at)
    await fixture.until(lambda: all(answers))
    assert answers == [[None]] * 10
    await world.abandon()


async def test_adjacent_frames_are_one_span(fixture: Fixture) -> None:
    for _ in range(3):
        fixture.append(fixture.remote)
        await fixture.log.disk_sink.wait_until_durable()
        await fixture.until(lambda: True)
    spans = [len(each.spans) for each in fixture.writer.begun.values()]
    assert spans
    assert all(count == 1 for count in spans)


async def test_closing_stores_what_was_appended_and_refuses_more(fixture: Fixture) -> None:
    answered = fixture.append(fixture.remote)
    closing = asyncio.ensure_future(fixture.log.object_sink.close())
    await fixture.until(lambda: 0 in fixture.writer.begun)
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            fixture.remote.append(batch(b"no"), EPOCH_MS)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not fixture.writer.answers[0].done():
            fixture.writer.answer(0)
            await fixture.until(closing.done)
    assert await closing
    assert answered == [None]
    local = fixture.append(fixture.local)
    await fixture.until(lambda: local)
    assert local == [None]


async def test_closing_answers_what_cannot_be_stored_in_time(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.001)
    answered = fixture.append(fixture.remote)
    assert not await fixture.log.object_sink.close()
    (failure,) = answered
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert fixture.remote.high_watermark == 0
    fixture.writer.answer(0)  # too late: nothing is acknowledged any more
    await fixture.until(lambda: fixture.writer.begun[0].stored)
    assert (answered, fixture.remote.high_watermark) == ([failure], 0)


async def test_produces_are_refused_while_a_storage_does_not_answer(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSE_AFTER_S", 0.02)
    monkeypatch.setattr(module, "MIN_WATCH_S", 0.001)
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    assert fixture.log.object_sink.refusal is None
    clock = fixture.world.env.clock
    assert isinstance(clock, SettableClock)
    clock.ms += 20
    await until(lambda: fixture.log.object_sink.refusal is not None)
    with pytest.raises(KafkaError) as refused:
        fixture.remote.append(batch(b"no"), EPOCH_MS)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert answered == []
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    assert (answered, fixture.log.object_sink.refusal) == ([None], None)
    fixture.append(fixture.remote)


async def test_object_has_at_most_so_many_bytes(fixture: Fixture) -> None:
    """While as many objects as possible are being stored, frames are gathered for several."""
    fixture.log.object_sink._max_bytes = 1000
    for at in range(module.MAX_STORING):
        fixture.append(fixture.remote)
        await fixture.until(partial(fixture.writer.begun.__contains__, at))
    for _ in range(20):
        fixture.append(fixture.remote, bytes(300))
        await fixture.log.disk_sink.wait_until_durable()
    stored = 0
    while stored < len(fixture.writer.begun):
        fixture.writer.answer(stored)
        stored += 1
        await fixture.until(partial(fixture.completed, stored))
    assert max(each.size_bytes for each in fixture.writer.begun.values()) < 2000
    assert fixture.remote.high_watermark == module.MAX_STORING + 20


async def test_defect_of_the_writer_is_an_attempt_that_failed(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no later object would ever be acknowledged, without a word."""
    monkeypatch.setattr(module, "wait_s", lambda *_: 0.0)
    answered = fixture.append(fixture.remote)
    await fixture.until(lambda: 0 in fixture.writer.begun)
    fixture.writer.answer(0, KeyError(3))
    await fixture.until(lambda: fixture.writer.attempts == [0, 0])
    fixture.writer.answer(0)
    await fixture.until(lambda: answered)
    assert answered == [None]


async def test_readers_of_such_topics_cause_no_fsync(fixture: Fixture) -> None:
    fixture.remote.watch(lambda _: None)
    fixture.append(fixture.remote)
    await fixture.until(lambda: fixture.writer.begun)
    assert not fixture.log.disk_sink._wanted
    fixture.local.watch(lambda _: None)
    fixture.local.append(batch(b"v"), EPOCH_MS)
    await fixture.until(lambda: fixture.local.high_watermark)
