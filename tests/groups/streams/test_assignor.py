"""Properties of the assignor of streams groups."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.groups.streams.assignor import AssignableMember, AssignableTasks, assign_sticky
from kafkawire.groups.streams.member import TargetTasks, Task
from kafkawire.log.io.slices import run_at_once

Subtopologies = dict[str, AssignableTasks]


def assign(
    members: list[AssignableMember], subtopologies: Subtopologies, standby_replicas: int = 0
) -> dict[str, TargetTasks]:
    return run_at_once(assign_sticky(members, subtopologies, standby_replicas))


def continue_with(
    members: list[AssignableMember], targets: dict[str, TargetTasks]
) -> list[AssignableMember]:
    """Return the members with the tasks of a target."""
    return [
        each._replace(
            active=targets[each.id].active if each.id in targets else frozenset(),
            copies=targets[each.id].standby if each.id in targets else frozenset(),
        )
        for each in members
    ]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[AssignableMember], Subtopologies]:
    subtopologies = {
        str(number): AssignableTasks(draw(st.integers(1, 9)), draw(st.booleans()))
        for number in range(draw(st.integers(0, 4)))
    }
    tasks = [(name, at) for name, each in subtopologies.items() for at in range(each.size)]
    # Of an earlier topology, or of topics that had more partitions.
    tasks += [("9", 0), ("0", 99)]
    ids = [f"m{number}" for number in range(draw(st.integers(1, 8)))]
    owners = {task: draw(st.sampled_from([*ids, ""])) for task in tasks}
    members = [
        AssignableMember(
            id_,
            f"p{draw(st.integers(0, 4))}",
            frozenset(task for task, owner in owners.items() if owner == id_),
            frozenset(draw(st.lists(st.sampled_from(tasks), max_size=6))),
            dict(draw(st.lists(st.tuples(st.sampled_from(tasks), st.integers(0, 9)), max_size=4))),
        )
        for id_ in ids
    ]
    return members, subtopologies


@given(groups(), st.integers(0, 3))
def test_each_task_has_one_owner_and_its_copies_are_in_other_processes(
    group: tuple[list[AssignableMember], Subtopologies], replicas: int
) -> None:
    members, subtopologies = group
    targets = assign(members, subtopologies, replicas)
    assert targets.keys() == {each.id for each in members}
    tasks = [(name, at) for name, each in subtopologies.items() for at in range(each.size)]
    assert Counter(task for each in targets.values() for task in each.active) == Counter(tasks)
    sizes = [len(each.active) for each in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    process_of = {each.id: each.process_id for each in members}
    holders: dict[Task, list[str]] = {}
    for id_, target in targets.items():
        assert not target.warmup
        for task in (*target.active, *target.standby):
            holders.setdefault(task, []).append(process_of[id_])
    for name, at in tasks:
        found = holders[name, at]
        assert len(set(found)) == len(found)
        wanted = replicas if subtopologies[name].stateful else 0
        assert len(found) == 1 + min(wanted, len(set(process_of.values())) - 1)


@given(groups(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_the_order_of_members(
    group: tuple[list[AssignableMember], Subtopologies], replicas: int, random: object
) -> None:
    members, subtopologies = group
    again = list(reversed(members))
    assert assign(members, subtopologies, replicas) == assign(again, subtopologies, replicas)


@given(groups(), st.integers(0, 3))
def test_an_assignment_stays_if_nothing_changes(
    group: tuple[list[AssignableMember], Subtopologies], replicas: int
) -> None:
    members, subtopologies = group
    targets = assign(members, subtopologies, replicas)
    again = assign(continue_with(members, targets), subtopologies, replicas)
    assert {id_: each.active for id_, each in again.items()} == {
        id_: each.active for id_, each in targets.items()
    }


@given(groups())
def test_members_keep_what_they_run_up_to_their_share(
    group: tuple[list[AssignableMember], Subtopologies],
) -> None:
    members, subtopologies = group
    targets = assign(members, subtopologies)
    tasks = {(name, at) for name, each in subtopologies.items() for at in range(each.size)}
    least = len(tasks) // len(members)
    for each in members:
        had = each.active & tasks
        assert len(had & targets[each.id].active) >= min(len(had), least)


@given(groups(), st.integers(0, 3))
def test_a_member_that_leaves_moves_only_its_tasks_and_what_balance_needs(
    group: tuple[list[AssignableMember], Subtopologies], replicas: int
) -> None:
    members, subtopologies = group
    if len(members) < 2:
        return
    targets = assign(members, subtopologies, replicas)
    left = continue_with(members, targets)[1:]
    after = assign(left, subtopologies, replicas)
    # All others had at least as many as they need to give away none.
    for each in left:
        assert targets[each.id].active <= after[each.id].active


def test_a_standby_copy_becomes_active_when_the_owner_is_gone() -> None:
    members = [AssignableMember(f"m{n}", f"p{n}") for n in range(3)]
    subtopologies = {"0": AssignableTasks(6, True)}
    targets = assign(members, subtopologies, 1)
    left = continue_with(members, targets)[1:]
    after = assign(left, subtopologies, 1)
    gone = targets["m0"].active
    for each in left:
        assert after[each.id].active & gone <= targets[each.id].standby
    # The other copies stay where they are, or follow.
    assert all(len(each.active | each.standby) == 6 for each in after.values())


def test_state_on_a_disk_brings_tasks_back() -> None:
    tasks = [("0", at) for at in range(4)]
    members = [
        AssignableMember("a", "p1", offsets={tasks[0]: 5, tasks[1]: 5, tasks[2]: 9}),
        AssignableMember("b", "p2", offsets={tasks[1]: 7, tasks[3]: 1}),
    ]
    targets = assign(members, {"0": AssignableTasks(4, True)})
    assert targets["b"].active == {tasks[1], tasks[3]}
    assert targets["a"].active == {tasks[0], tasks[2]}


@pytest.mark.parametrize("replicas", [0, 1])
def test_tasks_of_each_subtopology_are_spread_over_processes(replicas: int) -> None:
    """Two processes of two threads each, and one of one."""
    members = [
        AssignableMember(f"m{n}", process)
        for n, process in enumerate(["p1", "p1", "p2", "p2", "q"])
    ]
    subtopologies = {"0": AssignableTasks(5, True), "1": AssignableTasks(5, False)}
    targets = assign(members, subtopologies, replicas)
    for target in targets.values():
        assert Counter(name for name, _ in target.active) == {"0": 1, "1": 1}
    if replicas:
        loads: Counter[str] = Counter()
        for each in members:
            loads[each.process_id] += len(targets[each.id].standby)
        assert sum(loads.values()) == 5
        assert loads["q"] <= 2


def test_without_members_nothing_is_assigned() -> None:
    assert assign([], {"0": AssignableTasks(2, True)}, 1) == {}
