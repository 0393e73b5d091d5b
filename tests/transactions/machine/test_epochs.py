"""Epochs over whole lives of a transactional id: the rows of section 2 of Kafka's behaviour.

Fences and timeouts follow the cluster's transaction.version, EndTxn the version of the request.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
)
from tests.kit.transactions.desk import (
    EPOCH,
    ID,
    NEXT_PID,
    PID,
    Desk,
    TransactionSettings,
    some,
)

FENCED, MAPPING, WAIT, BAD_STATE = 90, 49, 51, 48


def cluster(tv: int) -> Desk:
    return Desk(TransactionSettings(transaction_version=tv))


def init(desk: Desk, pid: int = -1, epoch: int = -1) -> tuple[int, int, int]:
    answer = desk.init(pid, epoch)
    return int(answer.code), answer.producer_id, answer.producer_epoch


def end(desk: Desk, commit: bool, epoch: int, tv: int, pid: int = PID) -> tuple[int, int, int]:
    answer = desk.end(commit=commit, pid=pid, epoch=epoch, tv=tv)
    return int(answer.code), answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("tv", [0, 1, 2])
def test_init_bumps_by_one(tv: int) -> None:
    """Row: InitProducerId."""
    desk = cluster(tv).has(some(EMPTY))
    assert init(desk) == (0, PID, EPOCH + 1)


def test_ending_under_version_1_keeps_the_epoch() -> None:
    """Row: EndTxn, TV1."""
    desk = cluster(2).has(some(EMPTY))
    for commit in (True, False):
        assert desk.add() == 0
        assert end(desk, commit, EPOCH, 0)[0] == 0
        assert desk.markers()[0].producer_epoch == EPOCH
        assert (desk.at.producer_epoch, desk.at.last_producer_epoch) == (EPOCH, -1)


def test_ending_under_version_2_bumps_record_marker_and_answer() -> None:
    """Row: EndTxn, TV2."""
    desk = cluster(0).has(some(EMPTY))  # the cluster's feature does not matter
    for step, commit in enumerate((True, False)):
        at = EPOCH + step
        assert desk.add(epoch=at, tv=2) == 0
        assert end(desk, commit, at, 2) == (0, PID, at + 1)
        assert (desk.at.producer_epoch, desk.at.last_producer_epoch) == (at + 1, at)
        assert desk.markers()[0].producer_epoch == at + 1
        assert desk.at.producer_epoch == at + 1


@pytest.mark.parametrize("how", ["fence", "timeout"])
@pytest.mark.parametrize(("tv", "last"), [(0, -1), (1, -1), (2, EPOCH)])
def test_a_broker_abort_bumps_once(tv: int, last: int, how: str) -> None:
    """Row: fence/timeout abort (KAFKA-19367: not twice)."""
    desk = cluster(tv).has(some(ONGOING, timeout_ms=10, last=EPOCH - 1))
    if how == "fence":
        assert init(desk)[0] == WAIT
    else:
        assert desk.time_out() == [ID]
    assert (desk.at.producer_epoch, desk.at.last_producer_epoch) == (EPOCH + 1, last)
    assert desk.markers()[0].producer_epoch == EPOCH + 1
    assert (desk.at.state, desk.at.producer_epoch) == (COMPLETE_ABORT, EPOCH + 1)
    assert desk.at.last_producer_epoch == last


@pytest.mark.parametrize("tv", [0, 2])
def test_init_on_an_open_transaction_without_a_producer(tv: int) -> None:
    """Row: InitProducerId on Ongoing at e, then repeat: e+2 without pid; conversation 19."""
    desk = cluster(tv).has(some(ONGOING))
    assert init(desk)[0] == WAIT
    assert init(desk)[0] == WAIT
    desk.markers()
    assert init(desk) == (0, PID, EPOCH + 2)
    assert end(desk, True, EPOCH, 0)[0] == FENCED
    assert end(desk, True, EPOCH, 2)[0] == FENCED
    assert desk.add(epoch=EPOCH) == FENCED


@pytest.mark.parametrize(("tv", "answer"), [(0, (FENCED, -1, -1)), (2, (0, PID, EPOCH + 1))])
def test_init_on_an_open_transaction_with_its_producer(
    tv: int, answer: tuple[int, int, int]
) -> None:
    """Same row with (pid, e); conversation 22."""
    desk = cluster(tv).has(some(ONGOING))
    assert init(desk, PID, EPOCH)[0] == WAIT
    desk.markers()
    assert init(desk, PID, EPOCH) == answer


def test_a_stale_producer_aborts_an_open_transaction_and_is_fenced() -> None:
    """Conversation 22: (P,e-1) while Ongoing also aborts it, then 90."""
    desk = cluster(2).has(some(ONGOING))
    assert init(desk, PID, EPOCH - 1)[0] == WAIT
    desk.markers()
    assert init(desk, PID, EPOCH - 1)[0] == FENCED


@pytest.mark.parametrize(("tv", "answer"), [(0, (FENCED, -1, -1)), (2, (0, PID, EPOCH + 1))])
def test_recovery_after_a_timeout(tv: int, answer: tuple[int, int, int]) -> None:
    """Row: recovery after timeout; conversations 20, 21."""
    desk = cluster(tv).has(some(ONGOING, timeout_ms=10))
    desk.time_out()
    desk.markers()
    assert end(desk, True, EPOCH, 0)[0] == FENCED
    assert end(desk, True, EPOCH, 2)[0] == BAD_STATE
    assert end(desk, False, EPOCH, 2) == (0, PID, EPOCH + 1)
    assert init(desk, PID, EPOCH) == answer
    if tv == 2:
        assert init(desk, PID, EPOCH) == answer  # without a bump, so once more


@pytest.mark.parametrize("tv", [0, 2])
def test_init_goes_on_to_the_highest_epoch_of_a_client(tv: int) -> None:
    """Row: exhaustion: 32766; 32767 is kept for fencing."""
    desk = cluster(tv).has(some(EMPTY, epoch=32_764))
    assert init(desk) == (0, PID, 32_765)
    assert init(desk) == (0, PID, 32_766)
    assert init(desk) == (0, NEXT_PID, 0)


def test_a_fence_at_the_last_epoch_under_version_1() -> None:
    """Row: fence at 32766, TV1."""
    desk = cluster(0).has(some(ONGOING, epoch=32_766))
    assert init(desk)[0] == WAIT
    work = desk.markers()[0]
    assert (work.producer_id, work.producer_epoch) == (PID, 32_767)
    assert (desk.at.producer_id, desk.at.producer_epoch) == (PID, 32_767)
    assert init(desk) == (0, NEXT_PID, 0)


@pytest.mark.parametrize("how", ["fence", "timeout"])
def test_a_fence_at_the_last_epoch_under_version_2(how: str) -> None:
    """Row: fence at 32766, TV2."""
    desk = cluster(2).has(some(ONGOING, epoch=32_766, timeout_ms=10))
    if how == "fence":
        assert init(desk)[0] == WAIT
    else:
        desk.time_out()
    assert (desk.at.producer_epoch, desk.at.next_producer_id) == (32_767, NEXT_PID)
    work = desk.markers()[0]
    assert (work.producer_id, work.producer_epoch) == (PID, 32_767)
    assert (desk.at.producer_id, desk.at.producer_epoch) == (NEXT_PID, 0)
    assert init(desk) == (0, NEXT_PID, 1)


@pytest.mark.parametrize("tv", [0, 2])
def test_the_epoch_kept_back_does_not_overflow(tv: int) -> None:
    """Row: at 32767 by an old bug (KAFKA-20090)."""
    desk = cluster(tv).has(some(ONGOING, epoch=32_767))
    assert init(desk)[0] == WAIT
    assert desk.markers()[0].producer_epoch == 32_767
    assert desk.at.state is COMPLETE_ABORT
    assert init(desk) == ((0, NEXT_PID, 1) if tv == 2 else (0, NEXT_PID, 0))


@pytest.mark.parametrize("tv", [0, 2])
def test_the_producer_id_before_is_set_by_every_step(tv: int) -> None:
    desk = cluster(tv)
    assert init(desk) == (0, NEXT_PID, 0)
    assert desk.at.previous_producer_id == NEXT_PID
    desk.has(some(EMPTY, epoch=32_766, previous_producer_id=900))
    assert init(desk)[1] == NEXT_PID + 1
    assert desk.at.previous_producer_id == PID
    assert desk.add(pid=NEXT_PID + 1, epoch=0) == 0
    assert desk.at.previous_producer_id == NEXT_PID + 1


def test_a_reload_forgets_the_last_epoch_only() -> None:
    """lastProducerEpoch is not in the log; the retry of EndTxn survives."""
    desk = cluster(2)
    pid = desk.init().producer_id
    assert init(desk, pid, 0) == (0, pid, 1)
    assert init(desk, pid, 0) == (0, pid, 1)
    desk.reload()
    assert init(desk, pid, 0) == (FENCED, -1, -1)
    assert desk.add(pid=pid, epoch=1, tv=2) == 0
    assert end(desk, True, 1, 2, pid) == (0, pid, 2)
    desk.markers()
    desk.reload()
    assert desk.at.state is COMPLETE_COMMIT
    assert end(desk, True, 1, 2, pid) == (0, pid, 2)


def test_a_rollover_survives_a_reload_at_each_record() -> None:
    """Crash point 14: between PrepareX (32767) and CompleteX (N,0)."""
    desk = cluster(2)
    for epoch in (32_765, 32_766):
        desk.has(some(EMPTY, epoch=epoch))
    desk.appended = [TransactionRecord(*pair) for pair in desk.shard.live()]
    desk.add(epoch=32_766, tv=2)
    assert end(desk, True, 32_766, 2) == (0, NEXT_PID, 0)
    desk.reload()
    assert end(desk, True, 32_766, 2)[0] == WAIT
    assert desk.markers()[0].producer_epoch == 32_767
    assert (desk.at.producer_id, desk.at.producer_epoch) == (NEXT_PID, 0)
    desk.reload()
    assert end(desk, True, 32_766, 2) == (0, NEXT_PID, 0)


@pytest.mark.parametrize("code", [ErrorCode.NONE, None])
def test_a_client_of_each_version_after_the_other(code: ErrorCode | None) -> None:
    """Conversation 40: a live producer that changes the version goes on by InitProducerId."""
    desk = cluster(2).has(some(EMPTY))
    assert desk.add(tv=0) == 0
    assert end(desk, True, EPOCH, 0)[0] == 0
    desk.markers(code)
    assert init(desk, PID, EPOCH) == (0, PID, EPOCH + 1)
    assert desk.add(epoch=EPOCH + 1, tv=2) == 0
    assert end(desk, True, EPOCH + 1, 2) == (0, PID, EPOCH + 2)
    desk.markers(code)
    assert desk.add(epoch=EPOCH + 2, tv=0) == 0
    assert end(desk, False, EPOCH + 2, 0)[0] == 0
    assert desk.at.client_version == 0
