"""Machines whose clocks drift, which start one broker in turn, as its heartbeats say.

Broker 1 has topics of durability=s3. The brokers of the machines, 2 and above, have none: they
watch broker 1 (kafkawire.broker.liveness), and their machines start it when it is absent, as
kafkawire.supervisor.guests does.
"""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy

from kafkawire.broker.liveness.service import Liveness
from kafkawire.broker.liveness.starting import StartingHeartbeats
from kafkawire.metadata.store import MetadataError
from tests.kit.env import InlineOffload, MachineClock, MachineEnv, OffloadWorker
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.simloop import drifting
from tests.kit.sinks.lives import EXPECTED, SinkWorld
from tests.kit.sinks.object_simulation import ObjectLife
from tests.kit.tier.world import CLUSTER_NODE

LEASE_MS = 5000


class GuestLife(ObjectLife):
    """One process of broker 1. `after`: the broker epoch that its start must find;
    `sql_down_until`: when SQL answers it again; `beat_s` and `beat_ms`: when it sent its last
    heartbeat that was stored, by its own clocks."""

    def __init__(self, world: SinkWorld, disk: MemFileSystem, after: int | None) -> None:
        super().__init__(world, disk)
        self.after = after
        self.metadata = MemoryMetadata(world.database, self.sql_pause, self._fault)
        self.starting = StartingHeartbeats(self.env, self, guest=False)  # type: ignore[arg-type]
        self.sql_down_until = 0.0
        self.beat_s = self.env.clock.monotonic()
        self.beat_ms = self.env.clock.now_ms()
        self.liveness: Liveness | None = None

    def _fault(self, _: str) -> Exception | None:
        away = self.loop.now < self.sql_down_until
        return MetadataError("the database cannot be reached") if away else None

    def may_fail(self, text: str) -> None:
        if failure := self._fault(text):
            raise failure
        super().may_fail(text)

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        """Raise the heartbeat in SQL."""
        clock = self.env.clock
        sent_s, sent_ms = clock.monotonic(), clock.now_ms()
        found = await self.metadata.beat(node_id, starting)
        self.beat_s, self.beat_ms = sent_s, sent_ms
        return found

    async def end_heartbeats(self, node_id: int) -> None:
        """Delete the heartbeat."""
        await self.metadata.end_heartbeats(node_id)

    def former_epoch(self) -> int | None:
        return self.after

    async def registered(self) -> None:
        await self.starting.start(CLUSTER_NODE, self.catalog)

    def serve(self) -> None:
        super().serve()
        self.liveness = Liveness(self.env, self, self.catalog, CLUSTER_NODE, LEASE_MS)
        self.liveness.when_superseded(self.superseded)
        self.liveness.start()


class DriftingMachine:
    """A machine with a broker `node_id` that watches broker 1. `life`: the process of broker 1 that
    runs here."""

    def __init__(self, world: SinkWorld, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        disk = MemFileSystem(random.Random(node_id))
        self.clock: MachineClock = world.clock_of(disk)
        offload = InlineOffload()
        self._env = MachineEnv(
            self.clock, world.rng, disk, offload, {}, OffloadWorker(offload, disk)
        )
        self.metadata = MemoryMetadata(world.database, self._pause)
        self.life: GuestLife | None = None
        self._starting: asyncio.Task[None] | None = None

    async def _pause(self) -> None:
        await self._env.sleep(self.world.rng.random() * 0.004)

    async def start(self) -> None:
        """Start the broker of this machine."""
        self._catalog = await self.metadata.open()
        await self.metadata.register_broker(self.node_id, {}, None)
        self._liveness = Liveness(self._env, self, self._catalog, self.node_id, LEASE_MS)
        self._liveness.when_absent(self._absent)
        self._liveness.start()

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        """Raise the heartbeat in SQL, and follow the catalog."""
        found = await self.metadata.beat(node_id, starting)
        assert self.world.database.catalog is not None
        for info in self.world.database.catalog.brokers.values():
            self._catalog.add_broker(deepcopy(info))
        return found

    async def end_heartbeats(self, node_id: int) -> None:
        """Delete the heartbeat."""
        await self.metadata.end_heartbeats(node_id)

    @property
    def finds_silent(self) -> bool:
        """Whether broker 1 is silent for the broker of this machine."""
        return CLUSTER_NODE in self._catalog.silent

    def _absent(self, epochs: dict[int, int]) -> None:
        runs = self.life is not None and not self.life.over
        if CLUSTER_NODE in epochs and not runs:
            self.take_over(epochs[CLUSTER_NODE])

    def take_over(self, epoch: int | None) -> asyncio.Task[None]:
        """Start broker 1 here, with an empty disk."""
        disk = self.world.new_machine()
        self.world.clocks[disk] = self.clock
        self.life = life = GuestLife(self.world, disk, epoch)
        coro = self._run(life)
        context = drifting(self.clock.rate)
        self._starting = self.world.loop.create_task(coro, context=context)
        return self._starting

    async def _run(self, life: GuestLife) -> None:
        try:
            await life.start()
            await life.partitions()
        except EXPECTED as failure:
            self.world.note(f"life {life.number} does not start: {failure}")
            life.die("kill")
        finally:
            await life.starting.close()
        if not life.over:
            life.serve()
