"""A conversation of transactional clients with a whole broker, ended at each change of a file or of
SQL, or with a disk that fails there.

Afterwards another broker starts, the clients repeat what was not answered, and the checker judges
the whole history: one outcome for each transaction, reached in every partition, with the offsets of
its group. These are the crash points of a transaction, before and after each of its steps: records
of the coordinator, producer id blocks, data, pending offsets, markers, completion, tombstones, and
cuts, uploads and snapshots in between.

A run tries some points; with SIM_SEEDS=500 each of them, with a power failure and a full disk too.
`-s` prints the number of points.

Covers: kafkawire.transactions.coordinator, kafkawire.transactions.coordinator_log,
kafkawire.broker.markers, kafkawire.groups.load, kafkawire.log.recovery.restore.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from kafkawire.coordination import coordinator
from tests.kit.exactly_once.scripted import FaultyPoint, Script
from tests.kit.seeds import quiet
from tests.kit.tier.crash_points import Points

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
STRIDE = 1 if SEEDS >= 500 else 80
STRIDE_OF_FAULTS = 2 if SEEDS >= 500 else 160
MIN_POINTS = 800


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after little log, so that there are some in a conversation."""
    monkeypatch.setattr(coordinator, "SNAPSHOT_LOG_BYTES", 1_000)


def count_points() -> list[str]:
    """The names of all points, in order."""
    points = Points()
    with quiet():
        script = Script(points).run()
    ended = Counter(each.outcome.value for each in script.world.history.attempts.values())
    assert min(ended["committed"], ended["aborted"], ended["unknown"]) > 0
    assert len(points.names) >= MIN_POINTS
    return points.names


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "power"])
def test_transactions_survive_an_end_at_any_point(how: str) -> None:
    names = count_points()
    chosen = range(0 if how == "kill" else 7, len(names), STRIDE)
    print(f"{how}: {len(chosen)} of {len(names)} points")
    for number in chosen:
        with quiet():
            try:
                Script(Points(number), how).run()
            except BaseException as failure:
                failure.add_note(f"{how} at point {number}: {names[number]}")
                raise


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "write", "sync"])
def test_transactions_survive_a_disk_that_fails_at_any_point(fault: str) -> None:
    names = count_points()
    chosen = range(0, len(names), STRIDE_OF_FAULTS)
    print(f"{fault}: {len(chosen)} of {len(names)} points")
    for number in chosen:
        with quiet():
            try:
                Script(FaultyPoint(number, fault)).run()
            except BaseException as failure:
                failure.add_note(f"{fault} at point {number}: {names[number]}")
                raise
