"""Reconciliation of members of streams groups: cases of Kafka's CurrentAssignmentBuilder."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.errors import KafkaError
from kafkawire.groups.model.records import StreamsGroupRecord, StreamsKind
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import (
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    TargetTasks,
    Task,
    current_record,
    metadata_record,
)
from kafkawire.groups.streams.reconcile import Holders, reconcile
from kafkawire.messages.stored import StreamsGroupCurrentMemberAssignmentValue

ONE, TWO = ("0", 1), ("0", 2)
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = StreamsMemberState


def held(
    *active: Task, standby: set[Task] | None = None, warmup: set[Task] | None = None
) -> HeldTasks:
    return HeldTasks(dict.fromkeys(active, 4), frozenset(standby or ()), frozenset(warmup or ()))


def target(
    *active: Task, standby: set[Task] | None = None, warmup: set[Task] | None = None
) -> TargetTasks:
    return TargetTasks(frozenset(active), frozenset(standby or ()), frozenset(warmup or ()))


def member(
    id_: str = "a",
    assigned: HeldTasks | None = None,
    pending: HeldTasks | None = None,
    process: str = "p",
    state: StreamsMemberState = STABLE,
    epoch: int = 5,
) -> StreamsMember:
    return StreamsMember(
        id_,
        process_id=process,
        epoch=epoch,
        previous_epoch=4,
        state=state,
        assigned=assigned or held(),
        pending=pending or held(),
    )


def move(
    one: StreamsMember,
    wanted: TargetTasks,
    owned: TargetTasks | None = None,
    *others: StreamsMember,
    epoch: int = 6,
) -> StreamsMember:
    group = StreamsGroup("g")
    for each in (one, *others):
        group.apply(metadata_record("g", each))
        group.apply(current_record("g", each))
    return reconcile(one, epoch, wanted, owned, Holders(group, frozenset({one.id}), one.process_id))


def test_a_free_task_is_given_with_its_epoch() -> None:
    found = move(member(assigned=held(ONE)), target(ONE, TWO))
    assert (found.state, found.epoch, found.previous_epoch) == (STABLE, 6, 5)
    assert found.assigned.active == {ONE: 4, TWO: 6}


def test_a_task_is_closed_first_and_the_epoch_stays() -> None:
    one = member(assigned=held(ONE, standby={TWO}))
    found = move(one, target(("0", 3)))
    assert (found.state, found.epoch) == (UNREVOKED, 5)
    assert (found.assigned, found.pending) == (held(), held(ONE, standby={TWO}))
    # With any of them it stays so, in the role that it is to close.
    assert move(found, target(("0", 3)), target(ONE)) is found
    assert move(found, target(("0", 3)), target(standby={TWO})) is found
    assert move(found, target(("0", 3))) is found
    done = move(found, target(("0", 3)), target())
    assert (done.state, done.epoch) == (STABLE, 6)
    assert (done.assigned.active, done.pending) == ({("0", 3): 6}, held())


def test_a_newer_target_that_closes_more_raises_the_epoch_by_one() -> None:
    one = member(assigned=held(TWO), pending=held(ONE), state=UNREVOKED)
    found = move(one, target(), target(TWO), epoch=9)
    assert (found.state, found.epoch, found.previous_epoch) == (UNREVOKED, 6, 5)
    assert found.pending == held(TWO)


@pytest.mark.parametrize(
    ("other", "free"),
    [
        (member("b", held(ONE), process="q"), False),
        (member("b", held(), held(ONE), process="q"), False),
        (member("b", held(standby={ONE}), process="q"), True),
        (member("b", held(standby={ONE})), False),
        (member("b", held(), held(warmup={ONE})), False),
    ],
)
def test_an_active_task_waits_for_its_owner_and_for_copies_near_it(
    other: StreamsMember, free: bool
) -> None:
    found = move(member(), target(ONE), None, other)
    assert (found.state, found.epoch) == (STABLE if free else UNRELEASED, 6)
    assert (ONE in found.assigned.active) == free
    if not free:
        # Nothing changes until it is free: no record.
        assert move(found, target(ONE), None, other) is found
        assert move(found, target(ONE)).assigned.active == {ONE: 6}


@pytest.mark.parametrize(
    ("other", "free"),
    [
        (member("b", held(ONE), process="q"), True),
        (member("b", held(standby={ONE}), process="q"), True),
        (member("b", held(ONE)), False),
        (member("b", held(), held(ONE)), False),
        (member("b", held(standby={ONE})), False),
        (member("b", held(warmup={ONE})), False),
    ],
)
def test_a_copy_waits_for_all_roles_in_its_process(other: StreamsMember, free: bool) -> None:
    for wanted in (target(standby={ONE}), target(warmup={ONE})):
        found = move(member(), wanted, None, other)
        assert found.state == (STABLE if free else UNRELEASED)
        assert (ONE in found.assigned.standby | found.assigned.warmup) == free


def test_an_active_task_becomes_a_copy_at_once() -> None:
    found = move(member(assigned=held(ONE)), target(standby={ONE}))
    assert (found.state, found.epoch) == (UNREVOKED, 5)
    assert (found.assigned, found.pending) == (held(standby={ONE}), held(ONE))
    done = move(found, target(standby={ONE}), target(standby={ONE}))
    assert (done.state, done.epoch, done.assigned) == (STABLE, 6, held(standby={ONE}))


@pytest.mark.parametrize("role", ["standby", "warmup"])
def test_a_copy_is_kept_until_it_can_be_run(role: str) -> None:
    one = member(assigned=held(**{role: {ONE}}))
    owner = member("b", held(ONE), process="q")
    found = move(one, target(ONE), None, owner)
    assert (found.state, found.assigned, found.pending) == (UNRELEASED, one.assigned, held())
    done = move(found, target(ONE))
    assert (done.state, done.assigned) == (STABLE, HeldTasks({ONE: 6}))
    # While it must close another task, too.
    one = member(assigned=held(TWO, **{role: {ONE}}))
    found = move(one, target(ONE))
    assert (found.state, found.assigned) == (UNREVOKED, held(**{role: {ONE}}))
    assert found.pending == held(TWO)


def test_copies_change_their_role_at_once() -> None:
    found = move(member(assigned=held(standby={ONE})), target(warmup={ONE}))
    assert (found.state, found.assigned, found.pending) == (STABLE, held(warmup={ONE}), held())
    found = move(member(assigned=held(warmup={ONE})), target(standby={ONE}))
    assert (found.state, found.assigned, found.pending) == (STABLE, held(standby={ONE}), held())


def test_a_member_that_has_reached_its_target_stays() -> None:
    one = member(assigned=held(ONE), epoch=6)
    assert move(one, target(ONE, TWO)) is one


def test_a_state_of_a_later_version_is_fenced() -> None:
    one = member(assigned=held(ONE), state=UNKNOWN)
    for owned in (None, target(ONE)):
        with pytest.raises(KafkaError) as refused:
            move(one, target(ONE), owned)
        assert refused.value.code is E.FENCED_MEMBER_EPOCH
    assert move(one, target(ONE), target()).state is STABLE
    group = StreamsGroup("g")
    value = StreamsGroupCurrentMemberAssignmentValue(6, 5, 9)
    group.apply(StreamsGroupRecord(StreamsKind.CURRENT, "g", "a", value))
    assert group.members["a"].state is UNKNOWN
