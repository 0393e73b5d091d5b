"""Share groups in a seeded simulation, and mutations of the machine that it must find.

`SIM_SEEDS=500 pytest tests/groups/share/test_simulation.py` runs more seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kafkawire.groups import shard as shard_module
from kafkawire.groups.model.decision import Decision
from kafkawire.groups.share import group as group_module
from kafkawire.groups.share import heartbeat as heartbeat_module
from kafkawire.groups.share import initialization as initialization_module
from kafkawire.groups.share import offsets as offsets_module
from kafkawire.groups.share.group import ShareGroup
from tests.kit.groups.share_life import ShareLife

SEEDS = int(os.environ.get("SIM_SEEDS", "40"))
MUTATION_SEEDS = 80


def simulate(seed: int) -> ShareLife:
    life = ShareLife(seed)
    try:
        life.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return life


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_invariants_hold(first: int) -> None:
    lives = [simulate(seed) for seed in range(first, min(first + 10, SEEDS))]
    assert sum(life.fenced for life in lives) > 0
    assert sum(life.lost_answers for life in lives) > len(lives)
    assert sum(len(life.desk.log) for life in lives) > 50 * len(lives)


def test_a_seed_repeats_a_run() -> None:
    once, again = simulate(3), simulate(3)
    assert once.trace == again.trace
    assert once.desk.log == again.desk.log


def assign_without_states(patch: pytest.MonkeyPatch) -> None:
    def all_partitions(group: ShareGroup, topics: Any) -> dict[bytes, frozenset[int]]:
        ids = [topics.topic_id(name) for name in topics]
        return {id_: frozenset(range(topics[topics.topic_name(id_)])) for id_ in ids}

    patch.setattr(heartbeat_module, "list_assignable", all_partitions)


def initialize_during_a_deletion(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_module, "_count_begun", lambda counts, topic_ids: None)


def forget_partitions_that_failed(patch: pytest.MonkeyPatch) -> None:
    original = initialization_module.decide_initialized

    def all_made(group: ShareGroup, topics: Any, partitions: Mapping[Any, bool]) -> Decision:
        return original(group, topics, dict.fromkeys(partitions, True))

    patch.setattr(shard_module, "decide_initialized", all_made)


def never_check_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module.ShareHeartbeat, "_is_assignment_pending", lambda self: False)


def accept_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "_check_epoch", lambda member, epoch: None)


def leave_the_epoch_of_the_group(patch: pytest.MonkeyPatch) -> None:
    original = group_module.epoch_record

    def lower(group_id: str, epoch: int, digest: int) -> Any:
        return original(group_id, max(epoch - 1, 1), digest)

    patch.setattr(heartbeat_module, "epoch_record", lower)


def keep_states_of_deleted_offsets(patch: pytest.MonkeyPatch) -> None:
    original = offsets_module.delete_offsets

    def keep(group: ShareGroup, topics: Any, ask: Any) -> Decision:
        decision = original(group, topics, ask)
        decision.steps[:1] = []
        return decision

    patch.setattr("kafkawire.groups.shard.share_offsets.delete_offsets", keep)


def forget_to_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "hash_topics", lambda names, topics: 0)
    never_check_again(patch)


def trust_states_after_a_load(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "look_up_states", lambda group, decision: None)


MUTATIONS = [
    trust_states_after_a_load,
    assign_without_states,
    initialize_during_a_deletion,
    forget_partitions_that_failed,
    never_check_again,
    accept_any_epoch,
    leave_the_epoch_of_the_group,
    keep_states_of_deleted_offsets,
    forget_to_raise_the_epoch,
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
