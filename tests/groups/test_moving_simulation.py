"""Groups while their partitions move between two services, on a simulated log.

Each seed decides moves, commits, failed writes, snapshots, and what clients do. No offset is lost
after it was answered, generations rise, and only one service stores for a group in a term.
`SIM_SEEDS=500 pytest tests/groups/test_moving_simulation.py` runs more.

Covers: kafkawire.coordination.service, kafkawire.coordination.settling.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kafkawire.coordination import coordinator as coordinator_module
from kafkawire.coordination import service as service_module
from kafkawire.coordination.coordinator import PartitionCoordinator
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.settling import CommitQueue
from tests.kit.groups.moving import Moving
from tests.kit.seeds import quiet

SEEDS = int(os.environ.get("SIM_SEEDS", "25"))
STEPS = 120


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(coordinator_module, "RETRY_MS", 1)
    monkeypatch.setattr(service_module, "RETRY_MS", 1)


async def simulate(seed: int) -> Moving:
    world = Moving(seed)
    with quiet():
        await world.run(STEPS)
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_offset_is_lost_and_generations_rise(seed: int) -> None:
    world = await simulate(seed)
    assert world.moves > 10
    assert len(world.acked) > 4
    assert sum(world.generations.values()) > 4


async def found(seeds: int = 30) -> bool:
    """Whether a simulation fails with the code as changed."""
    for seed in range(seeds):
        try:
            await simulate(seed)
        except AssertionError:
            return True
    return False


Change = Callable[[pytest.MonkeyPatch], None]


def early_answers(changes: pytest.MonkeyPatch) -> None:
    """Answers leave before their commit."""

    def release(self: CommitQueue, effects: list[Callable[[], None]], *, appended: bool) -> None:
        for effect in effects:
            effect()

    changes.setattr(CommitQueue, "release", release)


def old_commits_count(changes: pytest.MonkeyPatch) -> None:
    """A coordinator that has resigned answers what is committed later."""

    def resign(self: PartitionCoordinator[PartitionLoader]) -> None:
        self.phase = coordinator_module.CoordinatorPhase.RESIGNED

    changes.setattr(PartitionCoordinator, "resign", resign)


def only_the_snapshot(changes: pytest.MonkeyPatch) -> None:
    """A load ignores the records after a snapshot."""
    load = PartitionLoader._load_snapshot

    async def alone(self: PartitionLoader, end: int, *, gained: bool) -> None:
        before = self.next_offset
        await load(self, end, gained=gained)
        if self.next_offset > before:
            self.next_offset = end

    changes.setattr(PartitionLoader, "_load_snapshot", alone)


@pytest.mark.slow
@pytest.mark.parametrize("change", [early_answers, old_commits_count, only_the_snapshot])
async def test_the_checks_find(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch)
    assert await found()
