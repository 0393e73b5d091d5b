"""AddPartitionsToTxn and its verify-only form in every state: the rows of Kafka's matrix."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    ONGOING,
    PREPARED,
    Transaction,
    TransactionState,
)
from tests.kit.transactions.desk import EPOCH, ID, NOW_MS, PID, T0, T1, Desk, some

OK = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WAIT = ErrorCode.CONCURRENT_TRANSACTIONS
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
STATES = list(TransactionState)
EPOCH_CASES = [("lower", EPOCH - 1), ("higher", EPOCH + 1)]


@pytest.mark.parametrize("tv", [0, 2])
def test_adding_to_no_id(tv: int) -> None:
    """Rows: empty id, id unknown."""
    desk = Desk()
    assert desk.add(tv=tv, id_="") == ErrorCode.INVALID_REQUEST
    assert desk.add(tv=tv) == MAPPING
    assert not desk.appended


@pytest.mark.parametrize("tv", [0, 2])
@pytest.mark.parametrize("state", sorted(PREPARED))
@pytest.mark.parametrize(
    ("row", "pid", "epoch"),
    [("right", PID, EPOCH), ("another producer", PID + 1, EPOCH), ("another epoch", PID, 0)],
)
def test_adding_while_markers_are_under_way(
    state: TransactionState, tv: int, row: str, pid: int, epoch: int
) -> None:
    """Row: pending state, before every check of the producer."""
    desk = Desk().has(some(state))
    assert desk.add(T0, T1, pid=pid, epoch=epoch, tv=tv) == WAIT, row
    assert not desk.appended


@pytest.mark.parametrize("tv", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_adding_by_another_producer(state: TransactionState, tv: int) -> None:
    """Rows: pid differs, epoch differs; in this order."""
    desk = Desk().has(some(state), pending=False)
    assert desk.add(pid=PID + 1, epoch=EPOCH, tv=tv) == MAPPING
    assert desk.add(pid=PID + 1, epoch=EPOCH + 1, tv=tv) == MAPPING
    for case, epoch in EPOCH_CASES:
        assert desk.add(epoch=epoch, tv=tv) == FENCED, case
    assert not desk.appended


@pytest.mark.parametrize("tv", [0, 2])
@pytest.mark.parametrize("state", sorted(PREPARED))
def test_adding_to_a_prepared_id_without_markers(state: TransactionState, tv: int) -> None:
    """Row: Prepare*."""
    desk = Desk().has(some(state), pending=False)
    assert desk.add(T1, tv=tv) == WAIT


@pytest.mark.parametrize("tv", [0, 2])
def test_adding_what_is_there_already(tv: int) -> None:
    """Row: Ongoing and all partitions in it: no record."""
    desk = Desk().has(some(ONGOING, partitions=frozenset({T0, T1})))
    before = desk.at
    assert desk.add(T0, tv=tv) == OK
    assert desk.add(T0, T1, tv=tv) == OK
    assert not desk.appended
    assert desk.at is before


@pytest.mark.parametrize("tv", [0, 2])
def test_adding_to_an_open_transaction(tv: int) -> None:
    """Row: Ongoing: partitions united, start kept, last update now."""
    desk = Desk().has(some(ONGOING))
    assert desk.add(T0, T1, tv=tv) == OK
    assert desk.at == Transaction(
        PID,
        EPOCH,
        60_000,
        ONGOING,
        frozenset({T0, T1}),
        started_ms=NOW_MS - 100,
        updated_ms=NOW_MS,
        previous_producer_id=PID,
        client_version=tv,
    )
    assert desk.appended == [TransactionRecord(ID, desk.at)]


@pytest.mark.parametrize("tv", [0, 2])
@pytest.mark.parametrize("state", sorted(AT_REST))
def test_adding_begins_a_transaction(state: TransactionState, tv: int) -> None:
    """Row: Empty, Complete*: start now, the version of the request."""
    desk = Desk().has(some(state, last=EPOCH - 1, previous_producer_id=900))
    assert desk.add(T1, tv=tv) == OK
    assert desk.at == Transaction(
        PID,
        EPOCH,
        60_000,
        ONGOING,
        frozenset({T1}),
        started_ms=NOW_MS,
        updated_ms=NOW_MS,
        previous_producer_id=PID,
        client_version=tv,
        last_producer_epoch=EPOCH - 1,
    )
    assert len(desk.appended) == 1


# -- verify-only ----------------------------------------------------------------------------


def test_verifying_for_no_id() -> None:
    """Rows: empty id, id unknown."""
    desk = Desk()
    assert desk.verify(T0, id_="") == [ErrorCode.INVALID_REQUEST]
    assert desk.verify(T0, T1) == [MAPPING, MAPPING]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("pending", [True, False])
def test_verifying_checks_the_producer_and_not_the_markers(
    state: TransactionState, pending: bool
) -> None:
    """Rows: pid differs, epoch differs; the pending state is not checked."""
    desk = Desk().has(some(state), pending=pending)
    assert desk.verify(T0, T1, pid=PID + 1) == [MAPPING, MAPPING]
    for case, epoch in EPOCH_CASES:
        assert desk.verify(T0, T1, epoch=epoch) == [FENCED, FENCED], case


@pytest.mark.parametrize("state", sorted(PREPARED))
@pytest.mark.parametrize("pending", [True, False])
def test_verifying_a_prepared_id(state: TransactionState, pending: bool) -> None:
    """Row: Prepare*."""
    assert Desk().has(some(state), pending=pending).verify(T0, T1) == [WAIT, WAIT]


def test_verifying_an_open_transaction() -> None:
    """Row: per partition: in the set, or not."""
    desk = Desk().has(some(ONGOING))
    before = desk.at
    assert desk.verify(T0, T1) == [OK, ABORTABLE]
    assert desk.at is before
    assert not desk.appended


@pytest.mark.parametrize("state", sorted(AT_REST))
def test_verifying_without_a_transaction(state: TransactionState) -> None:
    """Row: in Empty/Complete* the set is empty."""
    assert Desk().has(some(state)).verify(T0) == [ABORTABLE]
