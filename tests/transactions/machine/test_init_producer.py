"""InitProducerId in every state: the rows of Kafka's matrix, in the order of its checks.

Covers: kafkawire.transactions.machine.init_producer.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import STRING_BYTES
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARE_ABORT,
    PREPARED,
    Transaction,
    TransactionState,
)
from tests.kit.transactions.desk import (
    EPOCH,
    ID,
    NEXT_PID,
    NOW_MS,
    PID,
    Desk,
    TransactionSettings,
    some,
)

FENCED = ErrorCode.PRODUCER_FENCED
WAIT = ErrorCode.CONCURRENT_TRANSACTIONS
BAD = ErrorCode.INVALID_REQUEST
STATES = list(TransactionState)


def init(desk: Desk, *args: Any, **more: Any) -> tuple[int, int, int]:
    answer = desk.init(*args, **more)
    return int(answer.code), answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize(
    ("row", "ask", "code"),
    [
        ("a producer id without an epoch", {"pid": PID}, BAD),
        ("an epoch without a producer id", {"epoch": 0}, BAD),
        ("an empty id", {"id_": ""}, BAD),
        ("an id that no record can hold", {"id_": "x" * (STRING_BYTES + 1)}, BAD),
        ("a timeout of zero", {"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("a negative timeout", {"timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("a timeout above the bound", {"timeout_ms": 900_001},
         ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("two-phase commit that is switched off", {"two_phase_commit": True},
         ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("a prepared transaction to keep", {"keep_prepared": True}, ErrorCode.UNSUPPORTED_VERSION),
        ("both: switched off comes first", {"two_phase_commit": True, "keep_prepared": True},
         ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("both: the empty id comes first", {"id_": "", "timeout_ms": 0}, BAD),
    ],
)  # fmt: skip
@pytest.mark.parametrize("state", [None, *STATES])
def test_wrong_requests_are_refused_in_every_state(
    state: TransactionState | None, row: str, ask: dict[str, int], code: ErrorCode
) -> None:
    desk = Desk()
    if state is not None:
        desk.has(some(state))
    assert init(desk, **ask) == (code, -1, -1), row
    assert not desk.appended


def test_the_largest_timeout_is_taken() -> None:
    desk = Desk()
    assert init(desk, timeout_ms=900_000) == (0, NEXT_PID, 0)
    assert desk.at.timeout_ms == 900_000


def test_two_phase_commit_never_times_out() -> None:
    """Row: not with 2PC, the timeout becomes 2^31-1."""
    desk = Desk(TransactionSettings(transaction_two_phase_commit_enable=True))
    assert init(desk, timeout_ms=0, two_phase_commit=True) == (0, NEXT_PID, 0)
    assert desk.at.timeout_ms == NO_TIMEOUT_MS
    assert init(desk, keep_prepared=True)[0] == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("pid", "epoch"), [(-1, -1), (PID, 0), (77, 32_767)])
def test_an_unknown_id_gets_a_new_producer_id(pid: int, epoch: int) -> None:
    """Row: id unknown; producer id and epoch of the client are ignored."""
    desk = Desk()
    assert init(desk, pid, epoch) == (0, NEXT_PID, 0)
    assert desk.at == Transaction(
        NEXT_PID, 0, 60_000, EMPTY, updated_ms=NOW_MS, previous_producer_id=NEXT_PID
    )
    assert len(desk.appended) == 1


@pytest.mark.parametrize("state", sorted(PREPARED))
@pytest.mark.parametrize(
    ("row", "pid", "epoch"),
    [
        ("no producer", -1, -1),
        ("the current one", PID, EPOCH),
        ("the one before", PID, EPOCH - 1),
        ("pending comes before fencing", PID + 999, 0),
    ],
)
def test_markers_under_way_make_it_wait(
    state: TransactionState, row: str, pid: int, epoch: int
) -> None:
    """Row: pending state present."""
    desk = Desk().has(some(state))
    assert init(desk, pid, epoch) == (WAIT, -1, -1), row
    assert not desk.appended


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_a_prepared_id_without_markers_waits_after_the_check_of_the_producer(
    state: TransactionState,
) -> None:
    """Row: Prepare*."""
    desk = Desk().has(some(state), pending=False)
    assert init(desk, PID, EPOCH)[0] == WAIT
    assert init(desk)[0] == WAIT
    assert init(desk, PID + 999, 0)[0] == FENCED


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("row", "pid", "epoch", "previous"),
    [
        ("another producer id", PID + 999, EPOCH, PID),
        ("the id before, not at its end", 900, 32_765, 900),
        ("some id at its end, not the one before", 901, 32_766, 900),
    ],
)
def test_other_producers_are_fenced(
    state: TransactionState, row: str, pid: int, epoch: int, previous: int
) -> None:
    """Row: pid given and neither the current one nor the exhausted one before."""
    desk = Desk().has(some(state, previous_producer_id=previous), pending=False)
    assert init(desk, pid, epoch) == (FENCED, -1, -1), row
    assert not desk.appended


@pytest.mark.parametrize(
    ("pid", "epoch"), [(-1, -1), (PID, EPOCH), (PID, EPOCH - 1), (PID, 99), (900, 32_766)]
)
@pytest.mark.parametrize("tv", [0, 1, 2])
def test_an_open_transaction_is_aborted_and_its_epoch_not_checked(
    pid: int, epoch: int, tv: int
) -> None:
    """Row: Ongoing."""
    desk = Desk(TransactionSettings(transaction_version=tv))
    desk.has(some(ONGOING, previous_producer_id=900))
    assert init(desk, pid, epoch) == (WAIT, -1, -1)
    assert desk.at.state is PREPARE_ABORT
    assert desk.at.producer_epoch == EPOCH + 1
    assert init(desk, pid, epoch) == (WAIT, -1, -1)  # and no second bump
    assert len(desk.appended) == 1
    (work,) = desk.markers()
    assert (work.producer_epoch, work.commit, work.transaction_version) == (
        EPOCH + 1, False, 2 if tv == 2 else 0
    )  # fmt: skip
    assert desk.at.state is COMPLETE_ABORT


@pytest.mark.parametrize("state", sorted(AT_REST))
@pytest.mark.parametrize(
    ("row", "ask", "last", "answer", "last_after"),
    [
        ("no producer: bump, the last epoch is forgotten", (-1, -1), EPOCH - 1,
         (0, PID, EPOCH + 1), -1),
        ("the current epoch: bump", (PID, EPOCH), EPOCH - 1, (0, PID, EPOCH + 1), EPOCH),
        ("the last epoch: a retry, no bump", (PID, EPOCH - 1), EPOCH - 1, (0, PID, EPOCH),
         EPOCH - 1),
        ("the last epoch, forgotten", (PID, EPOCH - 1), -1, (FENCED, -1, -1), None),
        ("an older epoch", (PID, EPOCH - 2), EPOCH - 1, (FENCED, -1, -1), None),
        ("a newer epoch", (PID, EPOCH + 1), EPOCH - 1, (FENCED, -1, -1), None),
    ],
)  # fmt: skip
def test_at_rest_with_epochs_left(
    state: TransactionState,
    row: str,
    ask: tuple[int, int],
    last: int,
    answer: tuple[int, int, int],
    last_after: int | None,
) -> None:
    """Rows: Empty/Complete*, epoch not exhausted."""
    desk = Desk().has(some(state, last=last, client_version=2))
    assert init(desk, *ask, timeout_ms=5000) == answer, row
    if last_after is None:
        assert not desk.appended
        return
    assert desk.at == Transaction(
        PID,
        answer[2],
        5000,
        EMPTY,
        updated_ms=NOW_MS,
        previous_producer_id=PID,
        client_version=2,
        last_producer_epoch=last_after,
    )
    assert len(desk.appended) == 1  # a record is written all the same


@pytest.mark.parametrize("state", sorted(AT_REST))
def test_a_rollover_is_repeated_with_the_producer_id_before(state: TransactionState) -> None:
    """Rows: pid = prevProducerId with epoch >= 32766, then epoch = lastProducerEpoch."""
    desk = Desk().has(some(state, epoch=0, last=32_766, previous_producer_id=900))
    assert init(desk, 900, 32_766) == (0, PID, 0)
    assert init(desk, 900, 32_766) == (FENCED, -1, -1)  # that was a step: 900 is known no more


@pytest.mark.parametrize("state", sorted(AT_REST))
@pytest.mark.parametrize("epoch", [32_766, 32_767])
@pytest.mark.parametrize(
    ("row", "known", "last_after"),
    [("no producer", False, -1), ("the current epoch", True, None)],
)
def test_at_rest_without_epochs_left(
    state: TransactionState, epoch: int, row: str, known: bool, last_after: int | None
) -> None:
    """Row: Empty/Complete*, exhausted: a new producer id."""
    desk = Desk().has(some(state, epoch=epoch, last=epoch - 1))
    ask = (PID, epoch) if known else (-1, -1)
    assert init(desk, *ask) == (0, NEXT_PID, 0), row
    assert desk.at.previous_producer_id == PID
    assert desk.at.last_producer_epoch == (epoch if last_after is None else last_after)
    assert (desk.at.state, desk.at.partitions, desk.at.started_ms) == (EMPTY, frozenset(), -1)


@pytest.mark.parametrize("state", sorted(AT_REST))
def test_an_exhausted_id_and_another_epoch_is_a_defect_in_kafka_too(
    state: TransactionState,
) -> None:
    """Row: exhausted and another epoch given."""
    desk = Desk().has(some(state, epoch=32_766, last=32_765))
    assert init(desk, PID, 32_765) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1)
    assert not desk.appended
    assert desk.next_pid == NEXT_PID


def test_init_twice_then_the_states_it_leaves() -> None:
    """Conversation 1: (P,0), then (P,1)."""
    desk = Desk()
    assert init(desk) == (0, NEXT_PID, 0)
    assert init(desk) == (0, NEXT_PID, 1)
    assert init(desk, NEXT_PID, 1) == (0, NEXT_PID, 2)
    assert init(desk, NEXT_PID, 1) == (0, NEXT_PID, 2)  # conversation 4: its retry
    assert init(desk, NEXT_PID, 0) == (FENCED, -1, -1)
    desk.has(some(COMPLETE_COMMIT))
    assert desk.shard.transactions.keys() == {ID}
