"""Leaders of a share partition in virtual time, and a checker of what members saw.

`SIM_SEEDS=500 pytest tests/share/test_leader.py` runs more seeds.

Covers: kafkawire.share.leader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from kafkawire.share.leader import ShareLeader
from kafkawire.share.partition import SharePartition
from tests.kit.seeds import quiet, run_seeds
from tests.kit.share.life import ShareLife
from tests.kit.simloop import run
from tests.share.test_model import mutate

SEEDS = int(os.environ.get("SIM_SEEDS", "20"))


def simulate(seed: int) -> ShareLife:
    life = ShareLife(seed)
    run(life.loop, life.main())
    return life


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_every_history_is_one_of_a_queue(first: int) -> None:
    run_seeds(simulate, first, min(first + 5, SEEDS))


def test_same_seed_gives_same_run() -> None:
    with quiet():
        once, again = simulate(3), simulate(3)
    assert (once.counts, once.done) == (again.counts, again.done)


def test_the_checker_notices_answers_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = ShareLeader.acknowledge

    def answer_now(self: ShareLeader, *given: Any) -> None:
        acknowledge(self, *given)

    monkeypatch.setattr(ShareLeader, "acknowledge", answer_now)
    _find_violation()


def test_the_checker_notices_failed_writes_that_are_answered_as_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def succeed(future: Any, failure: object) -> None:
        if not future.done():
            future.set_result(None)

    monkeypatch.setattr("kafkawire.share.leader._complete", succeed)
    _find_violation()


@pytest.mark.slow
def test_the_checker_notices_a_start_that_moves_before_the_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acknowledgements of what is before the start succeed without a write."""
    changed = mutate(" or run.value.save:", ":")
    monkeypatch.setattr("kafkawire.share.leader.SharePartition", changed)
    _find_violation(range(180, 240))


def test_the_checker_notices_locks_that_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = SharePartition.decide_expire

    def early(self: SharePartition, now_ms: int, settings: Any) -> Any:
        return expire(self, now_ms + 1_500, settings)

    monkeypatch.setattr(SharePartition, "decide_expire", early)
    _find_violation()


def _find_violation(seeds: Sequence[int] = range(40)) -> None:
    with quiet(), pytest.raises(AssertionError):
        _simulate_many(seeds)


def _simulate_many(seeds: Sequence[int]) -> None:
    for seed in seeds:
        simulate(seed)
