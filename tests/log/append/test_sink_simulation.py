"""Acknowledged records survive the loss of machines, whichever sink stores them: log objects
(tests.kit.sinks.object_simulation), or followers (tests.kit.sinks.follower_simulation).

`SIM_SEEDS=500 pytest` runs more; `simulate(seed)` of the sink's module runs a failing one again.
Mutations of the product must be found (tests/log/append/test_sink_mutations.py).

Covers: kafkawire.log.object_logs, kafkawire.log.earlier_logs, kafkawire.log.adoption,
kafkawire.log.fresh_folder, kafkawire.broker.objects.fresh, kafkawire.log.followers.service,
kafkawire.log.followers.link, kafkawire.log.followers.source, kafkawire.log.append.follower_sink,
kafkawire.log.followers.network, kafkawire.broker.followers.install,
kafkawire.broker.followers.opening.
"""

from __future__ import annotations

import os

import pytest

from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.sinks import follower_simulation, object_simulation

SIMULATE = {"objects": object_simulation.simulate, "followers": follower_simulation.simulate}
SEEDS = {"objects": 40, "followers": 15}
if "SIM_SEEDS" in os.environ:
    SEEDS = dict.fromkeys(SEEDS, int(os.environ["SIM_SEEDS"]))
RUNS = [(sink, first) for sink, end in SEEDS.items() for first in range(0, end, AT_ONCE)]


@pytest.mark.parametrize(("sink", "first"), RUNS)
def test_acknowledged_records_survive_loss_of_machines(sink: str, first: int) -> None:
    run_seeds(SIMULATE[sink], first, SEEDS[sink])


@pytest.mark.slow
@pytest.mark.parametrize("sink", SIMULATE)
def test_same_seed_gives_same_run(sink: str) -> None:
    with quiet():
        once, again = SIMULATE[sink](7), SIMULATE[sink](7)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.bucket.objects == again.bucket.objects
