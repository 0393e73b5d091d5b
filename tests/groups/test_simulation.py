"""Groups in a seeded simulation: consumers that join, leave, crash and commit, over a broker that
is killed, loses its power, or is closed, on a disk that forgets and fails.

What must hold:
- within a generation no partition is given to two consumers;
- a commit that was acknowledged is never lost, and what a group once read as its offset never
  goes back, through any end of the broker;
- what a snapshot and the log after it give is what the log alone gives, at every start;
- a topic made again under an old name has no offsets from before;
- once the trouble ends, every group settles: one generation, every partition read by somebody.

`SIM_SEEDS=500 pytest tests/groups/test_simulation.py` runs more; a failing seed is in the message.
"""

from __future__ import annotations

import os

import pytest

from kafkawire.groups import coordinator as coordinator_module
from tests.kit.groups.life import Life
from tests.kit.groups.model import Model
from tests.kit.seeds import quiet, run_seeds
from tests.kit.simloop import run

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))
LIVES = 3


def simulate(seed: int) -> Model:
    model = Model(seed)
    for number in range(LIVES + 1):
        model.fs.faults.__init__()  # type: ignore[misc]
        life = Life(model, last=number == LIVES)
        run(life.loop, life.main())
    assert model.commits > 20
    return model


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after little log, so that each life has some."""
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 3000)


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_promises_to_groups_hold_through_any_end(first: int) -> None:
    run_seeds(simulate, first, min(first + 5, SEEDS))


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    with quiet():
        once, again = simulate(3), simulate(3)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.acked == again.acked
