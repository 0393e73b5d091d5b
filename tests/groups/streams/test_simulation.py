"""Streams groups in a seeded simulation, and mutations of the machine that it must find.

`SIM_SEEDS=500 pytest tests/groups/streams/test_simulation.py` runs more seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch as patched

import pytest

from kafkawire.groups import large_targets
from kafkawire.groups.streams import group as group_module
from kafkawire.groups.streams import heartbeat as heartbeat_module
from kafkawire.groups.streams import reconcile as reconcile_module
from kafkawire.groups.streams import refine as refine_module
from kafkawire.groups.streams import target as target_module
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import NOTHING, with_current
from tests.kit.groups.streams_life import StreamsLife

SEEDS = int(os.environ.get("SIM_SEEDS", "40"))
MUTATION_SEEDS = 1_000


def simulate(seed: int) -> StreamsLife:
    life = StreamsLife(seed)
    try:
        # Half of them compute their targets in slices, as large groups do.
        with patched.object(target_module, "LARGE", 0 if seed % 2 else 10_000):
            life.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return life


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_invariants_hold(first: int) -> None:
    lives = [simulate(seed) for seed in range(first, min(first + 10, SEEDS))]
    assert sum(life.fenced for life in lives) > 0
    assert sum(life.lost_answers for life in lives) > len(lives)
    assert sum(life.moved for life in lives) > 10 * len(lives)


def test_tasks_are_warmed_up() -> None:
    assert sum(simulate(seed).warmed > 0 for seed in range(40)) > 5


def test_a_seed_repeats_a_run() -> None:
    once, again = simulate(3), simulate(3)
    assert once.trace == again.trace
    assert once.desk.log == again.desk.log


def give_what_others_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile_module.Holders, "is_active_free", lambda self, task: True)


def give_copies_twice_to_a_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile_module.Holders, "is_copy_free", lambda self, task: True)


def ignore_copies_near_an_active_task(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile_module.Holders, "_has_copy", lambda self, task: False)


def do_not_wait_for_revocation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile_module, "_shows", lambda owned, revoked: False)


def accept_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "_check_epoch", lambda member, request: None)


def accept_the_previous_epoch_with_any_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "_has_assigned", lambda member, request: True)


def forget_to_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module.StreamsHeartbeat, "_is_changed", lambda self: False)


def configure_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "hash_topics", lambda names, topics: 1)


def forget_pending_tasks(patch: pytest.MonkeyPatch) -> None:
    original = with_current

    def forget(member: Any, value: Any) -> Any:
        return replace(original(member, value), pending=NOTHING)

    patch.setattr(group_module, "with_current", forget)


def store_targets_that_are_out_of_date(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(large_targets, "is_current", lambda group, given: True)


def never_end_a_delay(patch: pytest.MonkeyPatch) -> None:
    original = StreamsGroup.apply

    def apply(self: StreamsGroup, step: Any) -> None:
        if type(step).__name__ != "DelayEnded":
            original(self, step)

    patch.setattr(StreamsGroup, "apply", apply)


def ignore_lags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refine_module, "_is_near_end", lambda *_: True)


def warm_up_all_tasks_at_once(patch: pytest.MonkeyPatch) -> None:
    def refine(m: Any, target: Any, offsets: Any, stateful: Any, replicas: int, lag: int) -> Any:
        return refine_module.refine(m, target, offsets, stateful, 99 if replicas else 0, lag)

    patch.setattr(heartbeat_module, "refine", refine)


def refine_an_assignment_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module.StreamsHeartbeat, "_has_next_step", lambda self: False)


def trust_members_after_a_load(patch: pytest.MonkeyPatch) -> None:
    original = heartbeat_module.StreamsHeartbeat._has_next_step

    def has_next_step(self: heartbeat_module.StreamsHeartbeat) -> bool:
        return self.group.refined is not None and original(self)

    patch.setattr(heartbeat_module.StreamsHeartbeat, "_has_next_step", has_next_step)


def keep_copies_near_a_task_that_stays(patch: pytest.MonkeyPatch) -> None:
    original = refine_module._change

    def change(tasks: Any, roles: Any) -> Any:
        kept = {task: role for task, role in roles.items() if role is not None}
        return original(tasks, kept)

    patch.setattr(refine_module, "_change", change)


MUTATIONS = [
    ignore_lags,
    warm_up_all_tasks_at_once,
    refine_an_assignment_once,
    trust_members_after_a_load,
    keep_copies_near_a_task_that_stays,
    give_what_others_have,
    give_copies_twice_to_a_process,
    ignore_copies_near_an_active_task,
    do_not_wait_for_revocation,
    accept_any_epoch,
    accept_the_previous_epoch_with_any_tasks,
    forget_to_raise_the_epoch,
    configure_only_once,
    forget_pending_tasks,
    store_targets_that_are_out_of_date,
    never_end_a_delay,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_mutations_are_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(MUTATION_SEEDS):
        try:
            simulate(seed)
        except AssertionError:
            return
    pytest.fail("not found")
