"""A small broker around kafkawire.tiering.publishing.publisher: catalog, storage and bucket in
memory, virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    Swap,
    pack_ranges,
)
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from kafkawire.tiering.publishing.publisher import Added, Rounds
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

FOLDER = "/broker/tier"
CLUSTER = "cluster-of-the-tests00"


@dataclass
class RoundsWorld:
    """The state that outlives a process: the bucket, the rows, the catalog."""

    seed: int = 0
    fold: int = 4
    bucket: FakeBucket = field(default_factory=FakeBucket)
    rows: MemoryRows = field(default_factory=MemoryRows)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.bucket.rng = random.Random(self.seed + 1)
        self.catalog = Catalog(CLUSTER)
        self.loop: SimLoop

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run in virtual time; processes may start and end meanwhile."""
        self.loop = SimLoop()
        self.loop.now = self.now_s
        try:
            simloop.run(self.loop, main())
        finally:
            self.now_s = self.loop.now

    def topic(self, name: str, count: int = 1, **configs: str) -> TopicInfo:
        """Create a topic in SQL."""
        first = self.catalog.last_number() + 1
        partitions = [PartitionInfo(first + n, n, 1, 0) for n in range(count)]
        info = TopicInfo(self.rng.randbytes(16), name, False, partitions, configs, 1234)
        self.catalog.add_topic(info)
        return info

    def manifest(self) -> Manifest:
        """The manifest that a reader finds in the bucket now."""
        return read_manifest(self.bucket.objects.__getitem__)


class RoundsBroker:
    """One process."""

    def __init__(self, world: RoundsWorld, node_id: int = 1, cluster_id: str = CLUSTER) -> None:
        self.world = world
        self.node_id = node_id
        self.fs = MemFileSystem()
        self.env = sim_env(world.loop, world.rng, self.fs)
        self.store = FakeStore(world.bucket, self.fs)
        self.storage = MemoryStorage(world.rows, 1, self.env.clock.now_ms, lambda _: 1)
        config = BrokerConfig({"tier.manifest.fold": str(world.fold), "tier.retry.max.ms": "4000"})
        self.rounds = Rounds(
            self.env, config, world.catalog, self.storage, self.store, {}, node_id, cluster_id,
            FOLDER,
        )  # fmt: skip

    async def die(self) -> None:
        """End the process: no later step of it has an effect, and no caller is notified."""
        self.store.crash()
        self.rounds._closed = True
        for task in list(self.env.tasks):
            task.cancel()
        if self.rounds._timer is not None:
            self.rounds._timer.cancel()

    async def segment(
        self, parts: list[tuple[int, int, int]], generation: int = 0
    ) -> tuple[SegmentRow, list[SegmentRange]]:
        """A LIVE segment in SQL with these (number, base, end), and its mappings."""
        row = SegmentRow(self.env.random.randbytes(16), 1, self.env.clock.now_ms())
        row.generation, row.retention_class, row.size_bytes = generation, "tiered", 4096
        (row.id,) = await self.storage.start_segments([row])
        mappings = [
            SegmentRange(
                number, row.id, base, end, 64 + 100 * at, 100, 500, 28, 7, 5, 1, end - base
            )
            for at, (number, base, end) in enumerate(parts)
        ]
        await self.storage.finish_segments(Swap([(row, mappings)]))
        return row, mappings

    async def object(self, parts: list[tuple[int, int, int]], generation: int = 0) -> Added:
        """A segment, and a STARTED object of it, as an upload makes them."""
        segment, mappings = await self.segment(parts, generation)
        row = ObjectRow(self.env.random.randbytes(16), segment.id, 1, size_bytes=4096)
        row.ranges = pack_ranges(parts)
        dispatched = {number: end for number, _, end in parts}
        assert await self.storage.start_objects([row], dispatched) == [row.uuid]
        self.world.bucket.store(segment_key(row.uuid), bytes(4096))
        return Added(row, segment, mappings)

    async def upload(self, *parts: tuple[int, int, int]) -> Added:
        """An object as an upload makes it: published, then FINISHED with its commit offsets."""
        added = await self.object(list(parts))
        commits = {number: end for number, _, end in parts}
        await self.rounds.publish([added], {}, commits)
        assert await self.storage.finish_objects([added[0].uuid], commits)
        return added

    async def start_log_at(self, number: int, offset: int) -> None:
        """Move a partition's log start, in SQL alone."""
        row = PartitionCheckpoint(number, 1000, offset, [(3, 0)])
        await self.storage.save_checkpoint(Checkpoint(1, 0, [row]))


__all__ = ["COPY_FINISHED", "RoundsBroker", "RoundsWorld"]
