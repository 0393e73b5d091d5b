"""A broker with topics of durability=replicated in a seeded simulation: machines that fail.

A producer without a producer id has acks=1. Processes are killed, machines lose their power or
their disks, a successor starts on another machine while its predecessor is still running, with
clients. Followers crash at any call of the operating system, hang, have full disks and failed
fsyncs; connections are cut or silent; SQL fails, and its answers are lost. With half of the seeds
wall clocks are set, and the monotonic clocks of brokers and followers run at half to double the
speed. In addition to the checks of tests.kit.sinks.simulation:

- each follower in the set has what was acknowledged, whenever the set changes;
- what consumers may read of the copy of any follower is never taken back;
- when nothing fails any more the set is complete again.

Something that has all acknowledged records always stays: a disk is only lost if another one has
them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from random import Random
from unittest.mock import patch

from kafkawire.codec.batches import Record, iter_batches, records
from kafkawire.codec.errors import KafkaError
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK
from kafkawire.log.journal.scan import scan
from kafkawire.replication import journal_copy
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.replication.messages import CopyMessage
from tests.kit.sinks.follower_lives import Machine, ReplicatedLife, ReplicatedWorld
from tests.kit.sinks.follower_network import FOLDER, NODE, SimFollower
from tests.kit.sinks.lives import CALM
from tests.kit.sinks.records import Row
from tests.kit.sinks.simulation import STARTED_S, TRIES, Simulation
from tests.kit.tier.fake_bucket import StoreFaults

READS = 0.1
"""How likely a copy is read when its follower has received something."""
HEALED_S = 60.0
"""In which the set is complete when nothing fails any more."""


class FollowerSimulation(Simulation[ReplicatedWorld, ReplicatedLife]):
    """One seed. `stalled`: starts that wait somewhere."""

    topic = {
        "tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1", "retention_ms": "-1",
        "segment_bytes": "1048576", "durability": "replicated",
    }  # fmt: skip
    life_count = 6
    longest_s = (1, 3, 12)
    max_read = 50  # so that most of the time is not spent there
    deletes_records = False
    plain_acks_all = False

    def __init__(self, seed: int) -> None:
        drifts = (seed % 4 > 1) * 0.5
        super().__init__(ReplicatedWorld(seed, machines=3 + seed % 2, drifts=drifts))
        rng, config = self.rng, self.world.config
        config.log_unreleased_max_bytes = rng.choice((200_000, 1 << 30))
        config.replica_group_size = rng.choice((2, 3, 3))
        config.min_insync_replicas = rng.choice((1, 2, 2, config.replica_group_size))
        config.replica_lag_time_max_ms = rng.choice((500, 2000))
        self.stalled: list[tuple[ReplicatedLife, asyncio.Task[None]]] = []
        self._reads = Random(seed)  # its own: reads of copies change nothing else of a run
        self.world.read_copy = self.read_copy

    # --- lives

    def candidates(self) -> list[Machine]:
        """Return the machines where a start can proceed."""
        world = self.world
        stored, paired = world.stored_set(), world.paired()
        if stored is not None and world.members(stored.in_sync):
            return list(world.sites)
        return [paired or world.sites[0]]

    async def start_first(self) -> ReplicatedLife:
        return await self.start(calm=True)

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
            self.expect(life, starting)
            life.die(rng.choice(("kill", "power")))
            starting.cancel()
            await life.bury()
            await asyncio.wait([starting])
            await asyncio.sleep(0.1)
        raise AssertionError("no start succeeds")

    def finished(self, life: ReplicatedLife, starting: asyncio.Task[None]) -> None:
        """A start that has stalled has ended: clients may use this process, too."""
        self.expect(life, starting)
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

    # --- clients

    def read_copy(self, follower: SimFollower, epoch: int) -> None:
        """Sometimes read what consumers may read at a follower, as the broker of its machine."""
        if follower.copies is None or self._reads.random() > READS:
            return
        try:
            found = follower.copies.wait_for_commit(epoch, 0, 0)
        except (FollowerError, DiskFailed):
            return
        readable = CopyMessage(found.end, found.committed, found.files).readable
        try:
            for number, rows in records_of(follower, epoch, readable):
                self.world.records.see(number, rows)
                self.world.copy_reads += len(rows)
        except AssertionError as violation:
            self.world.violations.append(violation)

    # --- failures

    async def weather(self) -> None:
        """Faults of followers, of the network, of SQL and of the bucket."""
        world, rng = self.world, self.rng
        while True:
            await asyncio.sleep(rng.random() * 2)
            world.set_clocks()
            chance = rng.random()
            if chance < 0.6:
                self.fail_follower(rng.choice(world.sites).follower)
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

    def fail_follower(self, follower: SimFollower) -> None:
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

    async def heal(self, life: ReplicatedLife) -> ReplicatedLife:
        self.world.bucket.faults = CALM
        self.world.stalled_starts = 0.0
        for each in self.world.lives:
            each.sql_lost = each.sql_down_until = 0.0
            each.sql_delay_s = 0.004
            each.offload.fsync_s = 0.0
            each.network.silent_until.clear()
        for follower in self.world.followers():
            follower.heal()
        for each in self.world.lives:
            if each is not life or each.over:
                each.die("kill")
                await each.bury()
        if life.over:
            life = await self.start(calm=True)
        await self.complete(life)
        return life

    async def start_last(self, life: ReplicatedLife) -> ReplicatedLife:
        life.die("power")
        await life.bury()
        life = await self.start(calm=True)
        await self.complete(life)
        return life

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


def records_of(
    follower: SimFollower, epoch: int, readable: int
) -> Iterator[tuple[int, list[tuple[int, Row]]]]:
    """Yield the records of each partition that a copy has in the journal of a log position, and
    before it."""
    number, stop = readable >> POSITION_BITS, readable & POSITION_MASK
    path = f"{FOLDER}/{NODE}/{epoch}/{journal_copy.journal_name(number)}"
    try:
        data = memoryview(bytes(follower.files.file(path).data[:stop]))
    except (OSError, KeyError):
        return  # the folder has another epoch meanwhile
    found = scan(data, number, 0, None, 0)
    assert not found.gaps, f"{path} is damaged before what is committed"
    for partition, index in found.rows.items():
        rows: list[tuple[int, Row]] = []
        for position, length in zip(index.log_position, index.length, strict=True):
            start = position & POSITION_MASK
            buffer = bytes(data[start : start + length])
            for at, head in iter_batches(buffer):
                for each in records(buffer, at):
                    assert isinstance(each, Record)
                    rows.append((each.offset, (bytes(each.value or b""), head.leader_epoch)))
        yield partition, rows


def simulate(seed: int) -> ReplicatedWorld:
    every_bytes = 3000 if seed % 3 else 1 << 20  # how much a restarted follower wants again
    with patch.object(journal_copy, "RECORD_EVERY_BYTES", every_bytes):
        return FollowerSimulation(seed).run()
