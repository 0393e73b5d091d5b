"""Groups in a seeded simulation: consumers that join, leave, crash and commit, with a broker that
is killed, loses power, or is closed, on a disk that loses unsynced data and fails.

Invariants:
- within a generation no partition is assigned to two consumers;
- an acknowledged commit is never lost, and the committed offset that a group has read never
  decreases, through any end of the broker;
- at every start a snapshot and the log after it give the same state as the log alone;
- a topic created again under an old name has no offsets of its predecessor;
- once the failures end, every group settles: one generation, every partition assigned.

`SIM_SEEDS=500 pytest tests/groups/test_simulation.py` runs more; a failing seed is in the message.
"""

from __future__ import annotations

import os

import pytest

from kafkawire.coordination import coordinator as coordinator_module
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
    """Take snapshots after little log, so that each life has some."""
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 3000)


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_group_invariants_hold_through_crashes(first: int) -> None:
    run_seeds(simulate, first, min(first + 5, SEEDS))


@pytest.mark.slow
def test_same_seed_gives_same_run() -> None:
    with quiet():
        once, again = simulate(3), simulate(3)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.acked == again.acked
