"""Rows of segments after local files were lost, for each storage of offsets.

Covers: kafkawire.restore.lost_files, kafkawire.restore.finished_objects.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.log.segments.file.open import SUFFIX, read_entries
from kafkawire.manifest.keys import CURRENT, segment_key, snapshot_key
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.directory import local_group
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog import port
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    DELETING,
    LIVE,
    STARTED,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
    TierRow,
    pack_ranges,
    range_of,
)
from kafkawire.restore import finished_objects, lost_files
from kafkawire.restore.lost_files import FOLDER, UnreadableRange, forget_lost_files
from kafkawire.tiering.store.port import ObjectStore
from tests.kit.env import memory_env
from tests.kit.memfs import MemFileSystem
from tests.kit.offsets.rows import everything
from tests.kit.offsets.worlds import (
    FOREIGN,
    GONE,
    MINE,
    KeyValueWorld,
    SqlWorld,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    mapping,
    segment,
)
from tests.kit.tier.buckets import Bucket, Share, Topic, uuid
from tests.kit.tier.fake_store import FakeStore

HOME = "/data/brokers/1"
SEGMENTS = f"{HOME}/segments"
NAMES = {"mine": (MINE, 1), "foreign": ([FOREIGN], 2), "gone": (GONE, 1)}


def catalog() -> Catalog:
    """The partitions of the worlds."""
    made = Catalog("abcdefghijklmnopqrstuv")
    made.set_groups([local_group(1), local_group(2)])
    for name, (numbers, leader) in NAMES.items():
        infos = [PartitionInfo(number, at, leader, 0) for at, number in enumerate(numbers)]
        made.add_topic(TopicInfo(name.encode().ljust(16, b"-"), name, False, infos, {}))
    return made


class Folder:
    """The storage, bucket and empty folder of broker 1."""

    def __init__(self, storage: SegmentCatalog) -> None:
        self.storage = storage
        self.catalog = catalog()
        self.fs = MemFileSystem()
        self.cuts = 0
        self.env = memory_env(self.fs)
        self.bucket = Bucket(Topic("mine", MINE))
        self.stores: dict[int, ObjectStore] = {0: FakeStore(self.bucket, self.fs)}

    async def open(self) -> Folder:
        await self.storage.save_tier(TierRow(0, "s3://bucket/p", port.CURRENT, 1, 1))
        return self

    async def upload(
        self,
        name: int,
        *shares: Share,
        removed: Sequence[SegmentRange] = (),
        commits: bool = True,
        node_id: int = 1,
        tier: int = 0,
        bucket: Bucket | None = None,
    ) -> SegmentRow:
        """A segment with a finished object, both as `Bucket.put` names them, in place of the
        `removed` mappings; it raises the commit offsets to its end, if it `commits`."""
        storage, bucket = self.storage, bucket or self.bucket
        bucket.put(name, *shares)
        made, entries = bucket.rows[name]
        row = SegmentRow(made.segment, node_id, made.created_ms, retention_class="tiered")
        (row.id,) = await storage.start_segments([row])
        row.size_bytes, row.max_timestamp = made.size_bytes, made.max_timestamp
        rows = [range_of(entry, row.id, 7) for entry in entries]
        await storage.finish_segments(Swap([(row, rows)], list(removed)))
        ranges = pack_ranges((e.number, e.base_offset, e.end_offset) for e in entries)
        thing = ObjectRow(made.uuid, row.id, node_id, tier, 0, made.size_bytes, 1, ranges=ranges)
        await storage.start_objects([thing], {})
        ends = {each.number: each.end_offset for each in entries} if commits else {}
        (row,) = await storage.finish_objects([made.uuid], ends)
        return row

    async def cut(
        self, *rows: SegmentRange, removed: Sequence[SegmentRange] = (), node_id: int = 1
    ) -> SegmentRow:
        """A segment without an object; `removed`: the mappings that it replaces."""
        self.cuts += 1
        row = segment(9000 + self.cuts, node_id)
        (row.id,) = await self.storage.start_segments([row])
        await self.storage.finish_segments(Swap([(row, list(rows))], list(removed)))
        return row

    def keep_file(self, row: SegmentRow) -> None:
        """Let a segment have a file."""
        self.fs.makedirs(SEGMENTS)
        self.fs.open(f"{SEGMENTS}/{row.uuid.hex()}{SUFFIX}", create=True).close()

    async def mappings(self, *rows: SegmentRow, number: int = 1) -> list[SegmentRange]:
        """The mappings of a partition in these segments."""
        found = await self.storage.segment_mappings([row.id for row in rows])
        return [each for each in found if each.number == number]

    async def merge(self, *rows: SegmentRow) -> SegmentRow:
        """Merge the mappings of partition 1 in these segments; the result has no object."""
        gone = await self.mappings(*rows)
        return await self.cut(mapping(1, gone[0].base_offset, gone[-1].end_offset), removed=gone)

    def manifest(self) -> None:
        """Write the manifest of all objects."""
        entries = [each for _, some in self.bucket.rows.values() for each in some]
        ends = {each.number: (0, each.end_offset) for each in entries}
        self.bucket.manifest(ends)

    async def forget(self) -> list[UnreadableRange]:
        return await forget_lost_files(
            self.env, self.storage, self.catalog, 1, HOME, self.stores.get
        )

    async def read_ranges(self, number: int = 1) -> list[tuple[int, int, int]]:
        """The mappings of a partition with their segments."""
        (row,) = await self.storage.load_partitions([number])
        return [(each.base_offset, each.end_offset, each.segment_id) for each in row.mappings]

    async def read(self, number: int = 1) -> list[tuple[int, int, bytes]]:
        """The mappings of a partition with their objects."""
        (row,) = await self.storage.load_partitions([number])
        ids = sorted({each.segment_id for each in row.mappings})
        segments = {each.id: each for each in await self.storage.segments_by_id(ids)}
        for each in segments.values():
            name = f"{SEGMENTS}/{each.uuid.hex()}{SUFFIX}"
            assert each.state == LIVE
            assert each.local == (name in self.fs.files)
        return [(m.base_offset, m.end_offset, segments[m.segment_id].object) for m in row.mappings]


@pytest.fixture(name="at")
async def folder(world: World) -> Folder:
    return await Folder(await world.start()).open()


async def test_first_lost_mapping_ends_the_partition(at: Folder) -> None:
    one = await at.upload(1, Share(1, 0, 5))
    lost = await at.cut(mapping(1, 5, 9), mapping(2, 0, 4))
    last = await at.upload(2, Share(1, 9, 12), commits=False)
    kept = await at.cut(mapping(3, 0, 4))
    at.keep_file(kept)
    at.manifest()
    assert await at.forget() == []
    assert await at.read() == [(0, 5, one.object)]
    assert await at.read(2) == []
    assert await at.read(3) == [(0, 4, b"")]
    found = await at.storage.segments_by_id([one.id, lost.id, last.id, kept.id])
    assert [each.state for each in found] == [LIVE, DELETING, DELETING, LIVE]
    after = await everything(at.storage)
    assert await at.forget() == []
    assert await everything(at.storage) == after


@pytest.mark.parametrize("manifest", ["named", "none", "lost", "damaged"])
async def test_merged_segments_are_read_from_their_inputs(at: Folder, manifest: str) -> None:
    one = await at.upload(1, Share(1, 0, 5))
    two = await at.upload(2, Share(1, 5, 9))
    three = await at.upload(3, Share(1, 9, 12), Share(2, 0, 3))
    merged = await at.merge(one, two, three)
    await at.storage.drop_segments([one.id])
    four = await at.upload(4, Share(1, 12, 15))
    await at.cut(mapping(1, 15, 20))
    if manifest != "none":
        at.manifest()
    if manifest == "lost":
        del at.bucket.held[snapshot_key(0)]
    if manifest == "damaged":
        at.bucket.store(CURRENT, b"x")
    assert await at.forget() == []
    expected = [(0, 5, uuid(1)), (5, 9, uuid(2)), (9, 12, uuid(3)), (12, 15, four.object)]
    assert await at.read() == expected
    assert await at.read(2) == [(0, 3, uuid(3))]
    (row,) = await at.storage.segments_by_id([merged.id])
    assert row.state == DELETING
    assert await at.storage.unneeded_objects(1, 9) == []
    for name in (1, 2, 3):
        made, entries = at.bucket.rows[name]
        (stored,) = await at.storage.objects_by_uuid([made.uuid])
        (there,) = await at.storage.segments_by_id([stored.segment_id])
        assert (there.uuid, there.size_bytes) == (made.segment, made.size_bytes)
        mapped = await at.mappings(there)
        assert mapped == [range_of(entries[0], there.id, 0)]


async def test_damaged_footer_is_not_used(at: Folder) -> None:
    """Without a manifest an object that cannot be read is no source of records."""
    one = await at.upload(1, Share(1, 0, 5))
    two = await at.upload(2, Share(1, 5, 9))
    await at.merge(one, two)
    at.bucket.truncate(segment_key(uuid(2)), 100)
    assert await at.forget() == [UnreadableRange("mine", 0, 5, 9)]
    assert await at.read() == [(0, 5, uuid(1))]


async def test_end_of_an_input_is_copied(at: Folder) -> None:
    """A compaction had two outputs, of which only the first was uploaded."""
    one = await at.upload(1, Share(1, 0, 10))
    two = await at.upload(2, Share(1, 10, 20), Share(2, 0, 3))
    first = await at.upload(3, Share(1, 0, 15), removed=await at.mappings(one, two), commits=False)
    await at.storage.delete_objects([one.object], 99)
    await at.cut(mapping(1, 15, 20))
    four = await at.upload(4, Share(1, 20, 22))
    at.manifest()
    assert await at.forget() == []
    assert await at.read() == [
        (0, 15, first.object),
        (15, 20, b""),
        (20, 22, four.object),
    ]
    assert await at.read(2) == [(0, 3, two.object)]
    (name,) = at.fs.listdir(SEGMENTS)
    path = f"{SEGMENTS}/{name}"
    (entry,) = read_entries(at.fs, path)
    (row,) = await at.storage.load_partitions([1])
    (made,) = await at.storage.segments_by_id([row.mappings[1].segment_id])
    assert row.mappings[1] == range_of(entry, made.id, 0)
    assert (made.retention_class, made.generation) == ("delete/tiered/ever", 1)
    data = at.fs.files[path].data[entry.start : entry.start + entry.length]
    assert [head.base_offset for _, head in iter_batches(bytes(data))] == [15, 16, 17, 18, 19]
    assert at.fs.listdir(f"{HOME}/{FOLDER}") == []
    assert await at.storage.segments(1, (STARTED,), 9) == []
    after = await everything(at.storage)
    assert await at.forget() == []
    assert await everything(at.storage) == after


@pytest.mark.parametrize("how", ["gone", "damaged"])
async def test_object_that_cannot_be_copied(at: Folder, how: str) -> None:
    one = await at.upload(1, Share(1, 0, 10))
    two = await at.upload(2, Share(1, 10, 20))
    first = await at.upload(3, Share(1, 0, 15), removed=await at.mappings(one, two), commits=False)
    await at.storage.delete_objects([one.object], 99)
    await at.cut(mapping(1, 15, 20))
    at.manifest()
    key = segment_key(two.object)
    if how == "gone":
        at.bucket.forget(key)
    else:
        data = bytearray(at.bucket.data(key))
        (entry,) = at.bucket.rows[2][1]
        data[entry.start + entry.length - 5] ^= 1
        at.bucket.store(key, bytes(data))
    assert await at.forget() == [UnreadableRange("mine", 0, 15, 20)]
    assert await at.read() == [(0, 15, first.object)]
    assert at.fs.listdir(SEGMENTS) == []
    assert await at.storage.segments(1, (STARTED,), 9) == []


async def test_records_that_nothing_has_are_reported(
    at: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    one = await at.upload(1, Share(1, 0, 5))
    two = await at.upload(2, Share(1, 5, 9))
    three = await at.upload(3, Share(1, 9, 12))
    await at.storage.delete_objects([two.object], 99)  # a scrub found it damaged
    await at.upload(4, Share(2, 0, 5))
    await at.merge(three)
    at.bucket.forget(segment_key(three.object))
    await at.storage.delete_objects([three.object], 99)
    at.manifest()
    expected = [UnreadableRange("mine", 0, 5, 12)]
    for _ in range(2):
        caplog.clear()
        assert await at.forget() == expected
        (line,) = [each for each in caplog.records if each.levelno == logging.CRITICAL]
        assert "mine-0 offsets 5-11" in line.message
        assert await at.read() == [(0, 5, one.object)]


async def test_later_records_are_kept_after_lost_ones(at: Folder) -> None:
    """They would be deleted from the bucket if no mapping pointed to them."""
    one = await at.upload(1, Share(1, 0, 5))
    two = await at.upload(2, Share(1, 5, 9))
    three = await at.upload(3, Share(1, 9, 12))
    await at.storage.delete_objects([two.object], 99)
    at.manifest()
    before = await at.mappings(one, two, three)
    for _ in range(2):
        assert await at.forget() == [UnreadableRange("mine", 0, 5, 9)]
        assert await at.mappings(one, two, three) == before


async def test_log_start_within_an_object(at: Folder) -> None:
    one = await at.upload(1, Share(1, 0, 5))
    two = await at.upload(2, Share(1, 5, 9))
    await at.merge(one, two)
    await at.storage.save_checkpoint(
        Checkpoint(
            1, 0, [PartitionCheckpoint(1, 9, 6, [], []), PartitionCheckpoint(2, 4, 4, [], [])]
        )
    )
    await at.cut(mapping(2, 0, 4))
    at.manifest()
    assert await at.forget() == []
    assert await at.read() == [(5, 9, two.object)]
    assert await at.read(2) == []


async def test_other_brokers_and_deleted_topics(at: Folder, world: World) -> None:
    other = await at.cut(mapping(1, 0, 5), node_id=2)
    lost = await at.cut(mapping(1, 5, 9), mapping(GONE[0], 0, 5))
    await world.delete()
    at.catalog.remove_topic(b"gone".ljust(16, b"-"))
    at.manifest()
    before = await at.storage.segments_by_id([other.id])
    assert await at.forget() == []
    assert await at.read_ranges() == [(0, 5, other.id)]
    assert await at.storage.segments_by_id([other.id]) == before
    assert await at.storage.segment_mappings([lost.id]) == []
    (row,) = await at.storage.segments_by_id([lost.id])
    assert row.state == DELETING


async def test_object_of_another_broker_is_used(at: Folder, world: World) -> None:
    """Broker 2 led the partition before, and wrote its first segment."""
    if not isinstance(world, SqlWorld):
        pytest.skip("other brokers have a storage of their own")
    their = Bucket(Topic("mine", MINE))
    at.stores[1] = FakeStore(their, at.fs)
    await at.storage.save_tier(TierRow(1, "s3://bucket/p/nodes/2", port.CURRENT, 1, 2))
    await at.storage.save_tier(TierRow(2, "s3://bucket/p/nodes/3", port.CURRENT, 1, 3))
    one = await at.upload(1, Share(1, 0, 5), node_id=2, tier=1, bucket=their)
    await at.merge(one, await at.upload(2, Share(1, 5, 9)))
    at.manifest()
    their.manifest({1: (0, 5)})
    assert await at.forget() == []
    assert await at.read() == [(0, 5, one.object), (5, 9, uuid(2))]
    (row,) = await at.storage.segments_by_id([one.id])
    assert (row.node_id, row.tier, row.local) == (2, 1, False)


async def test_unreachable_tier_changes_nothing(at: Folder) -> None:
    one = await at.upload(1, Share(1, 0, 5))
    await at.merge(one, await at.upload(2, Share(1, 5, 9)))
    at.manifest()
    at.bucket.faults.refused = "AccessDenied"
    before = await everything(at.storage)
    with pytest.raises(StoreError):
        await at.forget()
    assert await everything(at.storage) == before
    at.bucket.faults.refused = ""
    store = at.stores.pop(0)
    with pytest.raises(StoreError, match="cannot be opened"):
        await at.forget()
    assert await everything(at.storage) == before
    at.stores[0] = store
    assert await at.forget() == []
    assert await at.read() == [(0, 5, uuid(1)), (5, 9, uuid(2))]


async def test_rows_that_another_broker_changes_meanwhile(
    at: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await at.merge(await at.upload(1, Share(1, 0, 5)))
    at.manifest()
    replace_lost = at.storage.replace_lost
    failures = [StaleSwap("changed"), StaleSwap("changed")]

    async def stale(*args: Any) -> None:
        if failures:
            raise failures.pop()
        await replace_lost(*args)

    monkeypatch.setattr(at.storage, "replace_lost", stale)
    assert await at.forget() == []
    assert await at.read() == [(0, 5, uuid(1))]

    await at.merge(*await at.storage.segments(1, (LIVE,), 9))
    failures.extend([StaleSwap("changed")] * 9)
    with pytest.raises(StaleSwap):
        await at.forget()


async def test_many_partitions_are_replaced_in_several_transactions(
    at: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_files, "PARTITIONS_AT_ONCE", 2)
    monkeypatch.setattr(lost_files, "MAPPINGS_AT_ONCE", 1)
    monkeypatch.setattr(lost_files, "SEGMENTS_AT_ONCE", 2)
    monkeypatch.setattr(lost_files, "SCANNED_AT_ONCE", 1)
    monkeypatch.setattr(finished_objects, "ROWS_AT_ONCE", 1)
    shared = await at.upload(1, *[Share(number, 0, 5) for number in MINE])
    for number in MINE:
        gone = await at.mappings(shared, number=number)
        await at.cut(mapping(number, 0, 5), removed=gone)
        await at.cut(mapping(number, 5, 7))
    await at.storage.drop_segments([shared.id])
    await at.upload(2, Share(6, 7, 9), commits=False)
    assert await at.forget() == []
    for number in MINE:
        assert await at.read(number) == [(0, 5, uuid(1))]
    assert len({row.segment_id for row in await at.storage.objects(1, (COPY_FINISHED,), 9)}) == 2


class Died(Exception):
    """The process ended."""


class Interrupted:
    """A storage or a store whose process ends at a call: number `fatal` of all moments before and
    after the calls."""

    def __init__(self, inner: Any, moments: list[str], fatal: int) -> None:
        self._inner, self._moments, self._fatal = inner, moments, fatal

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **more: Any) -> Any:
            self._hit(f"before {name}")
            result = await method(*args, **more)
            self._hit(f"after {name}")
            return result

        return call

    def _hit(self, name: str) -> None:
        self._moments.append(name)
        if len(self._moments) - 1 >= self._fatal:
            raise Died(name)


async def lost_everything(at: Folder) -> None:
    """A folder with mappings of all kinds: remote, merged, compacted in part, not uploaded."""
    one = await at.upload(1, Share(1, 0, 10), Share(3, 0, 4))
    two = await at.upload(2, Share(1, 10, 20), Share(2, 0, 3))
    removed = await at.mappings(one, two)
    await at.upload(3, Share(1, 0, 15), removed=removed, commits=False)
    await at.storage.delete_objects([one.object], 99)
    await at.cut(mapping(1, 15, 20), mapping(4, 0, 5))
    await at.upload(4, Share(1, 20, 22))
    gone = await at.mappings(two, number=2)
    await at.cut(mapping(2, 0, 3), removed=gone)
    await at.storage.drop_segments([two.id])
    at.manifest()


async def end_of(world: World, fatal: int) -> tuple[list[str], list[Any]]:
    """Lose everything, forget it in a process that ends at moment `fatal`, and in another one;
    return the moments that were reached, and the rows of the partitions, apart from ids."""
    storage = await world.start()
    at = await Folder(storage).open()
    await lost_everything(at)
    moments: list[str] = []
    at.storage = Interrupted(storage, moments, fatal)
    at.stores[0] = Interrupted(at.stores[0], moments, fatal)
    with contextlib.suppress(Died):
        await at.forget()
    at.storage, at.stores[0] = storage, FakeStore(at.bucket, at.fs)
    assert await at.forget() == [UnreadableRange("mine", 2, 0, 4)]
    for row in await storage.segments(1, (LIVE,), 100):
        rows = await storage.segment_mappings([row.id])
        assert sum(each.length for each in rows) == row.live_bytes
    found = [await at.read(number) for number in (1, 2, 4, 5, 6)]
    await world.close()
    return moments, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_interrupted_at_any_call_and_repeated(kind: str, tmp_path: Path) -> None:
    async def made(name: int) -> World:
        if kind == "memory":
            return KeyValueWorld()
        world = SqlWorld(f"sqlite:///{tmp_path}/{name}.db")
        await world.make()
        return world

    moments, expected = await end_of(await made(-1), 10_000)
    assert [len(each) for each in expected] == [3, 1, 0, 0, 0]
    assert {"before replace_lost", "after start_segments", "before download"} <= set(moments)
    for fatal in range(0, len(moments), 1 if kind == "memory" else 3):
        reached, found = await end_of(await made(fatal), fatal)
        assert found == expected, f"ended {reached[-1]}"
