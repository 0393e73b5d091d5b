"""One scenario, ended at each call of the operating system, by a kill or a power failure.

Covers: kafkawire.replication.sealed_file, kafkawire.replication.journal_copy.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.replication.broker_model import FIRST, BrokerModel
from tests.replication.memory_files import Crashed, MemoryFiles
from tests.replication.model import NONE, at


def scenario(broker: ScenarioModel) -> None:
    """Several starts of a broker: continued, diverging, not continued; marks and deletions."""
    broker.start()
    broker.take_over(NONE, 0)
    for size in (700, 600, 500):
        broker.append(size)
        broker.stream(400)
        broker.log.roll()
    broker.mark(at(7, 100), 6)
    broker.stream(400)
    broker.append(90)
    broker.stream(50, is_synced=False)
    broker.take_over(1, at(8, 60))
    broker.connect()
    broker.stream(50)
    broker.append(10)
    broker.stream(10, is_synced=False)
    broker.is_connected = False
    broker.connect()
    broker.take_over(1, at(7, 450))
    broker.append(800)
    broker.stream(300)
    broker.log.roll()
    broker.append(100)
    broker.stream(300)
    broker.take_over(1, at(7, 480))  # epoch 3 failed
    broker.append(700)
    broker.stream(600)
    broker.mark(at(7, 490), 7)
    broker.take_over(NONE, 0)
    broker.append(900)
    broker.stream(600)
    broker.forget()
    broker.start_again()


class ScenarioModel(BrokerModel):
    """The broker of the scenario: at its end the follower is started again."""

    def start_again(self) -> None:
        self.files.kill()
        self.start()
        self.append(100)
        self.stream(100)


def crashed(
    crash_at: int, end: Callable[[MemoryFiles, random.Random], None], seed: int = 0
) -> bool:
    """Run the scenario up to a call and check what is left; return whether it ended there."""
    rng = random.Random(crash_at + 10_000 * seed)
    files = MemoryFiles()
    broker = ScenarioModel(files, rng)
    files.crash_at = crash_at
    try:
        scenario(broker)
    except Crashed:
        files.crash_at = None
        end(files, rng)
    else:
        return False
    broker.start()
    broker.check()
    if broker.logs:
        broker.complete()
    return True


def count_calls() -> int:
    files = MemoryFiles()
    scenario(ScenarioModel(files, random.Random(0)))
    return files.calls


def test_scenario_has_every_kind_of_change() -> None:
    files = MemoryFiles()
    broker = ScenarioModel(files, random.Random(0))
    scenario(broker)
    broker.check()
    broker.complete()
    assert files.names("/f/3") == ["5", "fence"]
    assert broker.first == FIRST + 2
    assert count_calls() > 200


def test_process_ends_at_each_call() -> None:
    total = count_calls()
    assert all(crashed(number, lambda files, rng: files.kill()) for number in range(1, total + 1))


def test_machine_ends_at_each_call() -> None:
    total = count_calls()
    for number in range(1, total + 1):
        assert crashed(number, lambda files, rng: files.power_failure(rng))


@pytest.mark.slow
def test_each_call_with_other_losses() -> None:
    """The machine ends there, or after the process was started again."""
    total = count_calls()
    for number in range(1, total + 1):
        for seed in range(10):
            assert crashed(number, lambda files, rng: files.power_failure(rng), seed)
            assert crashed(number, lambda files, rng: files.kill(), seed)
