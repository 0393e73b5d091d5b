"""Refine a target assignment: a task with state moves once its next owner has most of it. Pure.

Until then its present owner runs it, and the next one restores it as a warm-up task. A setting says
how many of these a group has at most; further tasks stay where they are. The refined assignment
belongs to an epoch of the target, and is not stored: records have the target, and the warm-up tasks
that members have. When all members have reached it and reported offsets of tasks permit more, a
heartbeat raises the epoch, and members move to the next refined assignment.

Apache Kafka 4.4 has the settings, the offsets in heartbeats, the epochs and the roles of members,
but its AssignmentRefiner returns the target: it assigns no warm-up task (KAFKA-20665). So a member
that does not report offsets, as clients before 4.4, gets its tasks immediately, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from kafkawire.groups.streams.group import TaskOffsets
from kafkawire.groups.streams.member import NO_TARGET, StreamsMember, TargetTasks, Task

MAX_TASKS = 1_000
"""Active tasks of a group whose moves are planned: 4 ms if all of them are to move. Those of a
larger group move immediately."""
_UNKNOWN = 2**63 - 1
"""An offset that a client does not know, as it reports it."""


class _Role(IntEnum):
    """The places of roles in TargetTasks."""

    ACTIVE = 0
    STANDBY = 1
    WARMUP = 2


def refine(
    members: Iterable[StreamsMember],
    target: Mapping[str, TargetTasks],
    offsets: Mapping[str, TaskOffsets],
    stateful: Collection[str],
    replicas: int,
    acceptable_lag: int,
) -> dict[str, TargetTasks]:
    """Return the tasks of those members that are not to have their target yet.

    `offsets`: as members reported them; `stateful`: the subtopologies with state; `replicas`: the
    most warm-up tasks; `acceptable_lag`: in records.
    """
    by_id = {member.id: member for member in members}
    large = sum(len(tasks.active) for tasks in target.values()) > MAX_TASKS
    moves = []
    if replicas and not large:
        moves = _list_moves(by_id, target, offsets, stateful, acceptable_lag)
    # Those that are being restored continue.
    moves.sort(key=lambda move: (move[0] not in by_id[move[2]].assigned.warmup, move))
    copies = {
        (task, by_id[id_].process_id): id_
        for id_, tasks in (target.items() if moves else ())
        if id_ in by_id
        for task in tasks.standby
    }
    roles: dict[str, dict[Task, _Role | None]] = {}
    for task, owner_id, next_id in moves:
        role = None
        if replicas:
            replicas -= 1
            role = _Role.WARMUP
        elif task in by_id[next_id].assigned.standby:
            role = _Role.STANDBY  # it keeps its copy
        roles.setdefault(next_id, {})[task] = role
        # No member of this process can have a copy meanwhile.
        copy = copies.get((task, by_id[owner_id].process_id))
        if copy is not None:
            roles.setdefault(copy, {})[task] = None
        roles.setdefault(owner_id, {})[task] = _Role.ACTIVE
    return {id_: _change(target.get(id_, NO_TARGET), changed) for id_, changed in roles.items()}


def _change(tasks: TargetTasks, roles: Mapping[Task, _Role | None]) -> TargetTasks:
    """Return the tasks of a member that has some of them in these roles and in no other."""
    sides: list[set[Task]] = [set(side).difference(roles) for side in tasks]
    for task, role in roles.items():
        if role is not None:
            sides[role].add(task)
    return TargetTasks(*map(frozenset, sides))


def _list_moves(
    by_id: Mapping[str, StreamsMember],
    target: Mapping[str, TargetTasks],
    offsets: Mapping[str, TaskOffsets],
    stateful: Collection[str],
    acceptable_lag: int,
) -> list[tuple[Task, str, str]]:
    """Return the tasks that must not move yet, each with its present and its next owner."""
    next_owners = {task: id_ for id_, tasks in target.items() for task in tasks.active}
    moves = [
        (task, member.id, next_owners[task])
        for member in by_id.values()
        for task in member.assigned.active
        if task[0] in stateful and next_owners.get(task, member.id) != member.id
    ]
    if not moves:
        return moves
    restored = {
        (task, member.process_id)
        for member in by_id.values()
        for task in (*member.assigned.standby, *member.assigned.warmup)
        if _is_near_end(offsets.get(member.id), task, acceptable_lag)
    }
    return [
        (task, owner_id, next_id)
        for task, owner_id, next_id in moves
        # One may have been removed while a large target was computed.
        if (new := by_id.get(next_id)) is not None
        # Within a process the state is there, and only one member can have a copy.
        and new.process_id != by_id[owner_id].process_id
        and (task, new.process_id) not in restored
        # After a load only those of members with a warm-up task are known to come.
        and (next_id in offsets or new.assigned.warmup)
    ]


def _is_near_end(reported: TaskOffsets | None, task: Task, acceptable_lag: int) -> bool:
    """Return whether a member has reported that its copy of a task lacks few records."""
    offsets, ends = reported or ({}, {})
    offset, end = offsets.get(task, _UNKNOWN), ends.get(task, _UNKNOWN)
    return 0 <= offset < _UNKNOWN and end < _UNKNOWN and end - offset <= acceptable_lag
