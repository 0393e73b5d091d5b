"""Lives of one broker with topics of durability=replicated, on machines with followers.

`ReplicatedWorld` has the machines, each with the disk of a data folder and a follower
(tests.kit.sinks.follower_network). `ReplicatedLife` is one process. Earlier processes may still
run, on other machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kafkawire.broker.followers.opening import StartingReplicas, check_copies
from kafkawire.log import fresh_folder
from kafkawire.log.followers.service import ReplicatingProcess, Replication
from kafkawire.log.io.ports import Done
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.recovery.identity import read_identity
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import BrokerSuperseded, MetadataError
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import ReplicaSet
from kafkawire.replication.failures import DiskFailed, FollowerError
from tests.kit.env import OffloadWorker, SimOffload
from tests.kit.log.logs import FOLDER
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.sinks.follower_network import SimFollower, SimNetwork
from tests.kit.sinks.lives import DATA, SinkLife, SinkWorld
from tests.kit.tier.crash_points import Points
from tests.kit.tier.world import CLUSTER_NODE

T = TypeVar("T")


@dataclass(eq=False)
class Machine:
    """The disks of one machine: of the data folder, and of its follower."""

    node_id: int
    disk: MemFileSystem
    follower: SimFollower


class ReplicatedWorld(SinkWorld):
    """`sites`: the machines by index; `stalled_starts`: how likely a start waits somewhere;
    `copy_reads`: records that were read at followers, by `read_copy`, which is called when one has
    received something of an epoch."""

    def __init__(self, seed: int, machines: int, **values: Any) -> None:
        super().__init__(seed, **values)
        self.sites: list[Machine] = []
        self.stalled_starts = 0.0
        self.copy_reads = 0
        self.read_copy: Callable[[SimFollower, int], None] = lambda _follower, _epoch: None
        for at in range(machines):
            disk = self.fs if at == 0 else MemFileSystem(self.rng)
            self.sites.append(Machine(at + 1, disk, self._new_follower(at + 1)))

    def _new_follower(self, node_id: int) -> SimFollower:
        def received(epoch: int) -> None:
            self.read_copy(follower, epoch)

        follower = SimFollower(self.loop, self.rng, node_id, self.new_rate(), received)
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


class ReplicatedLife(SinkLife):
    """One process on a machine. `copied`: it has the journals of a follower, or its own ones;
    `sql_down_until`: when SQL answers again; `sql_lost`: how likely an answer of it is lost."""

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

    async def check_fresh(self) -> None:
        sql: Any = self.metadata
        await check_copies(sql, self.catalog, CLUSTER_NODE, DATA)

    def former_epoch(self) -> int | None:
        known = self.catalog.brokers.get(CLUSTER_NODE)
        return None if known is None else known.epoch

    async def registered(self) -> None:
        if not self.fresh and (await self._pairing()).metadata_id != self.stored.metadata_id:
            raise BrokerSuperseded(CLUSTER_NODE, self.epoch)

    async def prepare_sink(self) -> None:
        sql: Any = self.metadata
        loaded = await StartingReplicas.load(
            self.env, self.world.config, sql, self.catalog, {}, DATA, guest=True
        )
        self.replicas = replace(loaded, network=self.network)

    async def copy_into(self, home: str) -> None:
        await self.replicas.copy_into(home)

    def open_sink(self) -> dict[str, Any]:
        """Return the replication, as StartingReplicas.open makes it."""
        self.copied.set()
        stored = self.replicas.stored
        process = ReplicatingProcess(
            self.catalog.cluster_id, CLUSTER_NODE, self.epoch,
            self.machine.follower.replica_id, stored,
        )  # fmt: skip
        self.replication = Replication(
            self.env, self.world.config, self.metadata, self.network, process,
            waits=stored is not None, complete=not self.fresh,
        )  # fmt: skip
        self.replication.when_superseded(self.superseded)
        return {"replication": self.replication}

    def completed(self) -> None:
        assert self.replication is not None
        self.replication.note_complete_folder()

    def die(self, how: str) -> None:
        if self.over:
            return
        super().die(how)
        self.network.end()

    async def close(self) -> None:
        await super().close()
        self.network.end()
