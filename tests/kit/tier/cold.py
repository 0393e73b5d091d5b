"""Logs whose segments are objects, without the uploader, for tests of reading them.

`remote` turns segments of a running `tests.kit.log.logs.World` into objects of a bucket in memory,
like an upload followed by local retention.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from kafkawire.codec.batches import iter_batches
from kafkawire.log.partition.read_plan import HotRead
from kafkawire.log.segments.store.index_cache import WarmIndexes
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import LIVE, ObjectRow
from kafkawire.tiering.read.cold_reader import ColdReader, Copy
from tests.kit.env import EPOCH_MS, memory_env, sim_env
from tests.kit.log.logs import World, batch
from tests.kit.log.segments import read, split
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

SEEDS = int(os.environ.get("SIM_SEEDS", "12"))
BLOCK_BYTES = 16 << 10


class ColdWorld(World):
    """A world with a bucket. `open_tier` gives the running process access to it."""

    def __init__(self, loop: SimLoop | None = None, seed: int = 0, **values: Any) -> None:
        rng = random.Random(seed)
        env = memory_env() if loop is None else sim_env(loop, rng, MemFileSystem(rng))
        usual = {"journal_bytes": 1 << 20, "hot_bytes": 0, "tier_hedge_percentile": 100}
        super().__init__(env, **{**usual, **values})
        self.bucket = FakeBucket(rng)
        self.damage: list[tuple[int, Copy]] = []  # what reads have found

    def open_tier(self, blocks: int = 16, block_bytes: int = BLOCK_BYTES) -> ColdReader:
        """Let reads use the bucket, through a cache of so many blocks."""
        self.remote_store = FakeStore(self.bucket, self.fs, blocks * block_bytes)
        segments = self.log.segments
        segments.warm.indexes = WarmIndexes()  # as after a start
        self.cold = ColdReader(
            self.env, self.config, segments.store, segments.warm.indexes,
            self.log.commit_log.reader.lane, self.storage,
            lambda tier: self.remote_store, block_bytes,
            lambda segment, copy: self.damage.append((segment.row.id, copy)),
        )  # fmt: skip
        segments.remote.attach_reader(self.cold)
        return self.cold

    async def fill(self, name: str, count: int, size: int = 500, index: int = 0) -> None:
        """Append so many batches of one record each; record n begins with b"n:"."""
        partition = self.find(name, index)
        for _ in range(count):
            base = partition.next_offset
            value = b"%d:" % base + self.env.random.randbytes(size)
            partition.append(batch(value, timestamp_ms=EPOCH_MS + base), EPOCH_MS)
            await partition.log.wait_until_committed()

    async def cut(self) -> None:
        """Cut everything there is into segments."""
        while not self.log.journals.ready:
            self.log.journals.prepare(again=True)
            await self.env.sleep(0.001)
        self.log.commit_log.roll()
        await self.log.commit_log.wait_until_committed()
        waiting = [p for p in self.log.partitions.values() if not p.topic.startswith("__")]
        while any(p.cut_offset < p.next_offset for p in waiting):
            await self.env.sleep(0.01)
            await self.log.segments.cut()
        await self.log.checkpoint()
        await self.log.retention.reclaim()

    def segments(self) -> list[Segment]:
        """The live segments, oldest first."""
        found = self.log.segments.store.by_id
        return [found[key] for key in sorted(found) if found[key].row.state == LIVE]

    async def remote(self, segments: Iterable[Segment], *, local: bool = False) -> None:
        """Upload segments; without `local` their files are deleted."""
        for segment in segments:
            uuid = self.env.random.randbytes(16)
            row = segment.row
            self.bucket.store(segment_key(uuid), read(self.fs, segment.path))
            wanted = ObjectRow(uuid, row.id, 1, size_bytes=row.size_bytes)
            assert await self.storage.start_objects([wanted], {}) == [uuid]
            (segment.row,) = await self.storage.finish_objects([uuid], {})
            if not local:
                (segment.row,) = await self.storage.set_local([row.id], False)
                self.log.segments.store._close(row.id)
                self.fs.remove(segment.path)


async def take(
    world: ColdWorld,
    name: str,
    offset: int,
    room: int = 1 << 20,
    *,
    first: bool = True,
    patience_s: float | None = None,
) -> tuple[bytes, int]:
    """The bytes of one read, as a Fetch reads them, and the size that the plan promised."""
    partition = world.find(name)
    plan = partition.plan(offset, room, partition.high_watermark, first)
    if isinstance(plan, HotRead):
        views, release = partition.log.views(plan)
        data = b"".join(views)
        release()
        return data, plan.size_bytes
    data = b"".join(await partition.log.read(plan, patience_s))
    return data, len(data)


def simulated(
    main: Callable[[ColdWorld], Coroutine[Any, Any, None]], seed: int = 0, **values: Any
) -> None:
    """Run a test in virtual time."""
    loop = SimLoop()
    run(loop, main(ColdWorld(loop, seed, **values)))


async def prepared(world: ColdWorld, count: int = 120, size: int = 500, cuts: int = 3) -> None:
    """A topic `t` in some segments, with the last records in the journals."""
    await world.start()
    await world.topic("t")
    for _ in range(cuts):
        await world.fill("t", count // cuts, size)
        await world.cut()
    await world.fill("t", 5, size)


async def whole(world: ColdWorld, name: str = "t") -> list[bytes]:
    """Every batch, as it is read now."""
    partition = world.find(name)
    found: list[bytes] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        data, _ = await take(world, name, offset)
        found += split(data)
        offset = next(iter(iter_batches(found[-1])))[1].last_offset + 1
    return found


def gets(world: ColdWorld) -> int:
    return world.bucket.requests["get"]
