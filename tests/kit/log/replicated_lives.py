"""Lives of one broker with topics of durability=replicated, on machines with followers.

`ReplicatedWorld` is what outlives processes: SQL, the bucket, and the machines, each with the disk
of a data folder and a follower (tests.kit.log.replica_network). `ReplicatedLife` is one process,
put together like kafkawire.broker.broker. Earlier processes may still run, on other machines.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kafkawire.broker.followers.opening import StartingReplicas, check_copies
from kafkawire.broker.objects.fresh import begin_afresh, replacing_if_behind
from kafkawire.log import fresh_folder
from kafkawire.log.followers.service import ReplicatingProcess, Replication
from kafkawire.log.io.ports import Done
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.manager import Log, lock_folder
from kafkawire.log.recovery.identity import (
    IdentityRecorder,
    check_pairing,
    inspect_folder,
    is_superseded,
    read_identity,
)
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import BrokerSuperseded, MetadataError
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import ReplicaSet
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.tiering.service import Tiering
from tests.kit.env import OffloadWorker, SimOffload
from tests.kit.log.logs import FOLDER
from tests.kit.log.replica_network import SimFollower, SimNetwork
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.tier.crash_points import Points
from tests.kit.tier.object_lives import DATA, ObjectLife, ObjectTierWorld, TermStorage
from tests.kit.tier.world import CLUSTER_NODE

T = TypeVar("T")


@dataclass(eq=False)
class Machine:
    """The disks of one machine: of the data folder, and of its follower."""

    node_id: int
    disk: MemFileSystem
    follower: SimFollower


class ReplicatedWorld(ObjectTierWorld):
    """`sites`: the machines by index; `stalled_starts`: how likely a start waits somewhere;
    `violations`: what a check has found."""

    lives: list[Any]

    def __init__(self, seed: int, machines: int, **values: Any) -> None:
        super().__init__(seed, **values)
        self.sites: list[Machine] = []
        self.stalled_starts = 0.0
        self.violations: list[AssertionError] = []
        for at in range(machines):
            disk = self.fs if at == 0 else MemFileSystem(self.rng)
            self.sites.append(Machine(at + 1, disk, self._new_follower(at + 1)))

    @property
    def serving(self) -> list[Any]:
        return super().serving

    def _new_follower(self, node_id: int) -> SimFollower:
        follower = SimFollower(self.loop, self.rng, node_id, self.new_rate())
        now_ms = int(self.loop.now * 1000)
        self._run(lambda session: replica_sets.register(session, follower.row, now_ms))
        return follower

    def replace_disks(self, machine: Machine) -> None:
        """Lose the disks of a machine. No process of the broker may run there."""
        machine.follower.lose()
        machine.disk = MemFileSystem(self.rng)
        machine.follower = self._new_follower(machine.node_id)

    def followers(self) -> Iterator[SimFollower]:
        """Return the present follower of each machine."""
        return (machine.follower for machine in self.sites)

    def _run(self, work: Any) -> Any:
        catalog = self.database.catalog
        brokers = {} if catalog is None else catalog.brokers
        epochs = {each.node_id: each.epoch for each in brokers.values()}
        return self.database.tables.run(work, epochs, 0)

    def stored_set(self) -> ReplicaSet | None:
        """Return the set in SQL."""
        found: ReplicaSet | None = self._run(lambda session: replica_sets.load(session, 1))
        return found

    def paired(self) -> Machine | None:
        """Return the machine with the complete folder that SQL has; None if there is none."""

        def load(session: Session) -> Any:
            return session.rows("SELECT metadata_id FROM data_folders WHERE node_id = 1")

        rows = self._run(load)
        for machine in self.sites:
            identity = read_identity(machine.disk, FOLDER)
            if not rows or identity is None or fresh_folder.is_begun(machine.disk, FOLDER):
                continue
            if identity.metadata_id == bytes(rows[0][0]).hex():
                return machine
        return None

    def members(self, replicas: frozenset[str]) -> list[Machine]:
        """Return the machines whose followers are in a set."""
        return [each for each in self.sites if each.follower.replica_id in replicas]

    def may_lose(self, machine: Machine) -> bool:
        """Return whether another machine has all that was acknowledged, whatever is being
        stored."""
        stored, paired = self.stored_set(), self.paired()
        if stored is None:
            return False
        sets = [stored.in_sync]
        for life in self.lives:
            in_sync = None if life.over or life.replication is None else life.replication.in_sync
            if in_sync is not None and in_sync.changing is not None:
                sets.append(in_sync.changing)
        starting = any(not life.over and not life.started for life in self.lives)
        if paired not in (None, machine) and not starting:
            return True
        return all(set(self.members(each)) - {machine} for each in sets)


class SlowOffload(SimOffload):
    """Threads of a process whose fsyncs of journals take up to `fsync_s`."""

    fsync_s = 0.0

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        if pool == "commit" and self.fsync_s:
            free_at = max(self._loop.now, self._free_at.get(pool, 0.0))
            self._free_at[pool] = free_at + self._rng.random() * self.fsync_s
        super().submit_then(pool, done, fn, *args)


class ReplicatedLife(ObjectLife):
    """One process on a machine. `served`: the end of each partition when it began to serve;
    `copied`: it has the journals of a follower, or its own ones; `sql_down_until`: when SQL answers
    again; `sql_lost`: how likely an answer of it is lost."""

    world: ReplicatedWorld

    def __init__(
        self, world: ReplicatedWorld, machine: Machine, points: Points | None = None
    ) -> None:
        super().__init__(world, machine.disk, points)
        self.machine = machine
        self.offload = SlowOffload(self.loop, self.rng)
        worker = OffloadWorker(self.offload, self.env.fs)
        self.env = replace(self.env, offload=self.offload, worker=worker)
        self.metadata = MemoryMetadata(world.database, self.metadata_pause)
        self.network = SimNetwork(self.loop, self.rng, world.followers, self._hit)
        self.replication: Replication | None = None
        self.sql_down_until = self.sql_lost = 0.0
        self.sql_delay_s = 0.004
        self.served: dict[int, int] = defaultdict(int)
        self.copied = asyncio.Event()

    def _hit(self, what: str) -> None:
        self.points.hit(f"{what} follower")

    async def metadata_pause(self) -> None:
        """Before a transaction, and before its answer arrives."""
        self.points.hit("metadata")
        self.check_members()
        await self.env.sleep(self.rng.random() * self.sql_delay_s)
        if self.loop.now < self.sql_down_until or self.rng.random() < self.sql_lost:
            raise MetadataError("the connection to the database was lost")

    def check_members(self) -> None:
        """Check that each follower which the next start may use has what was acknowledged, except
        journals that are not needed any more."""
        newest = all(each.epoch <= self.epoch for each in self.world.lives)
        if self.over or self.replication is None or not newest:
            return
        log, in_sync = self.replication._log, self.replication.in_sync
        if log is None or in_sync is None or not in_sync.established:
            return
        acknowledged = log.follower_sink._committed
        if acknowledged < next(iter(log.journals.by_number)) << POSITION_BITS:
            return
        for machine in self.world.members(in_sync.counted):
            copies = machine.follower.copies
            try:
                end = acknowledged if copies is None else copies.listing(self.epoch).end
            except DiskFailed:
                continue
            except FollowerError:
                end = -1
            if end < acknowledged:
                text = f"follower {machine.node_id} ends at {end}, acknowledged {acknowledged}"
                self.world.violations.append(AssertionError(text))

    async def stall(self) -> None:
        """Sometimes wait, while other processes run."""
        if self.rng.random() < self.world.stalled_starts:
            await self.env.sleep(self.rng.random() * 4)

    async def open_metadata(self) -> None:
        """Open catalog and storage, as Broker.start does."""
        world, metadata = self.world, self.metadata
        self.lock = lock_folder(self.env, FOLDER)
        self.catalog = await metadata.open()
        self.storage = TermStorage(
            world.database.offsets, CLUSTER_NODE, self.env.clock.now_ms,
            world.database.leader_of, pause=self.sql_pause,
        )  # fmt: skip
        self.storage.process = self
        metadata._storages.append(self.storage)
        self.found = inspect_folder(self.env.fs, DATA, FOLDER, CLUSTER_NODE)
        self.stored = await self._pairing()
        begun = fresh_folder.is_begun(self.env.fs, FOLDER)
        self.fresh = begun or is_superseded(self.found, self.stored)
        sql: Any = metadata
        if self.fresh:
            await check_copies(sql, self.catalog, CLUSTER_NODE, DATA)
        else:
            check_pairing(self.found, self.stored, "SQL")
        await self.stall()
        known = self.catalog.brokers.get(CLUSTER_NODE)
        after = None if known is None else known.epoch
        await metadata.register_broker(CLUSTER_NODE, {}, None, None, after)
        self.epoch = self.catalog.brokers[CLUSTER_NODE].epoch
        if not self.fresh and (await self._pairing()).metadata_id != self.stored.metadata_id:
            raise BrokerSuperseded(CLUSTER_NODE, self.epoch)

    async def open_log(self) -> None:
        """Open the replication, the log and the tier."""
        world, metadata = self.world, self.metadata
        sql: Any = metadata
        await self.stall()
        loaded = await StartingReplicas.load(
            self.env, world.config, sql, self.catalog, {}, DATA, guest=True
        )
        replicas = replace(loaded, network=self.network)
        if self.fresh:
            self.found, self.stored = await begin_afresh(
                self.env, self.found, FOLDER, self.storage, self.catalog, world.config,
                self.store, sql, self.stored, replicas.copy_into,
            )  # fmt: skip
        await self.stall()
        self.copied.set()
        self.replication = self._replication(replicas.stored)
        async with replacing_if_behind(self.env, self.found, self.storage, self.catalog, FOLDER):
            self.log = await Log.open(
                self.env, FOLDER, world.config, self.catalog, self.storage, metadata, CLUSTER_NODE,
                self.lock, replication=self.replication, fresh=self.fresh,
            )  # fmt: skip
        await self.stall()
        self.identity = IdentityRecorder(
            self.env, metadata, FOLDER, CLUSTER_NODE, self.catalog.cluster_id
        )
        self.log.hooks.when_stored(self.identity.note_change)
        await self.identity.start(self.found, self.stored)
        if self.fresh:
            fresh_folder.complete(self.env.fs, FOLDER)
            self.replication.note_complete_folder()
        self.tiering = Tiering(
            self.env, world.config, self.log, self.storage, self.catalog, self.store,
            CLUSTER_NODE, self.catalog.cluster_id,
        )  # fmt: skip
        await self.tiering.start()

    def _replication(self, stored: ReplicaSet | None) -> Replication:
        """Return the replication, as StartingReplicas.open does."""
        process = ReplicatingProcess(
            self.catalog.cluster_id, CLUSTER_NODE, self.epoch,
            self.machine.follower.replica_id, stored,
        )  # fmt: skip
        made = Replication(
            self.env, self.world.config, self.metadata, self.network, process,
            waits=stored is not None, complete=not self.fresh,
        )  # fmt: skip
        made.when_superseded(self.superseded)
        return made

    def serve(self) -> None:
        super().serve()
        for number, partition in self.log.partitions.items():
            self.served[number] = partition.high_watermark

    def die(self, how: str) -> None:
        if self.over:
            return
        super().die(how)
        self.network.end()

    async def close(self) -> None:
        await super().close()
        self.network.end()
