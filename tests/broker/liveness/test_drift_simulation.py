"""A broker that machines with drifting clocks take over from each other, seeded.

Monotonic clocks run at half to double the speed, each machine has its own rate, and wall clocks are
set by minutes and hours. The process of the broker is killed, or cannot reach SQL while it still
stores log objects: others see no heartbeats, and one of them starts it. Producers and readers use
every process. It must hold:

- what a superseded process acknowledges, its successor has; no offset has two values;
- when nothing fails any more, one process serves, no machine takes it for silent, and no other one
  starts it.

A lease in place of the fence must be found, which is right only if clocks agree: by the monotonic
clocks of two machines, or by the wall clock of one.

Covers: kafkawire.broker.liveness.service, kafkawire.broker.liveness.watcher,
kafkawire.broker.liveness.takeover.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kafkawire.log.earlier_logs import EarlierLogs
from kafkawire.log.objects.writer import LogObjectWriter
from kafkawire.objectstore.errors import StoreError
from tests.broker.liveness.drifting_machines import (
    LEASE_MS,
    DriftingMachine,
    GuestLife,
)
from tests.kit.seeds import first_failing, run_seeds
from tests.kit.sinks.lives import CALM, SinkWorld
from tests.kit.sinks.object_simulation import ObjectSimulation

SEEDS = int(os.environ.get("SIM_SEEDS", "40")) // 10
RIGHT_SEEDS = range(10)
WRONG_SEEDS = {"by_monotonic_clock": range(552, 852), "by_wall_clock": range(279, 579)}
"""Few seeds fail with a lease: each range begins near one that does."""
ROUNDS = 3
SERVED_S = 200.0
"""In which the broker serves when nothing fails any more: several leases at half the speed."""
QUIET_S = 30.0
MARGIN_MS = 2500
"""Before the end of a lease: longer than a request to the bucket takes here."""


class DriftSimulation(ObjectSimulation):
    """One seed."""

    def __init__(self, seed: int, drifts: float) -> None:
        super().__init__(seed, drifts)
        self.has_local = False
        self.machines = [DriftingMachine(self.world, node) for node in (2, 3, 4)]

    async def main(self) -> None:
        world, rng = self.world, self.rng
        for machine in self.machines:
            await machine.start()
        await self.machines[0].take_over(None)
        await self.create_with_two_producers(await self.newest())
        reading = world.loop.create_task(self.reader())
        for _ in range(ROUNDS):
            await asyncio.sleep(rng.random() * rng.choice((1, 5)))
            world.set_clocks()
            self.raise_failures()
            life, started = await self.newest(), len(world.serving)
            if rng.random() < 0.2:
                life.die("kill")
                await life.bury()
            else:
                life.sql_down_until = world.loop.now + rng.random() * 40
            for _ in range(rng.randrange(20, 300)):
                await asyncio.sleep(0.1)
                if len(world.serving) != started and rng.random() < 0.1:
                    break
        reading.cancel()
        await self.settle_machines()

    async def newest(self) -> GuestLife:
        """Wait until a process serves, and return the newest one."""
        async with asyncio.timeout(SERVED_S):
            while not self.world.serving:  # noqa: ASYNC110 (a process may end again)
                await asyncio.sleep(0.1)
        life = max(self.world.serving, key=lambda each: each.epoch)
        assert isinstance(life, GuestLife)
        return life

    def finds_silent(self) -> bool:
        """Return whether any machine takes the broker for silent."""
        return any(each.finds_silent for each in self.machines)

    async def settle_machines(self) -> None:
        """Let nothing fail any more, and check what is left."""
        world = self.world
        world.bucket.faults = CALM
        for life in world.lives:
            assert isinstance(life, GuestLife)
            life.sql_down_until = 0.0
        await self.finish_clients(SERVED_S)
        async with asyncio.timeout(SERVED_S):
            while len(world.serving) != 1 or self.finds_silent():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        life, started = await self.newest(), len(world.lives)
        await asyncio.sleep(QUIET_S)
        assert world.serving == [life], "more than one process serves"
        assert len(world.lives) == started, "a broker that beats is started again"
        assert not self.finds_silent(), "a broker that beats is silent"
        await self.check(life)
        self.raise_failures()
        await life.close()
        await life.bury()


WORLDS: list[SinkWorld] = []
"""That of the present run."""


def simulate(seed: int, drifts: float = 0.7) -> SinkWorld:
    simulation = DriftSimulation(seed, drifts)
    WORLDS[:] = [simulation.world]
    return simulation.run()


def by_monotonic_clock(life: GuestLife) -> float:
    """Return the age of the last heartbeat in ms."""
    return (life.env.clock.monotonic() - life.beat_s) * 1000


def by_wall_clock(life: GuestLife) -> float:
    """Return the age of the last heartbeat in ms."""
    return life.env.clock.now_ms() - life.beat_ms


def lease(patch: pytest.MonkeyPatch, age_ms: Callable[[GuestLife], float]) -> None:
    """Have no fence, and a process store objects only while its last heartbeat is young."""
    real = LogObjectWriter.store

    async def fence(*_: Any) -> bool:
        return True

    async def store(self: LogObjectWriter, sequence: int, gathered: Any) -> None:
        life = next(each for each in WORLDS[0].lives if each.env is self._env)
        assert isinstance(life, GuestLife)
        if age_ms(life) > LEASE_MS - MARGIN_MS:
            raise StoreError("Lease", "the lease has ended")
        await real(self, sequence, gathered)

    patch.setattr(EarlierLogs, "_fence", fence)
    patch.setattr(LogObjectWriter, "store", store)


def test_one_process_acknowledges_although_clocks_drift() -> None:
    run_seeds(simulate, 0, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("age_ms", [by_monotonic_clock, by_wall_clock])
def test_lease_in_place_of_the_fence_is_found(
    monkeypatch: pytest.MonkeyPatch, age_ms: Callable[[GuestLife], float]
) -> None:
    lease(monkeypatch, age_ms)
    assert first_failing(partial(simulate, drifts=0.0), RIGHT_SEEDS) < 0, (
        "with clocks that agree it is safe"
    )
    seed = first_failing(simulate, WRONG_SEEDS[age_ms.__name__])
    print(f"{age_ms.__name__}: seed {seed}")
    assert seed >= 0
