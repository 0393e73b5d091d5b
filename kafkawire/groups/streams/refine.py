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

from kafkawire.groups.streams.group import TaskOffsets
from kafkawire.groups.streams.member import NO_TARGET, StreamsMember, TargetTasks, Task

_UNKNOWN = 2**63 - 1
"""An offset that a client does not know, as it reports it."""


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
    moves = _list_moves(by_id, target, offsets, stateful, acceptable_lag) if replicas else []
    # Those that are being restored continue.
    moves.sort(key=lambda move: (move[0] not in by_id[move[2]].assigned.warmup, move))
    processes: dict[str, list[str]] = {}
    for member in by_id.values():
        processes.setdefault(member.process_id, []).append(member.id)
    refined: dict[str, TargetTasks] = {}
    for task, owner_id, next_id in moves:
        one, role = frozenset((task,)), NO_TARGET
        if replicas:
            replicas -= 1
            role = TargetTasks(warmup=one)
        elif task in by_id[next_id].assigned.standby:
            role = TargetTasks(standby=one)  # it keeps its copy
        _replace(refined, target, next_id, one, role)
        # No member of this process can have a copy meanwhile.
        for id_ in processes[by_id[owner_id].process_id]:
            if task in (refined.get(id_) or target.get(id_, NO_TARGET)).standby:
                _replace(refined, target, id_, one, NO_TARGET)
        _replace(refined, target, owner_id, one, TargetTasks(active=one))
    return refined


def _replace(
    refined: dict[str, TargetTasks],
    target: Mapping[str, TargetTasks],
    member_id: str,
    one: frozenset[Task],
    role: TargetTasks,
) -> None:
    """Give a member a task in this role and in no other."""
    tasks = refined.get(member_id) or target.get(member_id, NO_TARGET)
    pairs = zip(tasks, role, strict=True)
    refined[member_id] = TargetTasks(*((had - one) | has for had, has in pairs))


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
