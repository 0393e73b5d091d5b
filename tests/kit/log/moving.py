"""Two logs over one database, between which the leadership of partitions moves.

Each has its own folder, catalog and time at which it learns of a change. A checked storage refuses
what only a leader may write, and what a term of a leader may not take back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from kafkawire.broker.partitions import NotLoaded, PartitionTable
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead, SegmentRead
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.store import KeyValueStore, Writes
from kafkawire.offsets.storage.memory import MemoryStorage
from tests.kit.env import sim_env
from tests.kit.leaders import move
from tests.kit.log.logs import settings, values
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.simloop import SimLoop


class LedRows:
    """Rows of which only the leader of a partition changes those of the partition."""

    def __init__(self, rows: KeyValueStore, database: MemoryDatabase, node_id: int) -> None:
        self.get, self.scan, self.floor, self.close = rows.get, rows.scan, rows.floor, rows.close
        self._rows = rows
        self._database = database
        self._node_id = node_id

    def write(self, writes: Writes) -> None:
        for key in writes.changes:
            if key[:1] == b"p":
                number, kind = layout.partition_of(key[:10])
                leader = self._database.leader_of(number)
                what = f"node {self._node_id} wrote {kind} of {number}, which {leader} leads"
                assert leader == self._node_id, what
        self._rows.write(writes)


class Node:
    """One process with its log."""

    def __init__(
        self, node_id: int, loop: SimLoop, rng: random.Random, database: MemoryDatabase
    ) -> None:
        self.node_id = node_id
        self.rng = rng
        self.env = sim_env(loop, rng, MemFileSystem(rng))
        self.database = database
        self.metadata = MemoryMetadata(database, self._pause)
        self.epochs: dict[int, tuple[int, int]] = {}  # of the last checkpoint: epoch, next offset
        self.following = asyncio.Lock()

    async def _pause(self) -> None:
        await self.env.sleep(self.rng.random() * 0.002)

    async def start(self, known: dict[int, tuple[int, int]]) -> None:
        """Open the log. `known`: the last checkpoints of all nodes."""
        self.epochs = known
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(self.node_id, {}, None)
        self.storage = self.metadata.storage(self.env.clock.now_ms, self.node_id)
        self._check(self.storage)
        config = settings(
            journal_bytes=8192,
            hot_bytes=0,
            cut_interval_ms=20,
            log_flush_offset_checkpoint_interval_ms=30,
            log_retention_check_interval_ms=50,
        )
        self.log = await Log.open(
            self.env, f"/data/brokers/{self.node_id}", config, self.catalog, self.storage,
            self.metadata, self.node_id,
        )  # fmt: skip
        self.table = PartitionTable(self.catalog, self.log.loader, self.node_id)

    def _check(self, storage: MemoryStorage) -> None:
        """Check what this node writes."""
        storage._store = LedRows(storage._store, self.database, self.node_id)
        save = storage.save_checkpoint

        async def checked(checkpoint: Checkpoint) -> None:
            await save(checkpoint)
            for state in checkpoint.partitions:
                stored = state.leader_epochs[-1][0], state.next_offset
                before = self.epochs.get(state.number, (0, 0))
                assert stored[0] >= before[0], "a checkpoint of an earlier term was stored"
                assert stored[1] >= before[1], "a next offset went back"
                self.epochs[state.number] = stored

        storage.save_checkpoint = checked  # type: ignore[method-assign]

    async def follow(self, numbers: list[int], leader: int) -> None:
        """Learn of a change of leaders after a while, as the process that follows the catalog."""
        async with self.following:
            await self.env.sleep(self.rng.random() * 0.05)
            led = [number for number in numbers if self.catalog.leader_of(number) == self.node_id]
            move(self.catalog, numbers, leader)
            if leader == self.node_id:
                await self.log.lead(numbers)
            else:
                await self.log.resign(led)
                assert not any(number in self.log.partitions for number in led)

    async def find(self, index: int) -> Partition:
        """Return a partition that is led here. Raises KafkaError."""
        while True:
            try:
                return self.table.find_by_name("t", index)
            except NotLoaded as missing:
                await self.log.loader.load(missing.numbers)


async def read(
    nodes: Iterable[Node], partition: Partition, offset: int
) -> list[tuple[int, bytes | None]]:
    """Read the records from an offset on; those in a segment by the node that has its file."""
    end = partition.high_watermark
    reader = partition.log
    if partition.log_start <= offset < partition.cut_offset:
        at = partition.segments.find(offset)
        mapping = next(iter(list(partition.segments.mappings(partition.number))[at:]))
        end = min(end, mapping.end_offset)
        for node in nodes:
            if mapping.segment_id in node.log.segments.store.by_id:
                reader = node.log.commit_log
    plan = partition.plan(offset, 1 << 20, end, True)
    if isinstance(plan, HotRead):
        views, release = partition.log.views(plan)
        found = values(list(views))
        release()
    else:
        assert isinstance(plan, SegmentRead) or reader is partition.log
        found = values(await reader.read(plan))
    return [pair for pair in found if pair[0] >= offset]
