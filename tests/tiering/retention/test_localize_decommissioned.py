"""Segments of a decommissioned broker with another data folder are downloaded and copied.

Covers: kafkawire.log.segments.merge.decommissioned, kafkawire.log.segments.merge.fetch_remote.
"""

from __future__ import annotations

import pytest

from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.store.grouping import is_cleaned
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.catalog import DECOMMISSIONING
from kafkawire.offsets.catalog.port import DELETING, LIVE, ObjectRow, pack_ranges
from kafkawire.tiering.retention.local_retention import LocalTier
from kafkawire.tiering.store.port import ObjectStore
from tests.kit.env import SettableClock
from tests.kit.log import compacted
from tests.kit.log.pair import Member, Pair
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.local import known_tier
from tests.kit.waiting import settle, until


class Machines(Pair):
    """Brokers 1 and 2 on two machines, and a bucket."""

    def __init__(self) -> None:
        super().__init__(apart=True)
        self.bucket = FakeBucket()

    async def begin(self) -> None:
        await self.start(log_cleaner_dedupe_buffer_size=1 << 16)
        self.local = self.tier(self.second)

    def tier(self, member: Member) -> LocalTier:
        store = FakeStore(self.bucket, member.env.fs)

        def store_of(tier: int) -> ObjectStore | None:
            return store if tier == 0 else None

        made = LocalTier(
            member.env, member.log.config, member.log.segments, member.storage, store_of,
            member.log.partitions, member.log.loader.settings_of, known_tier, no_loss,
        )  # fmt: skip
        member.log.segments.remote.attach_files(made.files)
        return made

    async def upload(self, member: Member) -> None:
        """Put the local segments of a broker into the bucket, as its uploader does."""
        for row in await member.storage.segments(member.node_id, (LIVE,), 100):
            made = ObjectRow(b"%016d" % row.id, row.id, member.node_id)
            mappings = await member.storage.segment_mappings([row.id])
            made.ranges = pack_ranges([(m.number, m.base_offset, m.end_offset) for m in mappings])
            assert await member.storage.start_objects([made], {}) == [made.uuid]
            path = segment_path(member.log.segments.folder, row.uuid)
            self.bucket.store(segment_key(made.uuid), bytes(self.fs.files[path].data))
            await member.storage.finish_objects([made.uuid], {})

    async def leave(self) -> None:
        self.configure(1, DECOMMISSIONING, "true")
        await self.second.log.segments.tend()
        await settle()


def no_loss(segment: Segment) -> None:
    raise AssertionError(segment.name)


async def filled(*, clean: bool) -> Machines:
    """A compacted topic whose segments are cut, uploaded, and cleaned before if `clean`."""
    machines = Machines()
    await machines.begin()
    (partition,) = await machines.topic("t", cleanup_policy="compact")
    log = machines.first.log
    await compacted.fill(partition, 40)
    log.journals.prepare(again=True)
    await until(lambda: bool(log.journals.ready))
    log.commit_log.roll()
    await log.commit_log.wait_until_committed()
    await until(lambda: all(each.indexed for each in log.journals if each.rolled))
    await settle()
    await log.segments.cut()
    if clean:
        await log.segments.cleaner.run()
    await machines.upload(machines.first)
    return machines


@pytest.mark.parametrize("clean", [False, True])
async def test_compacted_partition_is_copied_from_the_bucket(clean: bool) -> None:
    machines = await filled(clean=clean)
    first, second = machines.first, machines.second
    (partition,) = first.log.partitions.values()
    before = await compacted.read(partition)
    await machines.hand_over([partition.number], 2)
    downloads = second.log.segments.store.downloads
    await machines.leave()
    (made,) = await second.storage.segments(2, (LIVE,), 9)
    assert is_cleaned(made.retention_class) == clean
    assert machines.local.files.downloads == 1
    assert [row.state for row in await first.storage.segments(1, (LIVE, DELETING), 9)] == (
        [DELETING] * (2 if clean else 1)
    )
    moved = await second.find(partition.number)
    assert await compacted.read(moved) == before
    await machines.local.files.sweep(0.0)
    assert second.env.fs.listdir(downloads) == []
    assert not second.log.segments.store.others


async def test_failed_download_is_repeated_later(caplog: pytest.LogCaptureFixture) -> None:
    machines = await filled(clean=False)
    second = machines.second
    (partition,) = machines.first.log.partitions.values()
    before = await compacted.read(partition)
    await machines.hand_over([partition.number], 2)
    machines.bucket.faults.down = True
    machines.bucket.faults.timeout_s = 0.0
    await machines.leave()
    await machines.leave()
    assert "cannot fetch 1 segment for a merge" in caplog.text
    machines.bucket.faults.down = False
    await machines.leave()
    assert not await second.storage.segments(2, (LIVE,), 9), "it waits"
    assert isinstance(second.env.clock, SettableClock)
    second.env.clock.ms += 120_000
    await machines.leave()
    assert len(await second.storage.segments(2, (LIVE,), 9)) == 1
    assert await compacted.read(await second.find(partition.number)) == before
    assert all(segment.pins == 0 for segment in second.log.segments.store.by_id.values())


async def test_copies_wait_for_the_tier() -> None:
    """As after a start, while it is not attached yet."""
    machines = await filled(clean=False)
    second = machines.second
    (partition,) = machines.first.log.partitions.values()
    await machines.hand_over([partition.number], 2)
    second.log.segments.remote.detach_files()
    await machines.leave()
    assert not await second.storage.segments(2, (LIVE,), 9)
    second.log.segments.remote.attach_files(machines.local.files)
    assert isinstance(second.env.clock, SettableClock)
    second.env.clock.ms += 120_000
    await machines.leave()
    assert len(await second.storage.segments(2, (LIVE,), 9)) == 1
