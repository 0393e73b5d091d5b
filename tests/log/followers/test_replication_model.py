"""Random walks of the model of `durability=replicated` (tests.log.followers.model).

What was acknowledged must be in the log of each later life, at its position. At any time the row in
SQL must be right: each disk from which it lets a start proceed has everything. In the end a start
must be able to proceed. Each rule has a walk without it (`Rules`) that must fail, which shows that
the walks reach the situation for which the rule exists.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import pytest

from tests.log.followers.model.parts import Rules
from tests.log.followers.model.world import Violation, World

STEPS = 1000
"""Steps of a walk: enough for 13 lives, of which five are established."""
STARTS = 0.01
"""How likely another life starts in a step."""
CALM_STEPS = 3000
"""Steps in which the last life must be established."""

MUTATED_WALKS = 200
"""Walks without a rule, of which one must fail: of the rarest failures there are four in 100."""

ALL_RULES = Rules()
PAIRED_EARLY = Rules(pair_complete=False)
COPIED_AGAIN = Rules(continue_unestablished=False)
VARIANTS = {
    # An empty copy next to that of a life that was not established
    "copied again": COPIED_AGAIN,
    # The rules for that are not needed otherwise
    "one copy": Rules(keep_older=False, forget_established=False),
    # Epochs of entries are compared, as in Kafka's OffsetsForLeaderEpoch
    "common prefix": Rules(common_prefix=True, keep_older=False, forget_established=False),
    # The position of BEGIN is enough if nothing is appended before a life is established
    "append late": Rules(append_early=False, cut_copy_at_epoch=False, cut_own_at_epoch=False),
}
"""Other protocols that lose nothing."""
BASES = {
    "interrupted_is_fresh": PAIRED_EARLY,
    "keep_older": COPIED_AGAIN,
    "forget_established": COPIED_AGAIN,
}
"""The variants that need a rule which the protocol does not."""
NO_RULES = {"append_early", "continue_unestablished", "common_prefix"}
RULES = [rule.name for rule in fields(Rules) if rule.name not in NO_RULES]


def walk(seed: int, rules: Rules = ALL_RULES) -> Counter[str]:
    """Make one walk; return what it has reached. Raises Violation."""
    world = World(seed, rules)
    for _ in range(STEPS):
        if not world.lives or world.random.random() < STARTS:
            world.start_life()
        world.step()
    last = world.start_last()
    for _ in range(CALM_STEPS):
        if last.established:
            break
        world.step()
    else:
        raise Violation("the last start cannot proceed")
    world.calm = False
    for _ in range(STEPS // 5):  # late messages, and lives that have stalled
        world.step()
    world.seen["lives"] += last.epoch
    return world.seen


def check(seeds: range, rules: Rules = ALL_RULES) -> None:
    for seed in seeds:
        try:
            walk(seed, rules)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")


@pytest.mark.parametrize(
    "seeds",
    [range(50), pytest.param(range(50, 3000), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_nothing_acknowledged_is_lost(seeds: range) -> None:
    check(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_lose_nothing(name: str) -> None:
    check(range(300), VARIANTS[name])


def test_walks_reach_what_the_rules_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(50):
        seen += walk(seed)
    assert seen["lives"] > 300
    assert seen["established"] > 150
    assert seen.keys() >= {
        "acknowledged",
        "acknowledged by a superseded life",
        "a follower has refused an earlier life",
        "a disk was replaced",
        "an update was refused",
        "an update was abandoned",
        "copied",
        "recovered",
        "a copy had entries of a life that was not established",
        "they began before the position of BEGIN",
    }


def test_seed_decides_a_walk() -> None:
    assert walk(4711) == walk(4711)


@pytest.mark.parametrize("rule", RULES)
def test_walks_without_a_rule_fail(rule: str) -> None:
    rules = replace(BASES.get(rule, ALL_RULES), **{rule: False})
    for seed in range(MUTATED_WALKS):
        try:
            walk(seed, rules)
        except Violation:
            return
    pytest.fail(f"nothing was lost in {MUTATED_WALKS} walks without {rule}")
