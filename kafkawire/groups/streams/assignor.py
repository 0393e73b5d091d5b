"""The assignor `sticky` (KIP-1071): who is to have which task. Pure.

Every task has one active owner, and members differ by at most one active task. A member keeps the
active tasks that it has, up to its share; other tasks go to members with a copy of their state,
then to those with the fewest. Each task with state has as many standby copies as wanted, each in a
process without another copy of it, if there are so many processes. Client tags and racks are not
considered, as in Kafka.

A generator: for a group with thousands of tasks the caller runs it in slices. The result depends on
the arguments only, not on the order of members.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kafkawire.groups.streams.member import NO_TASKS, TargetTasks, Task, Tasks


class AssignableMember(NamedTuple):
    """A member as the assignor sees it: the tasks that it has now, active and as a copy.
    `offsets`: how much of the state of tasks it has, if it has reported that."""

    id: str
    process_id: str
    active: Tasks = NO_TASKS
    copies: Tasks = NO_TASKS
    offsets: Mapping[Task, int] = {}


class AssignableTasks(NamedTuple):
    """The tasks of a subtopology; `stateful`: they have state to keep copies of."""

    size: int
    stateful: bool


Targets = Generator[None, None, dict[str, TargetTasks]]
"""The steps of the assignor, some microseconds each; returns the target of each member."""
_Steps = Generator[None, None, None]


def assign_sticky(
    members: Sequence[AssignableMember],
    subtopologies: Mapping[str, AssignableTasks],
    standby_replicas: int,
) -> Targets:
    """Return the target of each member."""
    plan = _Plan(sorted(members, key=lambda member: member.id))
    if members:
        tasks = [
            (name, partition)
            for name in sorted(subtopologies)
            for partition in range(subtopologies[name].size)
        ]
        yield from plan.assign_active(tasks)
        stateful = [task for task in tasks if subtopologies[task[0]].stateful]
        if standby_replicas and stateful:
            yield from plan.assign_standby(stateful, standby_replicas, len(tasks))
    return {
        member.id: TargetTasks(
            frozenset(plan.active[member.id]), frozenset(plan.standby[member.id])
        )
        for member in members
    }


class _Plan:
    """An assignment that is being made. `near`: the processes that have each task in it."""

    def __init__(self, members: Sequence[AssignableMember]) -> None:
        self.members = members
        self.active: dict[str, list[Task]] = {member.id: [] for member in members}
        self.standby: dict[str, list[Task]] = {member.id: [] for member in members}
        self.process_of = {member.id: member.process_id for member in members}
        self.processes: dict[str, list[str]] = {}
        for member in members:
            self.processes.setdefault(member.process_id, []).append(member.id)
        self.near: dict[Task, set[str]] = {}
        self.before: dict[Task, str] = {}  # who runs each task now
        self.candidates: dict[Task, list[str]] = {}  # who has a copy of its state, the best first

    def load(self, member_id: str) -> int:
        return len(self.active[member_id]) + len(self.standby[member_id])

    def assign_active(self, tasks: Sequence[Task]) -> _Steps:
        yield from self._gather(frozenset(tasks))
        quota = self._share_out(len(tasks))
        free = yield from self._keep(tasks, quota)
        free = yield from self._follow_state(free, quota)
        # By subtopology, so that the tasks of each are spread over the members.
        waiting = [
            (len(self.active[id_]), at, id_)
            for at, id_ in enumerate(self._one_by_one())
            if len(self.active[id_]) < quota[id_]
        ]
        heapify(waiting)
        for task in free:
            count, at, member_id = heappop(waiting)
            self._run(member_id, task)
            if count + 1 < quota[member_id]:
                heappush(waiting, (count + 1, at, member_id))
            yield

    def _gather(self, known: Tasks) -> _Steps:
        ranked: dict[Task, list[tuple[bool, int, str]]] = {}
        for member in self.members:
            for task in member.active & known:
                self.before[task] = member.id
            for task in (member.copies | member.offsets.keys()) & known:
                # Copies before state that only is on the disk, then those that have the most.
                rank = (task not in member.copies, -member.offsets.get(task, 0), member.id)
                ranked.setdefault(task, []).append(rank)
            yield
        for task, ranks in ranked.items():
            self.candidates[task] = [member_id for _, _, member_id in sorted(ranks)]
            yield

    def _one_by_one(self) -> Iterable[str]:
        """Yield the members, the first of each process first."""
        longest = max(map(len, self.processes.values()))
        for at in range(longest):
            for found in self.processes.values():
                if at < len(found):
                    yield found[at]

    def _share_out(self, total: int) -> dict[str, int]:
        """Return how many active tasks each member gets: one more for those that have the most."""
        least, more = divmod(total, len(self.members))
        counts = dict.fromkeys(self.active, 0)
        for member_id in self.before.values():
            counts[member_id] += 1
        order = sorted(self._one_by_one(), key=lambda id_: -min(counts[id_], least + 1))
        return {id_: least + (at < more) for at, id_ in enumerate(order)}

    def _keep(
        self, tasks: Sequence[Task], quota: Mapping[str, int]
    ) -> Generator[None, None, list[Task]]:
        """Give members the tasks that they run. Return the others."""
        free: list[Task] = []
        # By partition: a member with too many keeps some of each subtopology.
        for task in sorted(tasks, key=lambda task: (task[1], task[0])):
            owner = self.before.get(task)
            if owner is not None and len(self.active[owner]) < quota[owner]:
                self._run(owner, task)
            else:
                free.append(task)
            yield
        free.sort()
        return free

    def _follow_state(
        self, tasks: Sequence[Task], quota: Mapping[str, int]
    ) -> Generator[None, None, list[Task]]:
        """Give tasks to members that have their state. Return the others."""
        free: list[Task] = []
        for task in tasks:
            for member_id in self.candidates.get(task, ()):
                if len(self.active[member_id]) < quota[member_id]:
                    self._run(member_id, task)
                    break
            else:
                free.append(task)
            yield
        return free

    def _run(self, member_id: str, task: Task) -> None:
        self.active[member_id].append(task)
        self.near.setdefault(task, set()).add(self.process_of[member_id])

    def _copy(self, member_id: str, task: Task) -> None:
        self.standby[member_id].append(task)
        self.near[task].add(self.process_of[member_id])

    def assign_standby(self, tasks: Sequence[Task], replicas: int, active: int) -> _Steps:
        # As many tasks as a member has if all have equally many, one more at most.
        quota = -(-(active + len(tasks) * replicas) // len(self.members))
        left: list[tuple[Task, int]] = []
        for task in tasks:
            missing = replicas
            # Who ran it, and who had a copy, has its state.
            for member_id in [
                *filter(None, [self.before.get(task)]),
                *self.candidates.get(task, ()),
            ]:
                if not missing:
                    break
                near = self.process_of[member_id] in self.near[task]
                if not near and self.load(member_id) < quota:
                    self._copy(member_id, task)
                    missing -= 1
            if missing:
                left.append((task, missing))
            yield
        yield from self._spread(left)

    def _spread(self, left: Sequence[tuple[Task, int]]) -> _Steps:
        """Give standby tasks to the processes with the lowest load, and in them to the member with
        the fewest tasks."""
        loads = {name: sum(map(self.load, ids)) for name, ids in self.processes.items()}
        order = [(loads[name] / len(ids), name) for name, ids in self.processes.items()]
        heapify(order)
        for task, missing in left:
            passed: list[tuple[float, str]] = []
            while missing and order:
                entry = heappop(order)
                name = entry[1]
                # At most one process for each copy is passed over.
                if name not in self.near[task]:
                    member_id = min(self.processes[name], key=lambda id_: (self.load(id_), id_))
                    self._copy(member_id, task)
                    missing -= 1
                    loads[name] += 1
                    entry = (loads[name] / len(self.processes[name]), name)
                passed.append(entry)
            for entry in passed:
                heappush(order, entry)
            yield
