"""Whole lives of a follower, with everything that can fail, decided by one number each.

    .venv/bin/python -c "from tests.replication.test_simulation import simulate; simulate(4711)"

Covers: kafkawire.replication.node_copies, kafkawire.replication.journal_copy.
"""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest

from kafkawire.replication import journal_copy
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.replication.broker_model import BrokerModel, somewhere
from tests.replication.memory_files import MemoryFiles
from tests.replication.model import NONE

STEPS = 60
SEEDS = int(os.environ.get("SIM_SEEDS", "60"))


@patch.object(journal_copy, "RECORD_EVERY_BYTES", 2000)
def simulate(seed: int) -> int:
    """Run one life; return the calls of the operating system in it."""
    rng = random.Random(seed)
    files = MemoryFiles()
    broker = BrokerModel(files, rng)
    broker.start()
    broker.run(lambda: broker.take_over(NONE, 0))
    for _ in range(STEPS):
        if rng.random() < 0.3:
            files.crash_at = files.calls + rng.randint(1, 60)
        if rng.random() < 0.05:
            files.failing_syncs = 1
        files.room_bytes = rng.randint(0, 2000) if rng.random() < 0.15 else None
        broker.run(lambda: step(broker, rng))
        files.crash_at, files.failing_syncs = None, 0
        broker.check()
    broker.complete()
    return files.calls


def step(broker: BrokerModel, rng: random.Random) -> None:
    """One thing that happens."""
    chance = rng.random()
    if chance < 0.55:
        broker.append(rng.choice((0, 1, 90, 700, 1500)))
        broker.stream(rng.choice((1000, 100, 333)), rng.choice((1, 3, 1 << 30)), rng.random() < 0.7)
    elif chance < 0.65:
        broker.log.roll()
    elif chance < 0.75:
        first = rng.choice(list(broker.log.journals))
        broker.mark(somewhere(broker.log, rng, broker.first), first)
    elif chance < 0.80:
        broker.forget()
    elif chance < 0.90:
        broker.restart(by_power_failure=rng.random() < 0.5)
    elif chance < 0.92:
        broker.is_connected = False
        broker.connect()
    elif chance < 0.94:
        broker.take_over(NONE, 0)
    else:
        continues = rng.choice([each for each in broker.logs if each >= broker.epoch - 3])
        if max(broker.logs[continues].journals) >= broker.first:
            broker.take_over_or_refuse(
                continues, somewhere(broker.logs[continues], rng, broker.first)
            )


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_lives_of_a_follower(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


def test_seed_decides_everything() -> None:
    with quiet():
        assert simulate(7) == simulate(7)
