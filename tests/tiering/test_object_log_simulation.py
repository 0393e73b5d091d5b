"""A broker with topics of durability=s3 in a seeded simulation: lives on machines that fail.

Idempotent producers with several batches in flight retry until they are answered; readers read
from every process. Records are deleted, segments are cut, uploaded and deleted locally, log objects
are released. Power fails, processes are killed or closed, the whole disk is lost, an old disk is
put back, and a successor starts while its predecessor is still running, with clients. SQL and the
bucket fail. With every second seed the wall clocks of machines are set by minutes and hours,
forwards and backwards, and monotonic clocks run at half to double the speed. In every life, and at
the end:

- a record that was acknowledged, or read by anyone, is at its offset, and no other ever was;
- a partition has no gap, and each value of an idempotent producer once, in order;
- leader epochs rise, within the log and with each new disk;
- records expire only when a wall clock has shown a time of `retention.ms` after their timestamps;
- at the end everything is uploaded and released, and an empty folder serves it all.

Worlds with topics of durability=local too keep their disk. `SIM_SEEDS=500 pytest` runs more;
`simulate(seed)` runs a failing one again. Mutations of the product must be found.

Covers: kafkawire.log.object_logs, kafkawire.log.earlier_logs, kafkawire.log.adoption,
kafkawire.log.fresh_folder, kafkawire.broker.objects.fresh.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.manifest.keys import parse_log_object_key
from tests.kit.env import EPOCH_MS
from tests.kit.memfs import MemFileSystem
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.object_clients import Producer, read
from tests.kit.tier.object_lives import CALM, EXPECTED, ObjectLife, ObjectTierWorld

SEEDS = int(os.environ.get("SIM_SEEDS", "40"))
LIVES = 5
LAG_MS = 5000
UPLOADED_S = 10.0
"""After which records are uploaded, so that only a checkpoint is missing."""
SETTLED_S = 60.0
EXPIRED_MS = 90 * 60_000
"""`retention.ms` of a topic: longer than a run takes, and shorter than clocks are set forwards."""
STARTED_S = 600.0
"""In which a start is complete: far more than the bucket fails at a time."""
TRIES = 60
READ_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE)
TIERED: dict[str, Any] = {
    "tiering_max_lag_ms": str(LAG_MS), "tiering_min_object_bytes": "1", "retention_ms": "-1",
    "segment_bytes": "1048576",
}  # fmt: skip


class Simulation:
    """One seed. `has_local`: there are topics of durability=local too, so no disk is lost."""

    def __init__(self, seed: int, drifts: float | None = None) -> None:
        drifts = (seed % 2) * 0.5 if drifts is None else drifts
        self.world = world = ObjectTierWorld(seed, drifts)
        rng = self.rng = world.rng
        self.has_local = rng.random() < 0.25
        config = world.config
        config.journal_bytes = rng.choice((1 << 14, 1 << 16))
        config.hot_bytes = rng.choice((0, 20_000))
        config.log_object_linger_ms = rng.choice((0, 20, 200))
        config.log_object_bytes = rng.choice((1500, 1 << 20))
        config.log_unreleased_max_bytes = rng.choice((40_000, 1 << 30))
        self.producers: list[Producer] = []
        self.clients: list[asyncio.Task[None]] = []
        self.expiring: set[int] = set()

    def run(self) -> ObjectTierWorld:
        loop = self.world.loop
        asyncio.set_event_loop(None)
        try:
            loop.run_until_complete(self.main())
        finally:
            left = loop.tasks()
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.close()
        broken = [each for each in loop.failures if isinstance(each, AssertionError)]
        if broken:
            raise broken[0]
        return self.world

    async def main(self) -> None:
        world, rng = self.world, self.rng
        life = await self.start(world.fs)
        await self.create(life)
        troubles = [world.loop.create_task(each()) for each in (self.weather, self.reader)]
        for _ in range(LIVES):
            seconds = rng.random() * rng.choice((1, 8, 20))
            await asyncio.sleep(seconds + UPLOADED_S * life.no_checkpoints)
            self.raise_failures()
            life = await self.next_life(life)
        for task in troubles:
            task.cancel()
        await self.end(life)

    def raise_failures(self) -> None:
        for task in self.clients:
            if task.done():
                task.result()
        for failure in self.world.loop.failures:
            if isinstance(failure, AssertionError):
                raise failure

    # --- lives

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
            if starting.done() and (starting.cancelled() or life.over):
                starting.exception()
            elif starting.done() and starting.exception() is None:
                life.sql_fails = 0.0
                await self.check(life)
                if not life.over:
                    life.serve()
                    life.no_checkpoints = rng.random() < 0.2
                    return life
            if not starting.done():
                starting.cancel()
                life.die(rng.choice(("kill", "power")))
            elif not life.over:
                failure = starting.exception()
                assert isinstance(failure, EXPECTED), repr(failure)
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

    async def create(self, life: ObjectLife) -> None:
        rng = self.rng
        count = rng.randrange(1, 3)
        partitions = await life.create("t", count, durability="s3", **TIERED)
        partitions += await life.create(
            "u", 1, durability="s3", local_retention_ms=rng.choice(("-2", "1")), **TIERED
        )
        if self.has_local:
            partitions += await life.create("own", 1, **TIERED)
        for at, partition in enumerate(partitions * 2):
            producer_id = -1 if at == 0 else 100 + at
            name = b"plain" if at == 0 else b"p%d" % at
            self.producers.append(Producer(self.world, producer_id, partition.number, rng, name))
        if self.world.drifts:
            configs = {**TIERED, "retention_ms": str(EXPIRED_MS)}
            (partition,) = await life.create("e", 1, durability="s3", **configs)
            self.expiring = {partition.number}
            producer = Producer(self.world, 99, partition.number, rng, b"e", time_ms=EPOCH_MS)
            self.producers.append(producer)
        self.clients = [self.world.loop.create_task(each.run()) for each in self.producers]

    # --- checks

    async def check(self, life: ObjectLife) -> None:
        """Check all partitions of a life; the bucket is well meanwhile."""
        records = self.world.records
        self.world.bucket.faults = CALM
        for partition in await life.partitions():
            number = partition.number
            records.lead(number, partition.leader_epoch, rises=life.fresh and not life.started)
            for tried in range(TRIES):
                start, end = partition.log_start, partition.high_watermark
                try:
                    rows = await read(partition, start, end)
                    break
                except KafkaError as failure:
                    if life.over:
                        return
                    if tried == TRIES - 1 or failure.code not in READ_ERRORS:
                        raise AssertionError(f"{partition.topic} cannot be read") from failure
                    await asyncio.sleep(0.5)
            rows = [row for row in rows if start <= row[0] < end]
            if number in self.expiring and self.world.has_shown(EPOCH_MS + EXPIRED_MS):
                records.deleted[number] = 1 << 62
            if not life.over:
                records.check(number, start, end, rows)

    async def reader(self) -> None:
        """Read from any process, also from one that was superseded and does not know it."""
        world, rng = self.world, self.rng
        while True:
            await asyncio.sleep(rng.random() * 0.5)
            if not world.serving:
                continue
            life = rng.choice(world.serving)
            partition = rng.choice(list(life.log.partitions.values()))
            at = rng.randrange(partition.log_start, partition.high_watermark + 1)
            try:
                if rng.random() < 0.05 and life is world.serving[-1]:
                    deleted = world.records.deleted
                    deleted[partition.number] = max(deleted[partition.number], at)
                    await partition.delete_records(at)
                else:
                    rows = await read(partition, at)
                    if not life.over:
                        world.records.see(partition.number, rows)
            except (KafkaError, OSError):
                continue

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

    async def end(self, life: ObjectLife) -> None:
        """Let everything come to its end without faults; then lose the disk, and read it all."""
        world = self.world
        world.bucket.faults = CALM
        for each in world.serving:
            each.sql_fails = 0.0
        if life.over:
            await life.bury()
            life = await self.start(life.disk)
        life.sql_fails = 0.0
        life.no_checkpoints = False
        for producer in self.producers:
            producer.over = True
        await asyncio.wait_for(asyncio.gather(*self.clients), 120)
        await asyncio.sleep(SETTLED_S)
        await self.check(life)
        self.raise_failures()
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
        await life.close()
        await life.bury()


def simulate(seed: int) -> ObjectTierWorld:
    return Simulation(seed).run()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_acknowledged_records_survive_loss_of_any_machine(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run_with_log_objects() -> None:
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.bucket.objects == again.bucket.objects
