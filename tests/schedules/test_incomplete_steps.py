"""Steps of which the plan is in the log and a batch is not: they are completed, by the same broker
or by the next one; and batches that are there are not appended again.

Covers: kafkawire.schedules.deliverer, kafkawire.schedules.states, kafkawire.schedules.progress.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.schedules.deliverer import Deliverer
from kafkawire.schedules.progress import Progress
from kafkawire.schedules.states import StateCoordinator
from tests.kit.schedules.scripted import ORDERS, ScheduleScript
from tests.kit.seeds import quiet
from tests.kit.tier.crash_points import Points

KILLED_AFTER_S = 0.3
"""Before the deliverer tries again: it waits a second."""


class Interruption:
    """Lets some plans be stored without all of their batches. `killed`: the broker ends then."""

    def __init__(self, script: ScheduleScript, *, killed: bool) -> None:
        self.script = script
        self.killed = killed
        self.plans = 0
        self.happened = 0
        self._armed = False

    def stored(self, batches: int) -> None:
        """Note a plan; every third one is interrupted."""
        if batches and self.script.points.on:
            self.plans += 1
            self._armed = self.plans % 3 == 1

    def append(self, partition: Partition) -> None:
        """Raise KAFKA_STORAGE_ERROR in place of an append, where it is time for it."""
        if partition.topic != ORDERS or not self._armed:
            return
        self._armed = False
        self.happened += 1
        broker = self.script.world.broker
        assert broker is not None
        if self.killed:
            kill = lambda: None if broker.over else broker.end("kill")  # noqa: E731
            self.script.world.later(KILLED_AFTER_S, kill)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "interrupted by the test")


def interrupted(monkeypatch: pytest.MonkeyPatch, seed: int, *, killed: bool) -> Interruption:
    """Run a conversation with interruptions."""
    script = ScheduleScript(Points(), seed=seed)
    interruption = Interruption(script, killed=killed)
    store, append = StateCoordinator.store, Partition.append

    def storing(self: StateCoordinator, key: Any, state: Any) -> Any:
        code = store(self, key, state)
        interruption.stored(0 if state is None else len(state.batches))
        return code

    def appending(self: Partition, batch: memoryview, now_ms: int) -> Any:
        interruption.append(self)
        return append(self, batch, now_ms)

    monkeypatch.setattr(StateCoordinator, "store", storing)
    monkeypatch.setattr(Partition, "append", appending)
    with quiet():
        script.run()
    assert interruption.happened >= 3
    return interruption


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("killed", [False, True])
def test_incomplete_steps_are_completed(
    killed: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, seed, killed=killed)


@pytest.mark.parametrize("killed", [False, True])
def test_checker_finds_lost_records(killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Deliverer) -> None: ...

    monkeypatch.setattr(Deliverer, "_repeat", nothing)
    with pytest.raises(AssertionError, match="was delivered 0 times"):
        interrupted(monkeypatch, 1, killed=killed)


def test_checker_finds_repeated_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that forgets what it has delivered delivers it again."""
    get = StateCoordinator.get

    def forgetful(self: StateCoordinator, key: Any) -> Any:
        state = get(self, key)
        return None if state is None else state._replace(progress=Progress())

    monkeypatch.setattr(StateCoordinator, "get", forgetful)
    with pytest.raises(AssertionError, match=r"was delivered [2-9] times"):
        interrupted(monkeypatch, 1, killed=True)
