"""Transactions whose coordinator moves to another broker, at every moment of a commit.

A coordinator that has resigned sends no marker, appends nothing and takes no result any more; the
next one, of a higher coordinator epoch, ends what was decided.

Covers: kafkawire.transactions.coordinator, kafkawire.transactions.marker_sender.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.transactions import coordinator as coordinator_module
from kafkawire.transactions.coordinator import TransactionCoordinator
from kafkawire.transactions.machine.request import Answer, InitProducer
from kafkawire.transactions.machine.transaction import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
)
from kafkawire.transactions.marker_sender import MAX_MARKERS_AT_ONCE, MarkerSender
from tests.kit.transactions.bench import TransactionBench
from tests.kit.transactions.desk import ID, T0, T1
from tests.transactions.test_service import HERE, Place, transact

NOT_COORDINATOR = Answer(ErrorCode.NOT_COORDINATOR)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def spin(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def silent(bench: TransactionBench, old: TransactionCoordinator) -> None:
    """Check that a coordinator has no effect any more."""
    appended, sent = len(bench.partition.batches), list(bench.cluster.sent)
    for _ in range(3):
        bench.log.commit()
        await spin()
    assert old.phase is CoordinatorPhase.RESIGNED
    assert (len(bench.partition.batches), bench.cluster.sent) == (appended, sent)
    await old.abort_overdue()
    await old.expire()
    assert await old.answer_request(InitProducer(ID, 60_000)) == NOT_COORDINATOR
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        await old.read(lambda: None)
    assert len(bench.partition.batches) == appended


async def moved(bench: TransactionBench) -> TransactionCoordinator:
    """Let another broker load what is committed; the coordinator that has resigned."""
    old = bench.coordinator
    bench.partition.lose_uncommitted()
    bench.partition.leader_epoch += 1
    bench.sender = MarkerSender(bench.env, bench.cluster)
    bench.coordinator = bench.make()
    await bench.coordinator.load(0)
    assert bench.active
    return old


async def test_an_outcome_that_is_not_durable_sends_no_markers() -> None:
    bench = TransactionBench().begin()
    at = await bench.open(T0, T1)
    answer = bench.end(at)
    await spin()
    bench.coordinator.resign()
    assert answer.result() == NOT_COORDINATOR
    await silent(bench, bench.coordinator)
    assert not bench.cluster.sent


async def test_markers_that_wait_are_not_sent() -> None:
    """A request is on its way to the broker; what is queued after it is not sent."""
    bench = TransactionBench().begin()
    bench.cluster.held = asyncio.Event()
    at = await bench.open(T0)
    await bench.now_end(at)
    await spin()
    assert bench.cluster.requests == 1
    many = frozenset(("t", n) for n in range(MAX_MARKERS_AT_ONCE * 3))
    work = bench.cluster.sent[0][1]._replace(partitions=many)
    bench.sender.send(work, bench.coordinator.markers_done)
    bench.sender.send(work._replace(partitions=frozenset({T1})), bench.coordinator.markers_done)
    bench.coordinator.resign()
    bench.cluster.held.set()
    await silent(bench, bench.coordinator)
    assert bench.cluster.requests == 1
    assert bench.sender.waiting == 0
    assert bench.partition.states() == [EMPTY, ONGOING, PREPARE_COMMIT]
    old = await moved(bench)
    await bench.until(lambda: bench.state is COMPLETE_COMMIT)
    epochs = [work.coordinator_epoch for _, work in bench.cluster.sent]
    assert epochs == [7, 8]
    await silent(bench, old)


async def test_markers_that_failed_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "MARKER_RETRY_MS", 1)
    bench = TransactionBench().begin()
    bench.cluster.codes[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    await bench.now_end(await bench.open(T0))
    await bench.until(lambda: bench.cluster.requests > 0)
    bench.coordinator.resign()
    seen = bench.cluster.requests
    await asyncio.sleep(0.02)
    await silent(bench, bench.coordinator)
    assert bench.cluster.requests == seen


async def test_an_id_that_waits_for_a_producer_id_is_answered() -> None:
    bench = TransactionBench().begin()
    answer = bench.ask(InitProducer(ID, 60_000))
    bench.coordinator.resign()
    assert await answer == NOT_COORDINATOR
    await silent(bench, bench.coordinator)
    assert not bench.partition.batches


async def test_markers_of_a_load_are_not_sent_after_it_has_resigned() -> None:
    bench = TransactionBench().begin()
    bench.cluster.codes[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    await bench.now_end(await bench.open(T0))
    await bench.until(lambda: bench.cluster.requests > 0)
    bench.coordinator.resign()
    bench.coordinator = bench.make()
    bench.cluster.sent.clear()
    await bench.coordinator.load(0)
    bench.coordinator.resign()  # before the task that sends them again begins
    await silent(bench, bench.coordinator)
    assert not bench.cluster.sent


async def test_overdue_transactions_are_left_to_the_next_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = TransactionBench().begin()
    await bench.open(T0)
    bench.env.clock.ms += 60_001  # type: ignore[attr-defined]
    overdue = bench.coordinator._overdue

    async def resigned_meanwhile() -> list[str]:
        found = await overdue()
        assert found == [ID]
        bench.coordinator.resign()
        return found

    monkeypatch.setattr(bench.coordinator, "_overdue", resigned_meanwhile)
    await bench.coordinator.abort_overdue()
    assert bench.partition.states() == [EMPTY, ONGOING]


async def test_the_service_loses_and_gains_partitions() -> None:
    place = Place()
    service = place.service
    await service.open()
    assert (await transact(place)).code is ErrorCode.NONE
    await service.resign([1])
    assert await service.answer_request(InitProducer(HERE, 60_000)) == NOT_COORDINATOR
    assert (await service.describe(HERE)).error_code == ErrorCode.NOT_COORDINATOR
    await service.lead([1])
    assert await service.answer_request(InitProducer(HERE, 60_000)) == Answer(LOADING)
    assert (await service.describe(HERE)).error_code == LOADING
    for _ in range(200):
        if not service.gained and all(
            each.phase is CoordinatorPhase.ACTIVE for each in service.list_led()
        ):
            break
        await asyncio.sleep(0)
    assert (await service.describe(HERE)).transaction_state == "CompleteCommit"
    assert (await service.answer_request(InitProducer(HERE, 60_000))).code is ErrorCode.NONE
    await service.close()
