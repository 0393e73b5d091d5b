"""Consumer groups in a seeded simulation, and mutations of the machine that it must find.

`SIM_SEEDS=500 pytest tests/groups/consumer/test_simulation.py` runs more seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from kafkawire.groups import large_targets
from kafkawire.groups.consumer import group as group_module
from kafkawire.groups.consumer import heartbeat as heartbeat_module
from kafkawire.groups.consumer import reconcile as reconcile_module
from kafkawire.groups.consumer import removal as removal_module
from kafkawire.groups.consumer import target as target_module
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.member import MemberState
from tests.kit.groups.consumer_life import ConsumerLife

SEEDS = int(os.environ.get("SIM_SEEDS", "30"))
MUTATION_SEEDS = 60


def simulate(seed: int) -> ConsumerLife:
    """A seed; every other group counts as a large one, whose target is computed in slices."""
    large = bool(seed % 2)
    life = ConsumerLife(seed, large)
    try:
        with patch.object(target_module, "LARGE", 0 if large else 10_000):
            life.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return life


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_invariants_hold(first: int) -> None:
    lives = [simulate(seed) for seed in range(first, min(first + 5, SEEDS))]
    assert sum(life.fenced for life in lives) > 0
    assert sum(life.lost_answers for life in lives) > len(lives)
    assert sum(len(life.desk.log) for life in lives) > 50 * len(lives)


def test_unchanged_heartbeats_and_large_groups_are_among_them() -> None:
    lives = [simulate(seed) for seed in range(10)]
    assert sum(life.desk.unchanged for life in lives) > 10
    assert sum(life.desk.computed for life in lives) > 20


def test_a_seed_repeats_a_run() -> None:
    once, again = simulate(3), simulate(3)
    assert once.trace == again.trace
    assert once.desk.log == again.desk.log


def give_what_others_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "owner", lambda self, topic_id, partition: None)


def do_not_wait_for_revocation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile_module, "_shows", lambda owned, revoked: False)


def accept_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "_check_epoch", lambda member, request: None)
    find = removal_module.find_member

    def found(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Any:
        member = find(group, member_id, instance_id)
        return replace(member, state=MemberState.STABLE, pending={})

    patch.setattr(heartbeat_module, "find_member", found)


def forget_to_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat_module, "hash_topics", lambda names, topics: 0)


def keep_patterns_of_the_first_match(patch: pytest.MonkeyPatch) -> None:
    original = heartbeat_module.decide_matched

    def once(group: ConsumerGroup, topics: Any, found: Any, *more: Any) -> Any:
        fresh = {name: at for name, at in found.items() if name not in group.matched}
        return original(group, topics, fresh, *more)

    patch.setattr("kafkawire.groups.shard.consumer_heartbeat.decide_matched", once)


def leave_the_epoch_of_the_group(patch: pytest.MonkeyPatch) -> None:
    original = group_module.epoch_record
    patch.setattr(
        removal_module, "epoch_record", lambda id_, epoch, digest: original(id_, epoch - 1, digest)
    )


def release_without_looking_at_the_owner(patch: pytest.MonkeyPatch) -> None:
    def release(self: ConsumerGroup, member_id: str, partitions: Any) -> None:
        for topic_id, found in partitions.items():
            for partition in found:
                self.owners.get(topic_id, {}).pop(partition, None)

    patch.setattr(ConsumerGroup, "_release", release)


def answer_members_that_have_work_at_once(patch: pytest.MonkeyPatch) -> None:
    original = heartbeat_module.answer_unchanged

    def answer(group: ConsumerGroup, topics: Any, *more: Any) -> Any:
        compared, group.compared = group.compared, topics.topic_revision()
        try:
            return original(group, topics, *more)
        finally:
            group.compared = compared

    patch.setattr(heartbeat_module, "answer_unchanged", answer)


def store_targets_that_are_out_of_date(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(large_targets, "is_current", lambda group, given: True)


MUTATIONS = [
    store_targets_that_are_out_of_date,
    answer_members_that_have_work_at_once,
    give_what_others_have,
    do_not_wait_for_revocation,
    accept_any_epoch,
    forget_to_raise_the_epoch,
    keep_patterns_of_the_first_match,
    leave_the_epoch_of_the_group,
    release_without_looking_at_the_owner,
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
