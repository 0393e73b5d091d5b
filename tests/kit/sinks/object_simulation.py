"""A broker with topics of durability=s3 in a seeded simulation: lives on machines that fail.

Records are deleted, segments are cut, uploaded and deleted locally, log objects are released. Power
fails, processes are killed or closed, the whole disk is lost, an old disk is put back, and a
successor starts while its predecessor is still running, with clients. SQL and the bucket fail. With
every second seed the wall clocks of machines are set by minutes and hours, forwards and backwards,
and monotonic clocks run at half to double the speed. In addition to the checks of
tests.kit.sinks.simulation:

- records expire only when a wall clock has shown a time of `retention.ms` after their timestamps;
- at the end everything is uploaded and released, and an empty folder serves it all.

Worlds with topics of durability=local too keep their disk.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafkawire.log.object_logs import ObjectLogs
from kafkawire.manifest.keys import parse_log_object_key
from kafkawire.tiering.store.store_folder import StoreFolder
from tests.kit.env import EPOCH_MS
from tests.kit.log.object_world import OneStore
from tests.kit.memfs import MemFileSystem
from tests.kit.sinks.lives import CALM, SinkLife, SinkWorld
from tests.kit.sinks.simulation import STARTED_S, Simulation
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.world import CLUSTER_NODE

LAG_MS = 5000
SETTLED_S = 60.0
EXPIRED_MS = 90 * 60_000
"""`retention.ms` of a topic: longer than a run takes, and shorter than clocks are set forwards."""
TIERED: dict[str, Any] = {
    "tiering_max_lag_ms": str(LAG_MS), "tiering_min_object_bytes": "1", "retention_ms": "-1",
    "segment_bytes": "1048576",
}  # fmt: skip


class ObjectLife(SinkLife):
    """One process, which stores acknowledged records in log objects."""

    async def prepare_sink(self) -> None:
        own: Any = StoreFolder(self.store, f"nodes/{CLUSTER_NODE}")
        sql: Any = self.metadata
        self.logs = ObjectLogs(self.env, OneStore(own), sql, self.storage, CLUSTER_NODE, self.epoch)
        self.logs.when_superseded(self.superseded)

    def open_sink(self) -> dict[str, Any]:
        return {"object_logs": self.logs}


class ObjectSimulation(Simulation[SinkWorld, ObjectLife]):
    """One seed. `has_local`: there are topics of durability=local too, so no disk is lost."""

    topic = {**TIERED, "durability": "s3"}
    life_count = 5
    longest_s = (1, 8, 20)
    deletes_records = True
    plain_acks_all = True

    def __init__(self, seed: int, drifts: float | None = None) -> None:
        world = SinkWorld(seed, (seed % 2) * 0.5 if drifts is None else drifts)
        self.has_local = world.rng.random() < 0.25
        super().__init__(world)
        rng, config = self.rng, world.config
        config.log_object_linger_ms = rng.choice((0, 20, 200))
        config.log_object_bytes = rng.choice((1500, 1 << 20))
        config.log_unreleased_max_bytes = rng.choice((40_000, 1 << 30))
        self.expiring: set[int] = set()

    # --- lives

    async def start_first(self) -> ObjectLife:
        return await self.start(self.world.fs)

    async def start(self, fs: MemFileSystem) -> ObjectLife:
        """Start a process, again and again while it fails or is killed."""
        world, rng = self.world, self.rng
        while True:
            life = ObjectLife(world, fs)
            life.sql_fails = rng.choice((0.0, 0.0, 0.05))
            starting = life.begin()
            killed = rng.random() < 0.2
            await asyncio.wait([starting], timeout=rng.random() * 0.3 if killed else STARTED_S)
            assert starting.done() or killed, "a start waits forever"
            started = starting.done() and not starting.cancelled() and not starting.exception()
            if started and not life.over:
                life.sql_fails = 0.0
                await self.check(life)
                if not life.over:
                    life.serve()
                    life.no_checkpoints = rng.random() < 0.2
                    return life
            self.expect(life, starting)
            if not starting.done():
                starting.cancel()
                life.die(rng.choice(("kill", "power")))
            life.die("kill")
            await life.bury()
            await asyncio.wait([starting])
            await asyncio.sleep(0.1)

    async def next_life(self, life: ObjectLife) -> ObjectLife:
        """End a life, and start another one; return it."""
        world, rng = self.world, self.rng
        ways = ["kill", "power", "close"] + ([] if self.has_local else ["lose", "zombie", "back"])
        if life.no_checkpoints:
            ways += ways[3:4]  # what is only in its journals matters most
        how = rng.choice(ways) if not life.over else "kill"
        world.note(f"next: {how}")
        if how == "zombie":
            made = await self.start(world.new_machine())
            await asyncio.sleep(rng.random() * 5)
            life.die("kill")  # unless it has noticed
            await life.bury()
            return made
        if how == "close" and not life.over:
            world.bucket.faults = CALM
            await life.close()
        life.die("power" if how == "power" else "kill")
        await life.bury()
        fs = life.disk
        if how == "lose":
            fs = world.new_machine()
        elif how == "back":
            fs = rng.choice(world.machines)
        return await self.start(fs)

    async def create_more(self, life: ObjectLife) -> list[Any]:
        return await life.create("own", 1, **TIERED) if self.has_local else []

    async def add_more_producers(self, life: ObjectLife) -> None:
        if self.world.drifts:
            configs = {**self.topic, "retention_ms": str(EXPIRED_MS)}
            (partition,) = await life.create("e", 1, **configs)
            self.expiring = {partition.number}
            self.add_producer(99, partition.number, b"e", time_ms=EPOCH_MS)

    def note_expired(self, number: int) -> None:
        if number in self.expiring and self.world.has_shown(EPOCH_MS + EXPIRED_MS):
            self.world.records.deleted[number] = 1 << 62

    async def weather(self) -> None:
        """Faults of the bucket and of SQL."""
        world, rng = self.world, self.rng
        while True:
            await asyncio.sleep(rng.random() * 4)
            delay_s = rng.choice(((0.001, 0.02), (0.001, 0.02), (0.1, 2.0)))
            world.bucket.faults = faults = StoreFaults(delay_s=delay_s, timeout_s=1.0)
            world.set_clocks()
            for life in world.serving:
                life.sql_fails = rng.choice((0.0, 0.0, 0.1))
            match rng.randrange(7):
                case 0:
                    faults.error_rate = rng.choice((0.1, 0.5))
                case 1:
                    faults.slow_down_rate = rng.choice((0.1, 0.9))
                case 2 | 3:
                    faults.lost_rate = rng.choice((0.1, 0.5))
                case 4:
                    faults.down = True
                case _:
                    pass

    async def heal(self, life: ObjectLife) -> ObjectLife:
        self.world.bucket.faults = CALM
        for each in self.world.serving:
            each.sql_fails = 0.0
        if life.over:
            await life.bury()
            life = await self.start(life.disk)
        life.sql_fails = 0.0
        life.no_checkpoints = False
        return life

    async def settle(self) -> None:
        await asyncio.sleep(SETTLED_S)

    async def start_last(self, life: ObjectLife) -> ObjectLife:
        """Lose the disk of a life that has released everything, and start with an empty one."""
        world = self.world
        assert life.log.object_logs is not None
        release = life.log.object_logs.release
        assert release is not None
        assert not release.retained, f"not released: {release.retained}"
        life.die("kill")
        await life.bury()
        life = await self.start(life.disk if self.has_local else world.new_machine())
        life.sql_fails = 0.0
        await asyncio.sleep(SETTLED_S)  # it deletes what was stored above a fence
        logs: dict[int, int] = {}
        for key in world.bucket.objects:
            parsed = parse_log_object_key(key.removeprefix("nodes/1/"))
            if parsed is not None:
                logs[parsed[0]] = logs.get(parsed[0], 0) + 1
        assert max(logs.values(), default=0) <= 1, f"more than fences are left: {logs}"
        return life


def simulate(seed: int) -> SinkWorld:
    return ObjectSimulation(seed).run()
