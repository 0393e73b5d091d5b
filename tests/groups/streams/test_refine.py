"""Properties of refined assignments: warm-up tasks, and where tasks are that must not move yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.groups.streams.assignor import AssignableMember, AssignableTasks, assign_sticky
from kafkawire.groups.streams.group import TaskOffsets
from kafkawire.groups.streams.member import (
    NO_TARGET,
    HeldTasks,
    StreamsMember,
    TargetTasks,
    Task,
)
from kafkawire.groups.streams.refine import MAX_TASKS, refine
from kafkawire.log.io.slices import run_at_once

STATEFUL = {"0"}
LAG = 10
T = [("0", at) for at in range(4)]
Members = list[StreamsMember]
Targets = dict[str, TargetTasks]


def target(
    *active: Task, standby: tuple[Task, ...] = (), warmup: tuple[Task, ...] = ()
) -> TargetTasks:
    return TargetTasks(frozenset(active), frozenset(standby), frozenset(warmup))


def member(id_: str, tasks: TargetTasks = NO_TARGET, process: str = "") -> StreamsMember:
    held = HeldTasks(dict.fromkeys(tasks.active, 1), tasks.standby, tasks.warmup)
    return StreamsMember(id_, process_id=process or f"p-{id_}", assigned=held)


def reports(*members: str, **tasks: tuple[int, int]) -> dict[str, TaskOffsets]:
    """Offset and end of the first task, by member; of `members` empty reports."""
    found: dict[str, TaskOffsets] = {name: ({}, {}) for name in members}
    found.update({name: ({T[0]: at}, {T[0]: end}) for name, (at, end) in tasks.items()})
    return found


def find(
    members: Members, targets: Targets, offsets: dict[str, TaskOffsets], replicas: int = 2
) -> Targets:
    return refine(members, targets, offsets, STATEFUL, replicas, LAG)


MOVED = {"a": target(T[1]), "b": target(T[0])}
OWNED = member("a", target(T[0], T[1]))


def test_a_task_with_state_is_restored_before_it_moves() -> None:
    wanted = {"a": target(T[0], T[1]), "b": target(warmup=(T[0],))}
    assert find([OWNED, member("b")], MOVED, reports("b")) == wanted
    warm = [OWNED, member("b", target(warmup=(T[0],)))]
    # Its lag is unknown: after a load, by its first report, or at the client; or it is too much.
    for given_ in (reports(), reports("b"), reports(b=(-1, 5)), reports(b=(5, 2**63 - 1))):
        assert find(warm, MOVED, given_) == wanted
    assert find(warm, MOVED, {"b": ({}, {T[0]: 5})}) == wanted
    assert find(warm, MOVED, reports(b=(89, 100))) == wanted
    assert find(warm, MOVED, reports(b=(90, 100))) == {}
    assert find(warm, MOVED, reports(b=(101, 100))) == {}


def test_a_task_moves_immediately_that_need_not_or_cannot_be_restored() -> None:
    new = member("b")
    assert find([OWNED, new], MOVED, reports("b"), replicas=0) == {}
    assert refine([OWNED, new], MOVED, reports("b"), (), 2, LAG) == {}
    # The client is older than 4.4.
    assert find([OWNED, new], MOVED, reports("a")) == {}
    assert find([OWNED, member("b", process="p-a")], MOVED, reports("b")) == {}
    # It has no owner, or its owner revokes it.
    assert find([member("a", target(T[1])), new], MOVED, reports("b")) == {}
    # Its next owner was removed while a large target was computed.
    assert find([OWNED], MOVED, reports("b")) == {}
    # Another member of the next process has its state.
    copy = member("c", target(standby=(T[0],)), "p-b")
    assert find([OWNED, new, copy], MOVED, reports("b", c=(95, 100))) == {}


def test_tasks_of_a_large_group_move_immediately() -> None:
    tasks = [("0", at) for at in range(MAX_TASKS)]
    owned = member("a", target(*tasks))
    targets = {"a": target(*tasks[1:]), "b": target(tasks[0])}
    assert find([owned, member("b")], targets, reports("b"))
    targets["a"] = target(*tasks[1:], ("0", MAX_TASKS))
    assert find([owned, member("b")], targets, reports("b")) == {}


def test_more_tasks_than_warm_up_tasks_stay_with_their_owner() -> None:
    owner = member("a", target(*T))
    targets = {"a": target(), "b": target(*T)}
    for replicas in (1, 2, 3):
        found = find([owner, member("b")], targets, reports("b"), replicas)
        assert found == {"a": target(*T), "b": target(warmup=tuple(T[:replicas]))}
    # Those that are being restored are first.
    warm = member("b", target(warmup=(T[2],)))
    found = find([owner, warm], targets, reports("b"), 2)
    assert found["b"] == target(warmup=(T[0], T[2]))
    # A copy is kept without being one of them.
    copy = member("b", target(standby=(T[0], T[3])))
    found = find([owner, copy], targets, reports("b"), 2)
    assert found["b"] == target(standby=(T[3],), warmup=(T[0], T[1]))


def test_a_process_that_keeps_a_task_gets_no_copy_of_it() -> None:
    sibling = member("c", process="p-a")
    for standby_of in ("a", "c"):
        targets = {"a": target(T[1]), "b": target(T[0]), "c": target(T[2])}
        targets[standby_of] = targets[standby_of]._replace(standby=frozenset((T[0],)))
        found = find([OWNED, member("b"), sibling], targets, reports("b"))
        assert found["a"] == target(T[0], T[1])
        assert found.get("c", targets["c"]) == target(T[2])


@st.composite
def groups(draw: st.DrawFn) -> tuple[Members, Targets, int]:
    """Members with tasks that are in a process once, and what the assignor wants."""
    tasks = [(name, at) for name in ("0", "1") for at in range(draw(st.integers(1, 5)))]
    ids = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    processes = {id_: f"p{draw(st.integers(0, 3))}" for id_ in ids}
    had: dict[str, list[set[Task]]] = {id_: [set(), set(), set()] for id_ in ids}
    for task in tasks:
        order = draw(st.permutations(ids))[: draw(st.integers(0, 4))]
        near: set[str] = set()
        for at, id_ in enumerate(order):
            if processes[id_] not in near and (at == 0 or task[0] == "0"):
                near.add(processes[id_])
                had[id_][0 if at == 0 else draw(st.integers(1, 2))].add(task)
    members = [member(id_, TargetTasks(*map(frozenset, had[id_])), processes[id_]) for id_ in ids]
    given_ = [
        AssignableMember(
            each.id,
            each.process_id,
            frozenset(each.assigned.active),
            each.assigned.standby | each.assigned.warmup,
        )
        for each in members
    ]
    sizes = {name: AssignableTasks(sum(t[0] == name for t in tasks), name == "0") for name in "01"}
    replicas = draw(st.integers(0, 2))
    return members, run_at_once(assign_sticky(given_, sizes, replicas)), draw(st.integers(0, 3))


def apply(members: Members, targets: Targets, refined: Targets) -> Members:
    """Return the members once they have reached a refined assignment."""
    return [
        member(each.id, refined.get(each.id, targets[each.id]), each.process_id) for each in members
    ]


def restored(members: Members) -> dict[str, TaskOffsets]:
    """Return the reports of members whose copies have all records."""
    found: dict[str, TaskOffsets] = {}
    for each in members:
        ends = dict.fromkeys((*each.assigned.standby, *each.assigned.warmup), 100)
        found[each.id] = (ends, ends)
    return found


@given(groups(), st.booleans())
def test_tasks_have_one_owner_and_processes_have_each_once(
    group: tuple[Members, Targets, int], near_end: bool
) -> None:
    members, targets, replicas = group
    offsets = restored(members) if near_end else reports(*(each.id for each in members))
    refined = find(members, targets, offsets, replicas)
    assert all(tasks != targets[id_] for id_, tasks in refined.items())
    after = apply(members, targets, refined)
    active = Counter(task for each in after for task in each.assigned.active)
    assert active == Counter(task for tasks in targets.values() for task in tasks.active)
    assert sum(len(each.assigned.warmup) for each in after) <= replicas
    near = Counter(
        (task, each.process_id) for each in after for role in each.assigned for task in role
    )
    assert set(near.values()) <= {1}
    for task, owner in ((t, each.id) for each in members for t in each.assigned.active):
        next_owner = next(id_ for id_, tasks in targets.items() if task in tasks.active)
        new = next(each for each in after if task in each.assigned.active)
        assert new.id in (owner, next_owner)


@given(groups())
def test_it_ends_with_the_target(group: tuple[Members, Targets, int]) -> None:
    members, targets, replicas = group
    known = reports(*(each.id for each in members))
    for _ in range(12):
        refined = find(members, targets, known, replicas)
        members = apply(members, targets, refined)
        if not refined:
            return
        # The next step is the same until a report shows more.
        assert find(members, targets, known, replicas) == refined
        known = restored(members)
    raise AssertionError("it does not end")


def test_the_result_does_not_depend_on_the_order_of_members() -> None:
    members = [member("a", target(*T)), member("b"), member("c")]
    targets = {"a": target(T[3]), "b": target(T[0], T[2]), "c": target(T[1])}
    known = reports("b", "c")
    found = find(members, targets, known)
    assert found == find(members[::-1], dict(reversed(targets.items())), known)
    assert found["b"] == target(warmup=(T[0],))
    assert found["c"] == target(warmup=(T[1],))
    # Of a task that is revoked, the owner does not count.
    revoking = replace(members[0], assigned=HeldTasks({}), pending=members[0].assigned)
    assert find([revoking, *members[1:]], targets, known) == {}
