"""The order of append, apply, commit, answer and markers; failures of each.

Covers: kafkawire.transactions.coordinator_log.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.transactions import coordinator as coordinator_module
from kafkawire.transactions.machine.queries import describe_transaction
from kafkawire.transactions.machine.request import Answer, InitProducer, VerifyPartitions
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from tests.kit.transactions.bench import TransactionBench, no_room
from tests.kit.transactions.desk import ID, T0, T1

NOT_COORDINATOR = Answer(ErrorCode.NOT_COORDINATOR)


async def spin(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_answer_leaves_after_the_commit() -> None:
    bench = TransactionBench().begin()
    answer = bench.ask(InitProducer(ID, 60_000))
    await spin()
    assert bench.partition.states() == [EMPTY]
    assert not answer.done()
    bench.log.commit()
    assert answer.result() == Answer(ErrorCode.NONE, 1000, 0)


async def test_markers_leave_after_the_commit() -> None:
    """PrepareCommit is durable before the answer and before any marker."""
    bench = TransactionBench().begin()
    at = await bench.open(T0, T1)
    answer = bench.end(at)
    await spin()
    assert bench.state is PREPARE_COMMIT
    assert not answer.done()
    assert not bench.cluster.sent
    bench.log.commit()
    assert answer.result() == Answer(ErrorCode.NONE, at.producer_id, 1)
    await spin()
    ((broker, work),) = bench.cluster.sent
    assert (broker, work.coordinator_epoch) == (1, 7)
    assert work.partitions == {T0, T1}
    assert bench.state is COMPLETE_COMMIT
    assert bench.partition.states() == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT]


async def test_completion_asks_for_no_commit_of_its_own() -> None:
    bench = TransactionBench().begin()
    asked = []
    after_commit = bench.log.after_commit
    bench.log.after_commit = lambda fn: (asked.append(fn), after_commit(fn))[1]  # type: ignore[func-returns-value,method-assign]
    await bench.now_ended()
    assert bench.state is COMPLETE_COMMIT
    assert len(asked) == 3  # InitProducerId, AddPartitionsToTxn, EndTxn


async def test_requests_see_what_is_applied_and_wait_for_its_commit() -> None:
    bench = TransactionBench().begin()
    at = await bench.open()
    bench.end(at)
    again = bench.end(at)
    seen = asyncio.ensure_future(
        bench.coordinator.verify(VerifyPartitions(ID, at.producer_id, 1, frozenset({T0})))
    )
    shown = asyncio.ensure_future(
        bench.coordinator.read(lambda: describe_transaction(bench.coordinator.shard, ID))
    )
    await spin()
    assert not again.done()
    assert not seen.done()
    bench.log.commit()
    await spin()
    assert again.result().code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert seen.result() == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert shown.result().transaction_state == "PrepareCommit"


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_failed_append_changes_nothing(refused: ErrorCode, code: ErrorCode) -> None:
    bench = TransactionBench().begin()
    at = await bench.open()
    bench.partition.refuse = refused
    assert (await bench.end(at)) == Answer(code)
    assert bench.state is ONGOING
    bench.partition.refuse = None
    assert (await bench.add(at, T1)).code == 0


async def test_a_transaction_that_could_be_stored_can_be_ended() -> None:
    """Row: too large -> -1; the record of the end is larger, and is always taken."""
    taken = 0
    for limit in range(130, 250):
        bench = TransactionBench().begin()
        await bench.init()
        shard = bench.coordinator.shard
        shard.transactions[ID] = shard.transactions[ID]._replace(producer_epoch=32_766)
        bench.partition.config.max_message_bytes = limit
        at = Answer(ErrorCode.NONE, 1000, 32_766)
        added = await bench.add(at, T0)
        if added.code:
            assert added.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert bench.state is EMPTY
            continue
        taken += 1
        assert (await bench.now_end(at)) == Answer(ErrorCode.NONE, 1001, 0), limit
    assert 0 < taken < 120


async def test_a_failed_commit_loads_again() -> None:
    bench = TransactionBench().begin()
    at = await bench.open()
    answer = bench.end(at)
    later = bench.end(at)
    await spin()
    bench.log.fail()
    assert answer.result() == later.result() == NOT_COORDINATOR
    assert not bench.active
    assert (await bench.end(at)).code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await bench.until(lambda: bench.active)
    assert bench.state is ONGOING
    assert not bench.cluster.sent
    assert (await bench.now_end(at)).code == 0


async def test_a_failed_write_of_a_completion_loads_again() -> None:
    bench = TransactionBench().begin()
    at = await bench.open()
    await bench.now_end(at)
    await spin()
    assert bench.state is COMPLETE_COMMIT
    bench.log.fail()
    await bench.until(lambda: bench.active)
    await bench.settle()
    assert bench.state is COMPLETE_COMMIT
    assert len(bench.cluster.sent) == 2  # the markers were written again


async def test_a_defect_is_answered_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = TransactionBench().begin()
    at = await bench.open()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(TransactionShard, "decide", broken)
        assert (await bench.end(at)).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "ZeroDivisionError" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(TransactionShard, "apply", broken)
        patch.setattr(coordinator_module, "DEFECT_RETRY_MS", 0)
        assert await bench.end(at) == NOT_COORDINATOR
    await bench.until(lambda: bench.active)


async def test_producer_ids_that_cannot_be_had() -> None:
    bench = TransactionBench().begin()
    for failure, code in [
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ZeroDivisionError(), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]:
        bench.no_pids = failure
        assert (await bench.init()).code is code
    bench.no_pids = None
    assert (await bench.init()).code == 0
    assert bench.next_pid == 1001


async def test_an_unload_while_a_producer_id_is_taken() -> None:
    bench = TransactionBench().begin()
    answer = bench.ask(InitProducer(ID, 60_000))
    await bench.coordinator.close()
    assert answer.result() == NOT_COORDINATOR
    await spin()
    assert bench.partition.states() == []


async def test_markers_that_fail_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "MARKER_RETRY_MS", 0)
    bench = TransactionBench().begin()
    bench.cluster.codes[T1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    at = await bench.open(T0, T1)
    await bench.now_end(at)
    await bench.until(lambda: len(bench.cluster.sent) > 2)
    assert bench.state is PREPARE_COMMIT
    assert [work.partitions for _, work in bench.cluster.sent[:2]] == [{T0, T1}, {T1}]
    bench.cluster.codes.clear()
    await bench.until(lambda: bench.state is COMPLETE_COMMIT)


async def test_a_completion_that_cannot_be_appended_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Disk full at CompleteCommit."""
    monkeypatch.setattr(coordinator_module, "RETRY_MS", 0)
    bench = TransactionBench().begin()
    at = await bench.open()
    await bench.now_end(at)
    bench.partition.refuse = no_room().code
    await bench.settle()
    assert bench.state is PREPARE_COMMIT
    bench.partition.refuse = None
    await bench.until(lambda: bench.state is COMPLETE_COMMIT)
    assert bench.partition.states()[-1] is COMPLETE_COMMIT
    assert bench.cluster.requests == 1


