"""ListTransactions and DescribeTransactions over one coordinator partition."""

from __future__ import annotations

import re

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.decision import MarkersWritten
from kafkawire.transactions.machine.queries import (
    describe_transaction,
    list_transactions,
)
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import ListFilter, append_error
from kafkawire.transactions.machine.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
    may_follow,
)
from tests.kit.transactions.desk import EPOCH, ID, NOW_MS, PID, T0, T1, Desk, some

STATES = list(TransactionState)


@pytest.fixture(name="desk")
def all_states() -> Desk:
    """One id in each state, named by it; producer ids from 0 on, started 100 ms ago."""
    desk = Desk()
    for state in STATES:
        at = some(state, producer_id=int(state))
        desk.shard.apply(TransactionRecord(state.label, at))
    return desk


def listed(desk: Desk, wanted: ListFilter) -> set[str]:
    found = [each for each in list_transactions(desk.shard, wanted, NOW_MS) if each]
    assert all(each.transactional_id == each.transaction_state for each in found)
    assert all(each.producer_id == TransactionState[_name(each)].value for each in found)
    return {each.transactional_id for each in found}


def _name(each: object) -> str:
    label: str = each.transaction_state  # type: ignore[attr-defined]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", label).upper()


ALL = {state.label for state in STATES}


@pytest.mark.parametrize(
    ("row", "wanted", "found"),
    [
        ("nothing", ListFilter(), ALL),
        ("states: either", ListFilter(frozenset({"Ongoing", "Empty"})), {"Ongoing", "Empty"}),
        ("case matters", ListFilter(frozenset({"ongoing", "Empty"})), {"Empty"}),
        ("only unknown states: nothing matches", ListFilter(frozenset({"No"})), set()),
        ("a state no id is in", ListFilter(frozenset({"Dead"})), set()),
        ("producer ids: either", ListFilter(producer_ids=frozenset({1, 2, 99})),
         {"Ongoing", "PrepareCommit"}),
        ("both: and", ListFilter(frozenset({"Ongoing"}), frozenset({1, 2})), {"Ongoing"}),
        ("duration off", ListFilter(duration_ms=-1), ALL),
        ("duration: longer than, strictly", ListFilter(duration_ms=99), ALL),
        ("Empty has no start and always passes", ListFilter(duration_ms=100), {"Empty"}),
        ("a test of the id", ListFilter(matches=lambda each: each.startswith("P")),
         {"PrepareCommit", "PrepareAbort"}),
    ],
)  # fmt: skip
def test_filters(desk: Desk, row: str, wanted: ListFilter, found: set[str]) -> None:
    assert listed(desk, wanted) == found, row


def test_an_unknown_id() -> None:
    found = describe_transaction(Desk().shard, "nosuch")
    assert (found.transactional_id, found.error_code) == (
        "nosuch",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    )
    assert describe_transaction(Desk().shard, "").error_code == ErrorCode.INVALID_REQUEST


def test_an_open_transaction() -> None:
    desk = Desk().has(some(ONGOING, partitions=frozenset({("b", 1), ("a", 2), ("a", 0)})))
    found = describe_transaction(desk.shard, ID)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (PID, EPOCH)
    assert (found.transaction_start_time_ms, found.transaction_timeout_ms) == (NOW_MS - 100, 60_000)


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_a_decided_one_shows_what_is_without_a_marker(state: TransactionState) -> None:
    desk = Desk().has(some(state, partitions=frozenset({T0, T1})))
    desk.shard.apply(MarkersWritten(ID, frozenset({T0})))
    found = describe_transaction(desk.shard, ID)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [1])]
    assert found.transaction_state == state.label


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_at_rest(state: TransactionState) -> None:
    found = describe_transaction(Desk().has(some(state)).shard, ID)
    assert found.topics == []
    assert found.transaction_start_time_ms == (-1 if state is EMPTY else NOW_MS - 100)


def test_which_states_may_follow() -> None:
    allowed = {
        EMPTY: {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        ONGOING: {EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT},
        PREPARE_COMMIT: {ONGOING},
        PREPARE_ABORT: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        COMPLETE_COMMIT: {PREPARE_COMMIT},
        COMPLETE_ABORT: {PREPARE_ABORT},
    }
    for after in STATES:
        assert {before for before in STATES if may_follow(before, after)} == allowed[after]


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 15),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 15),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 15),
        (ErrorCode.REQUEST_TIMED_OUT, 15),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 16),
        (ErrorCode.KAFKA_STORAGE_ERROR, 16),
        (ErrorCode.MESSAGE_TOO_LARGE, -1),
        (ErrorCode.RECORD_LIST_TOO_LARGE, -1),
    ],
)
def test_append_errors(code: ErrorCode, answered: int) -> None:
    assert append_error(code) == answered
