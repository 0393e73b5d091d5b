"""Actions of the coordinator itself: markers, timeouts, expiry, loading. Rows of section 1.6."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.decision import DropMarkers, MarkersWritten, SendMarkers
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
)
from tests.kit.transactions.desk import (
    EPOCH,
    ID,
    NEXT_PID,
    NOW_MS,
    PID,
    T0,
    T1,
    Desk,
    TransactionSettings,
    some,
)

BOTH = frozenset({T0, T1})


def prepared(state: TransactionState = PREPARE_COMMIT) -> Desk:
    """A decided transaction of two partitions, its markers queued."""
    desk = Desk().has(some(state, partitions=BOTH))
    desk.carry_out(desk.shard.decide_resumed(ID, NOW_MS))
    return desk


def answered(desk: Desk, work: SendMarkers, **codes: ErrorCode | None) -> None:
    results = {("t", int(name[1:])): code for name, code in codes.items()}
    desk.carry_out(desk.shard.decide_markers(work, results, desk.now_ms))


# -- markers --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_all_markers_complete_it(state: TransactionState) -> None:
    """Row: markers written to all partitions."""
    desk = prepared(state)
    (work,) = desk.work
    answered(desk, work, t0=ErrorCode.NONE)
    assert desk.at.state is state
    assert desk.shard.pending == {ID: {T1}}
    desk.now_ms += 10
    answered(desk, work, t1=ErrorCode.NONE)
    after = desk.at
    assert after.state is (COMPLETE_COMMIT if state is PREPARE_COMMIT else COMPLETE_ABORT)
    assert after.partitions == frozenset()
    assert (after.started_ms, after.updated_ms) == (NOW_MS - 100, NOW_MS + 10)
    assert not desk.shard.pending
    assert len(desk.appended) == 1


@pytest.mark.parametrize(
    "code",
    [None, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT],
)
def test_partitions_without_need_are_taken_out(code: ErrorCode | None) -> None:
    """Rows: 35; no leader in the metadata (deleted topic)."""
    desk = prepared()
    answered(desk, desk.work[0], t0=code, t1=ErrorCode.NONE)
    assert desk.at.state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_other_failures_are_tried_again(code: ErrorCode) -> None:
    """Row: 3, 6, 7, 19, 20, KAFKA_STORAGE_ERROR, disconnect."""
    desk = prepared()
    first = desk.work.pop()
    answered(desk, first, t0=code, t1=ErrorCode.NONE)
    assert desk.at.state is PREPARE_COMMIT
    (again,) = desk.work
    assert again == first._replace(partitions=frozenset({T0}))
    desk.markers()
    assert desk.at.state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_newer_epoch_ends_the_work(code: ErrorCode) -> None:
    """Row: 47, 52: work dropped, the state stays until the reload."""
    desk = prepared()
    work = desk.work.pop()
    decision = desk.shard.decide_markers(work, {T0: code, T1: ErrorCode.NONE}, NOW_MS)
    assert decision.effects == [DropMarkers(work, frozenset({T0}))]
    desk.carry_out(decision)
    assert desk.at.state is PREPARE_COMMIT
    assert not desk.work
    assert desk.add(T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    desk.appended.append(TransactionRecord(ID, desk.at))
    desk.reload()
    assert desk.work == [work._replace(coordinator_epoch=8, partitions=BOTH)]
    desk.markers()
    assert desk.at.state is COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("an earlier life of the coordinator", {"coordinator_epoch": 6}),
        ("an earlier transaction", {"producer_epoch": EPOCH - 1}),
        ("a producer id before", {"producer_id": PID - 1}),
        ("another outcome", {"commit": False}),
        ("another id", {"transactional_id": "U"}),
    ],
)
def test_results_of_other_work_are_ignored(row: str, change: dict[str, int]) -> None:
    desk = prepared()
    stale = desk.work[0]._replace(**change)  # type: ignore[arg-type]
    decision = desk.shard.decide_markers(stale, dict.fromkeys(BOTH, ErrorCode.NONE), NOW_MS)
    assert (decision.steps, decision.effects) == ([], []), row


def test_a_result_may_come_twice() -> None:
    desk = prepared()
    (work,) = desk.work
    answered(desk, work, t0=ErrorCode.NONE)
    again = desk.shard.decide_markers(work, {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, NOW_MS)
    assert (again.steps, again.effects) == ([], [])
    answered(desk, work, t1=ErrorCode.NONE)
    again = desk.shard.decide_markers(work, dict.fromkeys(BOTH, ErrorCode.NONE), NOW_MS)
    assert (again.steps, again.effects) == ([], [])


def test_a_decision_changes_nothing() -> None:
    desk = prepared()
    before, remaining = desk.at, set(desk.shard.pending[ID])
    decision = desk.shard.decide_markers(desk.work[0], dict.fromkeys(BOTH, ErrorCode.NONE), 9)
    assert decision.steps[0] == MarkersWritten(ID, BOTH)
    assert desk.at is before
    assert desk.shard.pending[ID] == remaining


# -- timeouts -------------------------------------------------------------------------------


@pytest.mark.parametrize("tv", [0, 1, 2])
def test_an_overdue_transaction_is_aborted_with_one_bump(tv: int) -> None:
    """Row: timeout, strictly after; conversation 20."""
    desk = Desk(TransactionSettings(transaction_version=tv))
    desk.has(some(ONGOING, started_ms=NOW_MS, timeout_ms=1000))
    desk.now_ms = NOW_MS + 1000
    assert desk.time_out() == []
    desk.now_ms += 1
    assert desk.time_out() == [ID]
    assert desk.at.state is PREPARE_ABORT
    assert desk.at.producer_epoch == EPOCH + 1
    assert desk.time_out() == []  # while markers are under way
    assert desk.markers()[0].producer_epoch == EPOCH + 1
    assert desk.time_out() == []
    assert desk.at.producer_epoch == EPOCH + 1
    assert desk.at.started_ms == NOW_MS


@pytest.mark.parametrize("state", [state for state in TransactionState if state is not ONGOING])
def test_only_open_transactions_time_out(state: TransactionState) -> None:
    desk = Desk().has(some(state, started_ms=0, timeout_ms=1))
    assert desk.time_out() == []
    assert desk.shard.decide_timeout(ID, NOW_MS).steps == []


def test_two_phase_commit_does_not_time_out() -> None:
    desk = Desk().has(some(ONGOING, started_ms=0, timeout_ms=NO_TIMEOUT_MS))
    desk.now_ms = 1 << 60
    assert desk.time_out() == []


def test_a_decision_to_abort_checks_again() -> None:
    desk = Desk().has(some(ONGOING, started_ms=0, timeout_ms=1))
    assert desk.shard.timed_out(NOW_MS) == [ID]
    desk.end(commit=True)
    assert desk.shard.decide_timeout(ID, NOW_MS).steps == []
    assert desk.shard.decide_timeout("gone", NOW_MS).steps == []


def test_the_timeout_counts_across_a_restart() -> None:
    """Row: load of Ongoing."""
    desk = Desk()
    desk.init(timeout_ms=1000)
    desk.add(pid=NEXT_PID, epoch=0)
    desk.now_ms += 900
    desk.reload()
    assert desk.time_out() == []
    desk.now_ms += 101
    assert desk.time_out() == [ID]


# -- expiry ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(TransactionState))
def test_ids_at_rest_expire(state: TransactionState) -> None:
    """Row: expiry, at lastUpdateTs <= now - transactional.id.expiration.ms."""
    desk = Desk(TransactionSettings(transactional_id_expiration_ms=500))
    desk.has(some(state, updated_ms=NOW_MS))
    assert desk.shard.decide_expiry([ID, "gone"], NOW_MS + 499).steps == []
    due = [ID] if state in AT_REST else []
    desk.carry_out(desk.shard.decide_expiry([ID], NOW_MS + 500))
    assert desk.appended == ([TransactionRecord(ID, None)] if due else [])
    assert (ID in desk.shard.transactions) == (not due)
    if due:
        assert desk.add() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert desk.init(PID, EPOCH).producer_id == NEXT_PID  # conversation 5: recovery works


# -- loading --------------------------------------------------------------------------------


@pytest.mark.parametrize("tv", [0, 1, 2])
@pytest.mark.parametrize("state", sorted(PREPARED))
def test_a_decided_transaction_sends_its_markers_again(state: TransactionState, tv: int) -> None:
    """Row: load of PrepareX: same epoch, the new coordinator epoch, all partitions."""
    desk = Desk(TransactionSettings(transaction_version=tv))
    desk.has(some(state, partitions=BOTH, client_version=tv))
    desk.appended.append(TransactionRecord(ID, desk.at))
    desk.shard.apply(MarkersWritten(ID, frozenset({T0})))
    desk.reload()
    assert desk.shard.pending == {ID: {T0, T1}}
    (work,) = desk.work
    assert (work.producer_epoch, work.coordinator_epoch) == (EPOCH, 8)
    assert (work.partitions, work.commit) == (BOTH, state is PREPARE_COMMIT)


def test_a_crash_between_the_records_of_an_empty_abort() -> None:
    desk = Desk().has(some(PREPARE_ABORT, partitions=frozenset()))
    desk.appended.append(TransactionRecord(ID, desk.at))
    desk.reload()
    assert desk.at.state is COMPLETE_ABORT


def test_the_last_record_wins_and_a_tombstone_removes() -> None:
    desk = Desk()
    desk.has(some(ONGOING)).has(some(COMPLETE_COMMIT))
    assert desk.at.state is COMPLETE_COMMIT
    desk.has(some(PREPARE_COMMIT))
    desk.shard.apply(TransactionRecord(ID, None))
    assert not desk.shard.transactions
    assert not desk.shard.pending
    desk.shard.apply(TransactionRecord(ID, None))


def test_live_records_are_what_was_applied() -> None:
    desk = Desk().has(some(ONGOING))
    desk.init(id_="U")
    again = Desk()
    for record in map(TransactionRecord._make, desk.shard.live()):
        again.shard.apply(record)
    assert again.shard.transactions == desk.shard.transactions
