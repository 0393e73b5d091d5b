"""EndTxn in every state, under both transaction versions: the tables of Kafka's matrix.

Covers: kafkawire.transactions.machine.end_transaction.

The expectations are written out here, state by state, and not taken from the tables of the code.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.transactions.machine.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
)
from tests.kit.transactions.desk import EPOCH, NEXT_PID, NOW_MS, PID, T0, Desk, some

STATES = list(TransactionState)
ENDS = 1000  # not a code: the transaction ends
BUMPS = 1001  # not a code: an abort without a transaction
FENCED, MAPPING, WAIT, BAD_STATE = 90, 49, 51, 48

# state: (commit, abort)
VERSION_1 = {
    EMPTY: (48, 48),
    ONGOING: (ENDS, ENDS),
    PREPARE_COMMIT: (51, 48),
    PREPARE_ABORT: (48, 51),
    COMPLETE_COMMIT: (0, 48),
    COMPLETE_ABORT: (48, 0),
}
# state: (commit cur, commit retry, abort cur, abort retry)
VERSION_2 = {
    EMPTY: (48, 90, BUMPS, 90),
    ONGOING: (ENDS, 90, ENDS, 90),
    PREPARE_COMMIT: (90, 51, 90, 48),
    PREPARE_ABORT: (90, 48, 90, 51),
    COMPLETE_COMMIT: (48, 0, BUMPS, 48),
    COMPLETE_ABORT: (48, 48, BUMPS, 0),
}


def end(desk: Desk, **ask: Any) -> tuple[int, int, int]:
    answer = desk.end(**ask)
    return int(answer.code), answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("tv", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_ending_no_id(tv: int, commit: bool) -> None:
    """Rows: empty id, unknown."""
    desk = Desk()
    assert end(desk, commit=commit, tv=tv, id_="") == (42, -1, -1)
    assert end(desk, commit=commit, tv=tv) == (MAPPING, -1, -1)


# -- version 1 ------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_version_1_checks_the_producer_first(state: TransactionState, commit: bool) -> None:
    """Rows: pid differs, epoch differs, then pending."""
    desk = Desk().has(some(state))
    assert end(desk, commit=commit, pid=PID + 1)[0] == MAPPING
    assert end(desk, commit=commit, pid=PID + 1, epoch=EPOCH + 1)[0] == MAPPING
    assert end(desk, commit=commit, epoch=EPOCH - 1)[0] == FENCED
    assert end(desk, commit=commit, epoch=EPOCH + 1)[0] == FENCED
    if state in PREPARED:
        assert end(desk, commit=commit)[0] == WAIT
    assert not desk.appended


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_version_1_table(state: TransactionState, commit: bool) -> None:
    desk = Desk().has(some(state), pending=False)
    expected = VERSION_1[state][0 if commit else 1]
    code, *_ = end(desk, commit=commit)
    if expected != ENDS:
        assert code == expected
        assert not desk.appended
        return
    assert code == 0
    after = desk.at
    assert after.state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
    assert (after.producer_epoch, after.last_producer_epoch) == (EPOCH, -1)
    assert (after.partitions, after.started_ms) == (frozenset({T0}), NOW_MS - 100)
    assert (after.updated_ms, after.client_version, after.next_producer_id) == (NOW_MS, 0, -1)
    (work,) = desk.markers()
    assert (work.producer_id, work.producer_epoch, work.commit) == (PID, EPOCH, commit)
    assert (work.coordinator_epoch, work.transaction_version) == (7, 0)
    assert desk.at.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert end(desk, commit=commit)[0] == 0  # conversation 16: later again
    assert end(desk, commit=not commit)[0] == BAD_STATE


# -- version 2 ------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", sorted(PREPARED))
@pytest.mark.parametrize("pid", [PID, PID + 1])
@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH, EPOCH + 7])
def test_version_2_checks_the_markers_first(
    state: TransactionState, commit: bool, pid: int, epoch: int
) -> None:
    """Row: pending 51 first."""
    desk = Desk().has(some(state))
    assert end(desk, commit=commit, tv=2, pid=pid, epoch=epoch) == (WAIT, -1, -1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_version_2_refuses_other_producers(state: TransactionState, commit: bool) -> None:
    """Rows: pid differs and not rollover retry; epoch not valid."""
    desk = Desk().has(some(state, previous_producer_id=900), pending=False)
    assert end(desk, commit=commit, tv=2, pid=PID + 1)[0] == MAPPING
    assert end(desk, commit=commit, tv=2, pid=900, epoch=32_766)[0] == MAPPING  # stored is not 0
    for epoch in (EPOCH - 2, EPOCH + 1, EPOCH + 7):
        assert end(desk, commit=commit, tv=2, epoch=epoch)[0] == FENCED
    assert not desk.appended


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_version_2_table(state: TransactionState, commit: bool, retry: bool) -> None:
    desk = Desk().has(some(state), pending=False)
    before = desk.at
    expected = VERSION_2[state][(0 if commit else 2) + retry]
    answer = end(desk, commit=commit, tv=2, epoch=EPOCH - retry)
    if expected == 0:
        assert answer == (0, PID, EPOCH)  # the stored ones, once more
        assert not desk.appended
    elif expected in (ENDS, BUMPS):
        assert answer == (0, PID, EPOCH + 1)
        began = before.started_ms if expected == ENDS else NOW_MS
        assert desk.appended[0].value is not None
        prepared = desk.appended[0].value
        assert prepared.state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
        assert (prepared.producer_epoch, prepared.last_producer_epoch) == (EPOCH + 1, EPOCH)
        assert (prepared.started_ms, prepared.updated_ms) == (began, NOW_MS)
        assert (prepared.client_version, prepared.next_producer_id) == (2, -1)
    else:
        assert answer == (expected, -1, -1)
        assert not desk.appended


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_ends_with_markers_of_the_next_epoch(commit: bool) -> None:
    desk = Desk().has(some(ONGOING))
    assert end(desk, commit=commit, tv=2) == (0, PID, EPOCH + 1)
    assert end(desk, commit=commit, tv=2) == (WAIT, -1, -1)  # conversation 17
    (work,) = desk.markers()
    assert (work.producer_epoch, work.commit, work.transaction_version) == (EPOCH + 1, commit, 2)
    assert end(desk, commit=commit, tv=2) == (0, PID, EPOCH + 1)
    assert end(desk, commit=not commit, tv=2)[0] == BAD_STATE  # the retry as its opposite
    assert end(desk, commit=True, tv=2, epoch=EPOCH + 1)[0] == BAD_STATE
    assert end(desk, commit=False, tv=2, epoch=EPOCH + 1) == (0, PID, EPOCH + 2)
    assert end(desk, commit=False, tv=2, epoch=EPOCH + 9)[0] == FENCED


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_an_abort_without_a_transaction_is_two_records(state: TransactionState) -> None:
    """Conversation 15: PrepareAbort and CompleteAbort with no partitions, start now."""
    desk = Desk().has(some(state))
    assert end(desk, commit=False, tv=2) == (0, PID, EPOCH + 1)
    states = [record.value.state for record in desk.appended if record.value]
    assert states == [PREPARE_ABORT, COMPLETE_ABORT]
    assert not desk.work
    assert not desk.shard.pending
    assert (desk.at.started_ms, desk.at.partitions) == (NOW_MS, frozenset())


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_without_partitions_can_end(commit: bool) -> None:
    """KAFKA-18401: an id that began and added nothing."""
    desk = Desk().has(some(ONGOING, partitions=frozenset()))
    assert end(desk, commit=commit, tv=2) == (0, PID, EPOCH + 1)
    assert desk.at.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_ends_with_a_new_producer_id(commit: bool) -> None:
    """Row of section 2: EndTxn at 32766; conversation 23."""
    desk = Desk().has(some(ONGOING, epoch=32_766, previous_producer_id=900))
    assert end(desk, commit=commit, tv=2, epoch=32_766) == (0, NEXT_PID, 0)
    prepared = desk.at
    assert (prepared.producer_id, prepared.producer_epoch) == (PID, 32_767)
    assert (prepared.next_producer_id, prepared.previous_producer_id) == (NEXT_PID, PID)
    assert desk.add(pid=NEXT_PID, epoch=0) == WAIT  # the new one is not fenced meanwhile
    (work,) = desk.markers()
    assert (work.producer_id, work.producer_epoch, work.commit) == (PID, 32_767, commit)
    after = desk.at
    assert (after.producer_id, after.producer_epoch, after.last_producer_epoch) == (
        NEXT_PID, 0, 32_766
    )  # fmt: skip
    assert (after.previous_producer_id, after.next_producer_id) == (PID, -1)
    assert end(desk, commit=commit, tv=2, epoch=32_766) == (0, NEXT_PID, 0)  # rollover retry
    assert end(desk, commit=not commit, tv=2, epoch=32_766)[0] == BAD_STATE
    assert end(desk, commit=commit, tv=2, epoch=32_765)[0] == MAPPING
    assert desk.add(pid=NEXT_PID, epoch=0) == 0
    assert end(desk, commit=commit, tv=2, epoch=32_766)[0] == MAPPING  # the next one is open
    assert desk.next_pid == NEXT_PID + 1


def test_an_epoch_that_no_client_may_own_can_only_abort() -> None:
    """Row of section 2: at 32767 by an old bug (KAFKA-20090)."""
    desk = Desk().has(some(ONGOING, epoch=32_767))
    assert end(desk, commit=True, tv=2, epoch=32_767) == (-1, -1, -1)
    assert end(desk, commit=False, tv=2, epoch=32_767) == (0, NEXT_PID, 0)
    assert desk.markers()[0].producer_epoch == 32_767
    assert (desk.at.producer_id, desk.at.producer_epoch) == (NEXT_PID, 0)