async def test_fenced_markers_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = TransactionBench().begin()
    bench.cluster.codes[T0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    at = await bench.open()
    await bench.now_end(at)
    await bench.settle()
    assert bench.state is PREPARE_COMMIT
    assert "no more markers are sent" in caplog.text
    assert bench.cluster.requests == 1


async def test_overdue_transactions_are_aborted() -> None:
    bench = TransactionBench().begin()
    await bench.open()
    clock = bench.env.clock
    clock.ms += 60_000  # type: ignore[attr-defined]
    await bench.coordinator.abort_overdue()
    assert bench.state is ONGOING
    clock.ms += 1  # type: ignore[attr-defined]
    await bench.coordinator.abort_overdue()
    assert bench.state is PREPARE_ABORT
    await bench.settle()
    assert bench.state is COMPLETE_ABORT


async def test_an_overdue_transaction_at_the_last_epoch_takes_a_producer_id() -> None:
    bench = TransactionBench().begin()
    await bench.open()
    at = bench.coordinator.shard.transactions
    at[ID] = at[ID].__class__(500, 32_766, 10, ONGOING, frozenset({T0}), started_ms=0, updated_ms=0)
    bench.no_pids = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    await bench.coordinator.abort_overdue()
    assert bench.state is ONGOING
    bench.no_pids = None
    await bench.coordinator.abort_overdue()
    await bench.settle()
    assert (at[ID].producer_id, at[ID].producer_epoch) == (1001, 0)


async def test_expired_ids_are_forgotten() -> None:
    bench = TransactionBench(transactional_id_expiration_ms=500).begin()
    await bench.init()
    await bench.coordinator.expire()
    assert ID in bench.coordinator.shard.transactions
    bench.env.clock.ms += 500  # type: ignore[attr-defined]
    await bench.coordinator.expire()
    assert bench.partition.states() == [EMPTY, None]
    assert not bench.coordinator.shard.transactions
    await bench.settle()
    await bench.reload()
    assert not bench.coordinator.shard.transactions


async def test_a_full_log_expires_nothing() -> None:
    bench = TransactionBench(transactional_id_expiration_ms=500).begin()
    await bench.init()
    bench.env.clock.ms += 500  # type: ignore[attr-defined]
    bench.partition.refuse = no_room().code
    await bench.coordinator.expire()
    assert ID in bench.coordinator.shard.transactions


async def test_a_closed_coordinator_answers_so() -> None:
    bench = TransactionBench().begin()
    at = await bench.open()
    bench.log.by_itself = True
    await bench.coordinator.close()
    assert (await bench.end(at)).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError):
        await bench.coordinator.read(lambda: None)
    asked = VerifyPartitions(ID, at.producer_id, 0, frozenset({T0}))
    assert await bench.coordinator.verify(asked) == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    await bench.coordinator.abort_overdue()
    await bench.coordinator.expire()
