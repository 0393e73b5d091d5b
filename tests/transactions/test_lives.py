"""Lives of the transaction service over the real log: power cuts, kills, full and failing disks.

What must hold at the end is what tests.transactions.machine.test_simulation says. Data partitions
are models; `SIM_SEEDS=500 pytest tests/transactions/test_lives.py` runs more.
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
MOST_SEEDS = 200
"""Seeds within which a defect must be found."""


def simulate(seed: int) -> Outside:
    outside = Outside(seed)
    for number in range(LIVES + 1):
        outside.fs.faults.__init__()  # type: ignore[misc]
        life = Life(outside, last=number == LIVES)
        run(life.loop, life.main())
        outside.crashes += 1
    return outside


def fails(seed: int) -> bool:
    """Return whether the checks fail in this run."""
    try:
        simulate(seed)
    except AssertionError:
        return True
    return False


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
    """A crash falls between the two in one of the first seeds."""

    def early(self: CommitQueue, effects: list[Effect], *, appended: bool) -> None:
        if appended:
            self.expect_write()
        for effect in effects:
            effect()

    monkeypatch.setattr(CommitQueue, "release", early)
    with quiet():
        assert any(fails(seed) for seed in range(MOST_SEEDS)), f"not found in {MOST_SEEDS} seeds"


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    with quiet():
        once, again = simulate(2), simulate(2)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.history == again.history
