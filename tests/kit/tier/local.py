"""A broker with a local tier over a fake bucket, each step triggered by the test: uploads, scans,
time."""

from __future__ import annotations

from typing import Any

from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import LIVE, ObjectRow, SegmentRow, pack_ranges
from kafkawire.tiering.retention.local_retention import LocalTier
from kafkawire.tiering.store.port import ObjectStore
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.logs import FOLDER, World, batch
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import settle

JOURNAL = 8192
GRACE_MS = 60_000
HOUR_MS = 3_600_000
SEGMENTS = f"{FOLDER}/segments"


class LocalWorld(World):
    """A World whose segments go to a bucket when `upload` is called."""

    def __init__(self, **values: Any) -> None:
        super().__init__(
            journal_bytes=JOURNAL, hot_bytes=0, file_delete_delay_ms=GRACE_MS, **values
        )
        self.config.texts["tier.url"] = "s3://bucket/prefix"
        self.bucket = FakeBucket()
        self.uploads = 0
        self.lost: list[Segment] = []

    async def begin(self, **configs: str) -> Partition:
        """The first start, with a topic `t`."""
        await self.start()
        self.local = self.tier()
        (partition,) = await self.topic("t", 1, **configs)
        return partition

    def tier(self) -> LocalTier:
        """A LocalTier of the running process; the log asks it for files."""
        log = self.log
        store = FakeStore(self.bucket, self.fs)

        def store_of(tier: int) -> ObjectStore | None:
            return store if tier == 0 else None

        made = LocalTier(
            self.env, self.config, log.segments, self.storage, store_of, log.partitions,
            log.loader.config_of, known_tier, self.lost.append,
        )  # fmt: skip
        log.segments.remote.attach_files(made.files)
        return made

    async def again(self, power: bool = True) -> Partition:
        """Kill the process and start another one."""
        await self.crash(power)
        self.local = self.tier()
        return self.find("t")

    async def scan(self) -> None:
        """Run one scan of the local tier, and what follows from it at once."""
        await self.local.scan()
        await settle()

    async def fill(self, partition: Partition, count: int, size: int = 500) -> None:
        """Append batches of one record each, then cut."""
        for _ in range(count):
            offset = partition.next_offset
            value = b"%d:" % offset + bytes(size)
            partition.append(batch(value, timestamp_ms=EPOCH_MS + offset), EPOCH_MS)
            await partition.log.wait_until_committed()
        await settle()

    async def cut(self) -> None:
        await settle()
        await self.log.segments.cut()
        await self.log.checkpoint()

    async def cut_all(self) -> None:
        """Cut also what is in the active journal."""
        if not self.log.journals.ready:
            self.log.journals.prepare()
            await settle()
        self.log.commit_log.roll()
        await self.cut()

    async def upload(self, *ids: int) -> list[SegmentRow]:
        """Put all local segments, or these, into the bucket, as an uploader does."""
        done = []
        for row in await self.rows():
            if row.object or not row.local or (ids and row.id not in ids):
                continue
            self.uploads += 1
            made = ObjectRow((1 << 120 | self.uploads).to_bytes(16, "big"), row.id, 1)
            made.size_bytes = row.size_bytes
            mappings = await self.storage.segment_mappings([row.id])
            made.ranges = pack_ranges([(m.number, m.base_offset, m.end_offset) for m in mappings])
            assert await self.storage.start_objects([made], {}) == [made.uuid]
            data = self.fs.files[segment_path(SEGMENTS, row.uuid)].data
            self.bucket.store(segment_key(made.uuid), bytes(data))
            finish = self.storage.finish_objects
            done += await self.log.segments.swapper.update(lambda: finish([made.uuid], {}))  # noqa: B023
        return done

    async def rows(self) -> list[SegmentRow]:
        return await self.storage.segments(1, (LIVE,), 1000)

    async def locals(self) -> list[bool]:
        """For each live segment, by id, whether its row says that it is local."""
        return [row.local for row in await self.rows()]

    def files(self) -> list[str]:
        return [name for name in self.fs.listdir(SEGMENTS) if name.endswith(".segment")]

    def later(self, ms: int) -> None:
        assert isinstance(self.env.clock, SettableClock)
        self.env.clock.ms += ms


async def known_tier(_: int) -> None:
    """All tiers are known."""


async def two_uploaded(**configs: str) -> LocalWorld:
    """Two segments of `t`, both in the bucket, and records in the journals."""
    world = LocalWorld()
    partition = await world.begin(**configs)
    for _ in range(2):
        await world.fill(partition, 40)
        await world.cut()
    assert len(await world.upload()) == 2
    return world


async def remote(world: LocalWorld, *ids: int) -> list[Segment]:
    """Leave all segments, or these, in the remote tier only; delete their files."""
    await world.upload(*ids)
    chosen = [row.id for row in await world.rows() if not ids or row.id in ids]
    swapper, storage = world.log.segments.swapper, world.storage
    await swapper.update(lambda: storage.set_local(chosen, False))
    await world.local.files.sweep(0)
    by_id = world.log.segments.store.by_id
    return [by_id[segment_id] for segment_id in chosen]


async def tend(world: LocalWorld, times: int = 3) -> None:
    for _ in range(times):
        await world.log.segments.tend()
        await settle()
