"""Batches without any sound copy: scrub lists them, --skip-lost leaves out exactly these.

Covers: kafkawire.log.segments.skip.skipper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.segment.format import LostRange
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.file.open import read_lost_ranges
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import COPY_FINISHED, ObjectRow, unpack_ranges
from kafkawire.tiering.scrub.plan import Finding, FindingKind, ScrubReport
from tests.kit.tier.life import Life
from tests.kit.tier.world import TierWorld, read_partition

LIFE_S = 600.0
"""Limit in virtual time; a test that takes longer hangs."""


def live(act: Callable[[Life, ObjectRow], Awaitable[None]], first: int = 0) -> None:
    """A broker with a topic in three objects of 9 offsets each; `act` gets it from `first` on."""
    life = Life(TierWorld(1))

    async def main() -> None:
        await life.start()
        await life.topic("t", 1)
        await life.produce("t", 3)
        await life.settle()
        found = await life.storage.objects(1, (COPY_FINISHED,), 100)
        (row,) = [each for each in found if unpack_ranges(each.ranges)[0][1] == first]
        async with asyncio.timeout(LIFE_S):
            await act(life, row)
        await life.close()

    life.run(main)
    assert not life.loop.failures


async def alone(life: Life, row: ObjectRow) -> None:
    """Delete the segment's file, so that the object is the only copy."""
    store = life.log.segments.store
    await life.log.segments.swapper.update(lambda: life.storage.set_local([row.segment_id], False))
    segment = store.by_id[row.segment_id]
    await store.remove_files([segment])
    life.log.segments.warm.indexes.__init__()  # type: ignore[misc]


def damage_object(life: Life, row: ObjectRow, at: int = 150) -> None:
    bucket, key = life.world.bucket, segment_key(row.uuid)
    data = bytearray(bucket.data(key))
    data[at] ^= 16
    bucket.store(key, bytes(data))


async def scrub(life: Life, *, repair: bool = False, skip_lost: bool = False) -> list[Finding]:
    reported = [each async for each in life.tiering.scrub(repair, True, skip_lost)]
    report = reported.pop()
    assert isinstance(report, ScrubReport)
    return report.findings


async def offsets(partition: Partition, start: int) -> list[int]:
    return [offset for offset, _ in await read_partition(partition, start)]


def newest(life: Life) -> Segment:
    store = life.log.segments.store
    return store.by_id[max(store.by_id)]


def test_damaged_batch_is_listed_and_skipped() -> None:
    async def act(life: Life, row: ObjectRow) -> None:
        (partition,) = await life.partitions()
        before = await offsets(partition, partition.log_start)
        await alone(life, row)
        damage_object(life, row)
        with pytest.raises(KafkaError) as caught:
            await offsets(partition, before[0])
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        (found,) = await scrub(life)
        assert found.kind is FindingKind.FORMAT
        assert found.key == segment_key(row.uuid)
        assert found.action == ""
        (again,) = await scrub(life, repair=True)
        assert again == found, "without --skip-lost nothing is discarded"
        (done,) = await scrub(life, repair=True, skip_lost=True)
        assert done.text == found.text
        first, last = map(int, found.text.split()[1].split("-"))
        lost = list(range(first, last + 1))
        assert 0 < len(lost) < row_offsets(life, row)
        assert done.action == f"written again without {len(lost)} offsets"
        assert await offsets(partition, before[0]) == [each for each in before if each not in lost]
        assert await offsets(partition, first) == [each for each in before if each > last]
        account = read_lost_ranges(life.env.fs, newest(life).path)
        (entry,) = account[partition.number]
        assert entry == LostRange(first, last + 1, entry.noticed_ms, 1)
        await life.env.sleep(60)
        assert await scrub(life) == []

    live(act)


def row_offsets(life: Life, row: ObjectRow) -> int:
    rows = next(iter(life.log.partitions.values())).segments
    return (
        sum(
            rows.end[at] - rows.base[at]
            for at in range(len(rows))
            if rows.segment[at] == row.segment_id
        )
        or 1 << 60
    )


@pytest.mark.parametrize("first", [0, 9, 18])
def test_missing_object_becomes_explained_gap(first: int) -> None:
    async def act(life: Life, row: ObjectRow) -> None:
        (partition,) = await life.partitions()
        before = await offsets(partition, partition.log_start)
        await alone(life, row)
        life.world.bucket.forget(segment_key(row.uuid))
        (found,) = await scrub(life)
        assert found.kind is FindingKind.DANGLING
        (done,) = await scrub(life, repair=True, skip_lost=True)
        assert done.action.startswith("written again without ")
        (lost,) = read_lost_ranges(life.env.fs, newest(life).path)[partition.number]
        assert lost.reason == 2
        rest = [each for each in before if not lost.first <= each < lost.end]
        assert await offsets(partition, before[0]) == rest

    live(act, first)


def test_damaged_section_loses_no_record() -> None:
    async def act(life: Life, row: ObjectRow) -> None:
        (partition,) = await life.partitions()
        before = await offsets(partition, partition.log_start)
        await alone(life, row)
        mapping = partition.segments.mapping(partition.number, 0)
        assert mapping.segment_id == row.segment_id
        damage_object(life, row, mapping.index_start + 3)
        assert len(await scrub(life)) == 1
        (done,) = await scrub(life, repair=True, skip_lost=True)
        assert done.action == "written again without 0 offsets"
        assert await offsets(partition, before[0]) == before

    live(act)


def test_damaged_file_does_not_replace_object() -> None:
    async def act(life: Life, row: ObjectRow) -> None:
        damage_object(life, row)
        segment = life.log.segments.store.by_id[row.segment_id]
        fs = life.world.fs
        fs.files[segment.path].data[150] ^= 16
        (found,) = await scrub(life, repair=True)
        assert found.action == ""
        fs.files[segment.path].data[150] ^= 16
        (found,) = await scrub(life, repair=True)
        assert found.action == "will be uploaded again"

    live(act)
