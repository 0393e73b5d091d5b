"""A broker with topics of durability=replicated in a seeded simulation: machines that fail.

Idempotent producers with acks=all retry until they are answered, others send with acks=1; readers
read from every process. Processes are killed, machines lose their power or their disks, a successor
starts on another machine while its predecessor is still running, with clients. Followers crash at
any call of the operating system, hang, have full disks and failed fsyncs; connections are cut or
silent; SQL fails, and its answers are lost. With half of the seeds wall clocks are set, and the
monotonic clocks of brokers and followers run at half to double the speed. In every life, and at the
end:

- a record that was acknowledged, or read by anyone, is at its offset, and no other ever was;
- each follower in the set has what was acknowledged, whenever the set changes;
- a partition has no gap, and each value of an idempotent producer once, in order;
- what a superseded process acknowledges, its successor has;
- when nothing fails any more the set is complete again, and everything is acknowledged.

Something that has all acknowledged records always stays: a disk is only lost if another one has
them. `SIM_SEEDS=500 pytest` runs more; `simulate(seed)` runs a failing one again. Mutations of the
product must be found (tests/log/followers/test_replication_mutations.py).

Covers: kafkawire.log.followers.service, kafkawire.log.followers.link,
kafkawire.log.followers.source, kafkawire.log.append.follower_sink, kafkawire.log.followers.network,
kafkawire.broker.followers.install, kafkawire.broker.followers.opening.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.replication import journal_copy
from tests.kit.log.replica_network import SimFollower
from tests.kit.log.replicated_clients import ReplicatedProducer
from tests.kit.log.replicated_lives import Machine, ReplicatedLife, ReplicatedWorld
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.object_clients import read
from tests.kit.tier.object_lives import CALM, EXPECTED

SEEDS = int(os.environ.get("SIM_SEEDS", "15"))
LIVES = 6
STARTED_S = 600.0
"""In which a start is complete: far more than anything fails at a time."""
HEALED_S = 60.0
"""In which the set is complete when nothing fails any more."""
TRIES = 60
READ_RECORDS = 50
"""Records of one read, so that most of the time is not spent there."""
READ_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE)
TIERED: dict[str, Any] = {
    "tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1", "retention_ms": "-1",
    "segment_bytes": "1048576", "durability": "replicated",
}  # fmt: skip


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.world = world = ReplicatedWorld(
            seed, machines=3 + seed % 2, drifts=(seed % 4 > 1) * 0.5
        )
        rng = self.rng = world.rng
        config = world.config
        config.journal_bytes = rng.choice((1 << 14, 1 << 16))
        config.hot_bytes = rng.choice((0, 20_000))
        config.log_unreleased_max_bytes = rng.choice((200_000, 1 << 30))
        config.replica_group_size = rng.choice((2, 3, 3))
        config.min_insync_replicas = rng.choice((1, 2, 2, config.replica_group_size))
        config.replica_lag_time_max_ms = rng.choice((500, 2000))
        self.producers: list[ReplicatedProducer] = []
        self.clients: list[asyncio.Task[None]] = []
        self.stalled: list[tuple[ReplicatedLife, asyncio.Task[None]]] = []

    def run(self) -> ReplicatedWorld:
        loop = self.world.loop
        asyncio.set_event_loop(None)
        try:
            loop.run_until_complete(self.main())
        finally:
            for _ in range(3):
                left = loop.tasks()
                for task in left:
                    task.cancel()
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.close()
        self.raise_failures()
        return self.world

    async def main(self) -> None:
        world, rng = self.world, self.rng
        life = await self.start(calm=True)
        await self.create(life)
        troubles = [world.loop.create_task(each()) for each in (self.weather, self.reader)]
        for _ in range(LIVES):
            await asyncio.sleep(rng.random() * rng.choice((1, 3, 12)))
            self.raise_failures()
            life = await self.next_life(life)
        for task in troubles:
            task.cancel()
        await asyncio.wait(troubles)
        await self.end(life)

    def raise_failures(self) -> None:
        for task in self.clients:
            if task.done() and not task.cancelled():
                task.result()
        for failure in [*self.world.violations, *self.world.loop.failures]:
            if isinstance(failure, AssertionError):
                raise failure

    # --- lives

    def candidates(self) -> list[Machine]:
        """Return the machines where a start can proceed."""
        world = self.world
        stored, paired = world.stored_set(), world.paired()
        if stored is not None and world.members(stored.in_sync):
            return list(world.sites)
        return [paired or world.sites[0]]

    async def start(self, *, calm: bool = False, machine: Machine | None = None) -> ReplicatedLife:
        """Start a process, again and again while it fails, is killed or stalls."""
        world, rng = self.world, self.rng
        for _ in range(TRIES):
            chosen = self.candidates()
            site = machine if machine in chosen else rng.choice(chosen)
            await self.clear(site)
            life = ReplicatedLife(world, site)
            life.sql_lost = 0.0 if calm else rng.choice((0.0, 0.0, 0.02))
            starting = life.begin()
            fate = 1.0 if calm else rng.random()
            if fate < 0.3 and rng.random() < 0.3:
                world.loop.call_later(rng.random() * 0.1, self.silence_followers)
            within_s = rng.random() * rng.choice((1, 5)) if fate < 0.3 else STARTED_S
            await asyncio.wait([starting], timeout=within_s)
            assert starting.done() or fate < 0.3, "a start waits forever"
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                life.sql_lost = 0.0
                await self.check(life)
                if not life.over:
                    life.serve()
                    return life
            elif not starting.done() and fate < 0.15:
                self.stalled.append((life, starting))
                starting.add_done_callback(partial(self.finished, life))
                continue
            self.judge(life, starting)
            life.die(rng.choice(("kill", "power")))
            starting.cancel()
            await life.bury()
            await asyncio.wait([starting])
            await asyncio.sleep(0.1)
        raise AssertionError("no start succeeds")

    def judge(self, life: ReplicatedLife, starting: asyncio.Task[None]) -> None:
        """Check why a start has failed."""
        if starting.done() and not starting.cancelled() and not life.over:
            failure = starting.exception()
            if failure is not None:
                self.world.note(f"life {life.number} does not start: {failure}")
                assert isinstance(failure, EXPECTED), repr(failure)

    def finished(self, life: ReplicatedLife, starting: asyncio.Task[None]) -> None:
        """A start that has stalled has ended: clients may use this process, too."""
        self.judge(life, starting)
        if not starting.cancelled() and starting.exception() is None and not life.over:
            self.world.loop.create_task(self.serve_late(life))

    async def serve_late(self, life: ReplicatedLife) -> None:
        """Load the partitions of a process that another one may have superseded, and let clients
        in."""
        with contextlib.suppress(OSError, KafkaError):
            await life.partitions()
            life.serve()

    async def clear(self, machine: Machine) -> None:
        """End the process on a machine."""
        for life in [each for each in self.world.lives if each.machine is machine]:
            if not life.over:
                life.die("kill")
            await life.bury()
        for life, starting in self.stalled:
            if life.over and not starting.done():
                starting.cancel()

    async def next_life(self, life: ReplicatedLife) -> ReplicatedLife:
        """End a life, or leave it running, and start another one; return it."""
        world, rng = self.world, self.rng
        ways = ("kill", "power", "outage", "close", "move", "lose", "lose", "zombie", "zombie")
        world.stalled_starts = rng.choice((0.0, 0.3))
        machine = life.machine
        moves = rng.random() < 0.6 and await self.until_the_set_changes(life)
        how = "move" if moves else rng.choice(ways)
        world.note(f"next: {how}")
        if not moves and rng.random() < 0.4:
            rng.choice(world.sites).follower.silent_until = world.loop.now + rng.random() * 15
        if how == "zombie":
            self.isolate(life)
            made = await self.start()
            await asyncio.sleep(rng.random() * 3)
            return made
        if how == "close" and not life.over:
            world.bucket.faults = CALM
            await life.close()
        for site in world.sites if how == "outage" else [machine]:
            for each in [each for each in world.lives if each.machine is site]:
                each.die("kill" if how == "kill" else "power")
                await each.bury()
            if how in ("power", "outage"):
                site.follower.end("power", rng.random() * 3)
        if how == "lose" and world.may_lose(machine):
            world.note(f"machine {machine.node_id} is lost")
            world.replace_disks(machine)
        if moves:
            return await self.start(
                machine=rng.choice([each for each in world.sites if each is not machine])
            )
        stays = how in ("kill", "power", "outage", "close")
        return await self.start(machine=machine if stays else None)

    async def until_the_set_changes(self, life: ReplicatedLife) -> bool:
        """Wait for a moment at which a set is being stored, and have SQL be slow then. Sometimes
        the follower that enters or leaves gets nothing then, and is the only one that the next
        start can reach; return whether it is."""
        world, rng = self.world, self.rng
        if rng.random() < 0.5:
            rng.choice((self.restart_followers, self.restart_next_to_a_slow_one))()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 8)
        for _ in range(rng.randrange(1000)):
            replication = life.replication
            if life.over or replication is None or replication.in_sync is None:
                break
            in_sync = replication.in_sync
            if in_sync.changing is None:
                life.sql_delay_s = 2.0
                await asyncio.sleep(0.005)
                continue
            changed = sorted(in_sync.changing ^ in_sync.members)
            only = rng.random() < 0.7
            for each in changed if only else ():
                life.network.silent_until[each] = world.loop.now + 20
            await asyncio.sleep(rng.random() * rng.choice((0.01, 2)))
            for machine in world.members(in_sync.counted - {*changed}) if only else ():
                machine.follower.silent_until = world.loop.now + 15
            return only
        return False

    def isolate(self, life: ReplicatedLife) -> None:
        """Sometimes have a process not reach SQL, or some followers, for some time."""
        rng, now = self.rng, self.world.loop.now
        if rng.random() < 0.3:
            life.sql_down_until = now + rng.random() * 10
        names = ["", *(each.replica_id for each in self.world.followers())]
        for name in names:
            if rng.random() < 0.3:
                life.network.silent_until[name] = now + rng.random() * 10

    async def create(self, life: ReplicatedLife) -> None:
        rng = self.rng
        partitions = await life.create("t", rng.randrange(1, 3), **TIERED)
        partitions += await life.create(
            "u", 1, local_retention_ms=rng.choice(("-2", "1")), **TIERED
        )
        for at, partition in enumerate(partitions * 2):
            producer_id = -1 if at == 0 else 100 + at
            name = b"plain" if at == 0 else b"p%d" % at
            self.producers.append(
                ReplicatedProducer(
                    self.world, producer_id, partition.number, rng, name, acks_all=at > 0
                )
            )
        self.clients = [self.world.loop.create_task(each.run()) for each in self.producers]

    # --- checks

    async def check(self, life: ReplicatedLife) -> None:
        """Check all partitions of a life; the bucket is well meanwhile."""
        records = self.world.records
        for partition in await life.partitions():
            number = partition.number
            records.lead(number, partition.leader_epoch, rises=life.fresh and not life.started)
            for tried in range(TRIES):
                self.world.bucket.faults = CALM
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
                rows = await read(partition, at, at + READ_RECORDS)
                if not life.over:
                    world.records.see(partition.number, rows)
            except (KafkaError, OSError):
                continue

    # --- failures

    async def weather(self) -> None:
        """Faults of followers, of the network, of SQL and of the bucket."""
        world, rng = self.world, self.rng
        while True:
            await asyncio.sleep(rng.random() * 2)
            world.set_clocks()
            chance = rng.random()
            if chance < 0.6:
                self.trouble(rng.choice(world.sites).follower)
            elif chance < 0.75 and world.serving:
                self.isolate(rng.choice(world.serving))
            elif chance < 0.9:
                for life in world.serving:
                    life.sql_lost = rng.choice((0.0, 0.0, 0.3))
                    life.sql_delay_s = rng.choice((0.004, 0.004, 3.0))
                    life.offload.fsync_s = rng.choice((0.0, 0.0, 0.1, 1.0))
            else:
                world.bucket.faults = StoreFaults(
                    delay_s=(0.001, 0.02), timeout_s=1.0, down=rng.random() < 0.3
                )

    def restart_followers(self) -> None:
        """End all followers at once: they start again at different times."""
        for follower in self.world.followers():
            follower.end("kill", self.rng.random() * 2)

    def restart_next_to_a_slow_one(self) -> None:
        """Have one follower be slow, so that it leaves the set, and end the others then."""
        slow, *others = self.rng.sample(list(self.world.followers()), len(self.world.sites))
        slow.delay_s = self.rng.choice((0.8, 1.2, 2.0))
        for follower in others:
            for at_s in range(2, 8):
                restart_s = self.rng.random() * 0.1
                self.world.loop.call_later(at_s, follower.end, "kill", restart_s)

    def silence_followers(self) -> None:
        """Have no process reach any follower for some seconds."""
        until = self.world.loop.now + self.rng.random() * 6
        for follower in self.world.followers():
            follower.silent_until = until

    def trouble(self, follower: SimFollower) -> None:
        """One fault of a follower, or the end of all of them."""
        rng, now = self.rng, self.world.loop.now
        match rng.randrange(12):
            case 0:
                follower.end("kill", rng.random() * 4)
            case 1:
                follower.end("power", rng.random() * 4)
            case 2:
                follower.files.crash_at = follower.files.calls + rng.randint(1, 60)
            case 3:
                follower.silent_until = now + rng.random() * rng.choice((1, 12))
            case 4:
                follower.delay_s = rng.choice((0.05, 1.0))
            case 5:
                follower.files.failing_syncs = 1
            case 6:
                follower.files.free = 0
            case 7:
                follower.files.room_bytes = rng.randint(0, 20_000)
            case 8:
                for each in list(follower.connections):
                    each.cut()
            case 9:
                self.restart_followers()
            case 10:
                self.restart_next_to_a_slow_one()
            case _:
                follower.heal()

    async def end(self, life: ReplicatedLife) -> None:
        """Let everything come to its end without faults; then start once more, and read it all."""
        world = self.world
        self.heal()
        for each in world.lives:
            if each is not life or each.over:
                each.die("kill")
                await each.bury()
        if life.over:
            life = await self.start(calm=True)
        await self.complete(life)
        for producer in self.producers:
            producer.over = True
        await asyncio.wait_for(asyncio.gather(*self.clients), 120)
        await self.check(life)
        self.raise_failures()
        life.die("power")
        await life.bury()
        life = await self.start(calm=True)
        await self.complete(life)
        await life.close()
        await life.bury()

    def heal(self) -> None:
        """Have nothing fail any more."""
        self.world.bucket.faults = CALM
        self.world.stalled_starts = 0.0
        for life in self.world.lives:
            life.sql_lost = life.sql_down_until = 0.0
            life.sql_delay_s = 0.004
            life.offload.fsync_s = 0.0
            life.network.silent_until.clear()
        for follower in self.world.followers():
            follower.heal()

    async def complete(self, life: ReplicatedLife) -> None:
        """Wait until the set is complete."""
        wanted = self.world.config.replica_group_size - 1
        assert life.replication is not None
        async with asyncio.timeout(HEALED_S):
            while True:
                in_sync = life.replication.in_sync
                if in_sync is not None and len(in_sync.members) == wanted:
                    return
                await asyncio.sleep(0.1)


def simulate(seed: int) -> ReplicatedWorld:
    every_bytes = 3000 if seed % 3 else 1 << 20  # how much a restarted follower wants again
    with patch.object(journal_copy, "RECORD_EVERY_BYTES", every_bytes):
        return Simulation(seed).run()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_acknowledged_records_survive_loss_of_machines(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run_with_followers() -> None:
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
