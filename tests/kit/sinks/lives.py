"""Lives of one broker on machines that are lost, paused or put back.

`SinkWorld` is what outlives processes: SQL, the bucket, the disks of all machines, and the records
of clients (tests.kit.sinks.clients). `SinkLife` is one process, put together like
kafkawire.broker.broker; a subclass has the sink, the store of acknowledged records. All run on one
event loop, so an earlier process may still run while its successor starts: a process that was
paused and continues does the same, later.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kafkawire.broker.objects.fresh import begin_afresh, replacing_if_behind
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log import fresh_folder
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.manager import Log, lock_folder
from kafkawire.log.recovery.identity import (
    IdentityRecorder,
    check_pairing,
    inspect_folder,
    is_superseded,
)
from kafkawire.metadata.pairing import StoredPairing
from kafkawire.metadata.session import Session
from kafkawire.metadata.statements import check_broker_epoch
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.port import LIVE
from kafkawire.tiering.service import Tiering
from tests.kit.env import EPOCH_MS, MachineClock, MachineEnv
from tests.kit.log.logs import FOLDER
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, drifting
from tests.kit.sinks.records import Recorded
from tests.kit.tier.crash_points import Points
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.world import CLUSTER_NODE, PointStorage, TierProcess, TierWorld

T = TypeVar("T")

DATA = FOLDER.removesuffix(f"/brokers/{CLUSTER_NODE}")
CALM = StoreFaults(delay_s=(0.001, 0.02), timeout_s=1.0)
BURIED_WITHIN = 20


RATES = (0.5, 1.0, 2.0)
"""How fast monotonic clocks run: a bad timer, or a virtual machine that gets too little time. They
are powers of two: a timer that is rounded to a moment before it is due would be set again
forever."""
AHEAD_MS = (0, -5 * 60_000, -3600_000, 60_000, 2 * 3600_000, 11 * 3600_000)
"""How far a wall clock is set off. Two of them differ by less than `producer.id.expiration.ms`."""


class SinkWorld(TierWorld):
    """`machines`: the disks that there are, `clocks`: their clocks; `newest_ms`: the latest time
    that a wall clock has shown; `records`: what clients know; `lives`: all processes, in the order
    of their starts; `trace`: what happened, with the virtual time; `violations`: what a check has
    found within a step of a process."""

    def __init__(self, seed: int, drifts: float = 0.0, **values: Any) -> None:
        """`drifts`: how likely a monotonic clock drifts, and a wall clock is set."""
        super().__init__(seed, **values)
        self.drifts = drifts
        self.loop = SimLoop()
        self.clock_rng = random.Random(seed)
        self.clocks: dict[MemFileSystem, MachineClock] = {}
        self.newest_ms = EPOCH_MS
        self.machines = [self.fs]
        self.records = Recorded()
        self.trace: list[tuple[float, str]] = []
        self.lives: list[Any] = []
        self.violations: list[AssertionError] = []
        self.bucket.faults = CALM

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append((round(self.loop.now, 6), what))

    def new_machine(self) -> MemFileSystem:
        """A machine with an empty disk."""
        self.machines.append(MemFileSystem(self.rng))
        return self.machines[-1]

    def clock_of(self, disk: MemFileSystem) -> MachineClock:
        """Return the clocks of the machine with a disk."""
        if disk not in self.clocks:
            self.clocks[disk] = MachineClock(self.loop, self.new_rate())
            self.set_clocks()
        return self.clocks[disk]

    def new_rate(self) -> float:
        """Choose how fast the monotonic clock of a process or a machine runs."""
        return self.clock_rng.choice(RATES) if self.clock_rng.random() < self.drifts else 1.0

    def set_clocks(self) -> None:
        """Set some wall clocks, forwards or backwards."""
        for clock in self.clocks.values():
            self.newest_ms = max(self.newest_ms, clock.now_ms())
            if self.clock_rng.random() < self.drifts:
                clock.ahead_ms = self.clock_rng.choice(AHEAD_MS)

    def has_shown(self, time_ms: int) -> bool:
        """Return whether any wall clock has shown this time."""
        clocks = self.clocks.values()
        self.newest_ms = max(self.newest_ms, *(each.now_ms() for each in clocks))
        return self.newest_ms >= time_ms

    @property
    def serving(self) -> list[Any]:
        """The processes that clients reach, the newest last."""
        return [life for life in self.lives if life.started and not life.over]


class TermStorage(PointStorage):
    """As the storage in SQL, a superseded process changes no state of partitions."""

    process: SinkLife

    def _require_leader(self, numbers: Collection[int], node_id: int) -> set[int]:
        catalog = self.process.world.database.catalog
        assert catalog is not None
        if catalog.brokers[CLUSTER_NODE].epoch != self.process.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return super()._require_leader(numbers, node_id)

    async def _write(self, method: str, work: Callable[[Writes], T]) -> T:
        if method == "save_checkpoint" and self.process.no_checkpoints:
            raise MetadataError("the database is locked")
        return await super()._write(method, work)


class SinkLife(TierProcess):
    """One process on a machine. `started`: clients may use it; `fresh`: it has filled an empty
    folder; `served`: the end of each partition when it began to serve; `no_checkpoints`: SQL fails
    for all of them; `reason`: why it was superseded.

    A subclass has the sink. The methods that it replaces are called at a start, in their order."""

    world: SinkWorld
    store: Any

    def __init__(self, world: SinkWorld, fs: MemFileSystem, points: Points | None = None) -> None:
        world.fs = fs
        super().__init__(world, points, loop=world.loop, kind_of=lambda path: path.split("/")[-2])
        self.disk = fs
        self.clock = world.clock_of(fs)
        made = Env if self.clock.rate == 1.0 else MachineEnv
        env = self.env
        self.env = made(self.clock, env.random, env.fs, env.offload, env.tasks, env.worker)
        self.number = len(world.lives)
        self.started = self.fresh = self.no_checkpoints = False
        self.epoch = -1
        self.served: dict[int, int] = defaultdict(int)
        self.reason = ""
        world.lives.append(self)

    async def check_fresh(self) -> None:
        """Raise an error of EXPECTED if an empty folder cannot be filled."""

    async def stall(self) -> None:
        """Wait at a step of a start, while other processes run."""

    def former_epoch(self) -> int | None:
        """Return the broker epoch that this start must find in SQL; None for any."""

    async def registered(self) -> None:
        """Called once the broker is registered."""

    async def prepare_sink(self) -> None:
        """Load what the sink needs to fill an empty folder."""

    async def copy_into(self, home: str) -> None:
        """Copy what the sink has into an empty folder."""

    def open_sink(self) -> dict[str, Any]:
        """Return the arguments of Log.open that are the sink."""
        raise NotImplementedError

    def completed(self) -> None:
        """Called once an empty folder has everything."""

    async def open_metadata(self) -> None:
        """Open catalog and storage."""
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
        if self.fresh:
            await self.check_fresh()
        else:
            check_pairing(self.found, self.stored, "SQL")
        await self.stall()
        await metadata.register_broker(CLUSTER_NODE, {}, None, None, self.former_epoch())
        self.epoch = self.catalog.brokers[CLUSTER_NODE].epoch
        await self.registered()

    async def _pairing(self) -> StoredPairing:
        """As kafkawire.metadata.pairing.load, whose tables this SQL has not."""

        def load(session: Session) -> Any:
            query = "SELECT metadata_id, generation FROM data_folders WHERE node_id = 1"
            return session.rows(query)

        rows = await self.metadata.transact(load)
        position = await self.storage.load_log_position(CLUSTER_NODE)
        segments = await self.storage.segments(CLUSTER_NODE, [LIVE], 1000)
        return StoredPairing(
            self.catalog.cluster_id,
            self.world.database.version,
            bytes(rows[0][0]) if rows else b"",
            int(rows[0][1]) if rows else 0,
            position,
            any(each.local for each in segments),
        )

    async def open_log(self) -> None:
        """Open the log, its sink and the tier."""
        world = self.world
        metadata: Any = self.metadata
        await self.stall()
        await self.prepare_sink()
        if self.fresh:
            self.found, self.stored = await begin_afresh(
                self.env, self.found, FOLDER, self.storage, self.catalog, world.config,
                self.store, metadata, self.stored, self.copy_into,
            )  # fmt: skip
        await self.stall()
        sink = self.open_sink()
        async with replacing_if_behind(self.env, self.found, self.storage, self.catalog, FOLDER):
            self.log = await Log.open(
                self.env, FOLDER, world.config, self.catalog, self.storage, metadata, CLUSTER_NODE,
                self.lock, fresh=self.fresh, **sink,
            )  # fmt: skip
        await self.stall()
        self.identity = IdentityRecorder(
            self.env, metadata, FOLDER, CLUSTER_NODE, self.catalog.cluster_id
        )
        self.log.hooks.when_stored(self.identity.note_change)
        await self.identity.start(self.found, self.stored)
        if self.fresh:
            fresh_folder.complete(self.env.fs, FOLDER)
            self.completed()
        self.tiering = Tiering(
            self.env, world.config, self.log, self.storage, self.catalog, self.store,
            CLUSTER_NODE, self.catalog.cluster_id, check_current=self.check_current,
        )  # fmt: skip
        await self.tiering.start()

    async def check_current(self) -> None:
        """Raise BrokerSuperseded if another process was started since."""
        await self.metadata.transact(
            lambda session: check_broker_epoch(session, CLUSTER_NODE, self.epoch)
        )

    def begin(self) -> asyncio.Task[None]:
        """Start, with the clocks of the machine."""
        return self.loop.create_task(self.start(), context=drifting(self.clock.rate))

    async def start(self) -> None:
        await super().start()
        kind = "fresh" if self.fresh else "kept"
        self.world.note(f"life {self.number} has started, {kind}, epoch {self.epoch}")

    def serve(self) -> None:
        """Let clients in."""
        self.started = True
        for number, partition in self.log.partitions.items():
            self.served[number] = partition.high_watermark

    def superseded(self, why: str) -> None:
        """End: another life has begun."""
        self.reason = why
        self.world.note(f"life {self.number} is superseded")
        self.world.loop.call_soon(self.die, "kill")

    def die(self, how: str) -> None:
        if self.over:
            return
        newest, self.world.fs = self.world.fs, self.disk
        try:
            super().die(how)
        finally:
            self.world.fs = newest
        self.world.note(f"life {self.number} ends: {how}")

    async def close(self) -> None:
        """End cleanly."""
        self.over = True
        await self.tiering.close()
        await self.identity.close()
        await self.log.close()
        self.disk.kill()
        self.metadata.crash()
        self.world.note(f"life {self.number} is closed")

    async def bury(self) -> None:
        """Cancel the tasks that a dead process has left."""
        for _ in range(BURIED_WITHIN):
            left = [task for task in self.env.tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.001)


EXPECTED = (OSError, KafkaError, LogError)
"""Errors of a start when SQL or the bucket fails: an operator starts it again."""
