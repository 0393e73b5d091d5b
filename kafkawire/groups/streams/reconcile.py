"""Move one member towards its target assignment (Kafka: streams.CurrentAssignmentBuilder). Pure."""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import (
    NOTHING,
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    TargetTasks,
    Task,
    Tasks,
)


class Holders:
    """Which other members have a task. `mine`: the ids of the member itself, two while a static
    member is replaced."""

    __slots__ = ("_group", "_mine", "_process_id")

    def __init__(self, group: StreamsGroup, mine: frozenset[str], process_id: str) -> None:
        self._group = group
        self._mine = mine
        self._process_id = process_id

    def is_active_free(self, task: Task) -> bool:
        """Return whether no other member runs a task, and none of this process has a copy."""
        owner = self._group.owners.get(task)
        return (owner is None or owner in self._mine) and not self._has_copy(task)

    def is_copy_free(self, task: Task) -> bool:
        """Return whether no other member of this process has a task in any role."""
        owner = self._group.owners.get(task)
        return not self._is_near(owner) and not self._has_copy(task)

    def _has_copy(self, task: Task) -> bool:
        return any(self._is_near(member_id) for member_id in self._group.copies.get(task, ()))

    def _is_near(self, member_id: str | None) -> bool:
        """Return whether a member is another one of the same process."""
        if member_id is None or member_id in self._mine:
            return False
        return self._group.members[member_id].process_id == self._process_id


def reconcile(
    member: StreamsMember,
    target_epoch: int,
    target: TargetTasks,
    owned: TargetTasks | None,
    holders: Holders,
) -> StreamsMember:
    """Return the member after a heartbeat; itself if it cannot move.

    `owned`: the tasks that the heartbeat lists; None if it does not. Raises FENCED_MEMBER_EPOCH for
    a member in an unknown state that has tasks.
    """
    state, epoch = member.state, member.epoch
    if member.is_at(target_epoch):
        return member
    if state is StreamsMemberState.UNREVOKED:
        if _shows(owned, member.pending):
            return member
        epoch += 1  # as in Kafka: commits of what was revoked are late from now on
    elif state is StreamsMemberState.UNKNOWN:
        if owned is None or any(owned):
            text = "The streams group member is in a unknown state. The member must abandon all "
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f"{text}its tasks and rejoin.")
        epoch = target_epoch
    return _advance(member, epoch, target_epoch, target, owned, holders)


def _advance(
    member: StreamsMember,
    epoch: int,
    target_epoch: int,
    target: TargetTasks,
    owned: TargetTasks | None,
    holders: Holders,
) -> StreamsMember:
    had = member.assigned
    active = {task: since for task, since in had.active.items() if task in target.active}
    lost = {task: since for task, since in had.active.items() if task not in target.active}
    new_active = [task for task in target.active if task not in active]
    granted = {task for task in new_active if holders.is_active_free(task)}
    # What the member has as a copy and is to run keeps its state: it stays a copy until it is run.
    promoted = (had.standby | had.warmup) & target.active
    new_standby = {t for t in target.standby - had.standby if holders.is_copy_free(t)}
    new_warmup = {t for t in target.warmup - had.warmup if holders.is_copy_free(t)}
    waits = (
        len(granted) < len(new_active)
        or len(new_standby) < len(target.standby - had.standby)
        or len(new_warmup) < len(target.warmup - had.warmup)
    )
    lost_standby = had.standby - target.standby - promoted - new_warmup
    lost_warmup = had.warmup - target.warmup - promoted - new_standby
    pending = HeldTasks(lost, lost_standby, lost_warmup)
    revokes = any(pending) and _shows(owned, pending)
    # Roles that change in the member itself change now, so that it keeps the state of the task.
    standby = (had.standby & target.standby) | (new_standby & (had.active.keys() | had.warmup))
    warmup = (had.warmup & target.warmup) | (new_warmup & had.standby)
    waiting = promoted if revokes else promoted - granted
    standby |= had.standby & waiting
    warmup |= had.warmup & waiting
    if revokes:
        # Its epoch is not that of the target until it has revoked what it must.
        assigned = HeldTasks(active, standby, warmup)
        return _with(member, epoch, StreamsMemberState.UNREVOKED, assigned, pending)
    active.update(dict.fromkeys(granted, target_epoch))
    assigned = HeldTasks(active, standby | new_standby, warmup | new_warmup)
    state = StreamsMemberState.UNRELEASED if waits else StreamsMemberState.STABLE
    return _with(member, target_epoch, state, assigned, NOTHING)


def _with(
    member: StreamsMember,
    epoch: int,
    state: StreamsMemberState,
    assigned: HeldTasks,
    pending: HeldTasks,
) -> StreamsMember:
    # Equal to itself: then no record is written.
    moved = replace(member, epoch=epoch, state=state, assigned=assigned, pending=pending)
    if moved == member:
        return member
    return replace(moved, previous_epoch=member.epoch)


def _shows(owned: TargetTasks | None, revoked: HeldTasks) -> bool:
    """Return whether the member may still have one of these tasks in the same role."""
    if owned is None:
        return True
    listed: tuple[Tasks, ...] = owned
    return any(not mine.isdisjoint(gone) for mine, gone in zip(listed, revoked, strict=True))
