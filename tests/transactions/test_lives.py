"""Lives of the transaction service over the real log: power cuts, kills, full and failing disks.

What must hold at the end is what tests.transactions.test_simulation says. Data partitions are
models; `SIM_SEEDS=500 pytest tests/transactions/test_lives.py` runs more.
"""

from __future__ import annotations

import os

import pytest

from kafkawire.coordination import coordinator as coordinator_module
from kafkawire.coordination.settling import CommitQueue, Effect
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import run
from tests.kit.transactions.life import Life, Outside

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))
LIVES = 4


def simulate(seed: int) -> Outside:
    outside = Outside(seed)
    for number in range(LIVES + 1):
        outside.fs.faults.__init__()  # type: ignore[misc]
        life = Life(outside, last=number == LIVES)
        run(life.loop, life.main())
        outside.crashes += 1
    return outside


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after little log, so that each life has some."""
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 2000)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_one_outcome_through_any_end(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_the_checks_see_answers_before_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds are some of those in which a crash falls between the two."""

    def early(self: CommitQueue, effects: list[Effect], *, appended: bool) -> None:
        if appended:
            self.expect_write()
        for effect in effects:
            effect()

    monkeypatch.setattr(CommitQueue, "release", early)
    found = 0
    with quiet():
        for seed in (8, 20, 24, 34):
            try:
                simulate(seed)
            except AssertionError:
                found += 1
    assert found >= 1


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    with quiet():
        once, again = simulate(2), simulate(2)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.history == again.history
