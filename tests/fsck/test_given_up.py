"""Damaged offsets in journals that an operator discarded: the cut skips them and records them.

Covers: kafkawire.fsck.report.
"""

from __future__ import annotations

import json

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import DamagedOffsets
from kafkawire.codec.segment.format import LostRange
from kafkawire.log.journal.file import journal_name
from kafkawire.log.journal.format import JournalFormatError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.given_up import (
    NAME,
    GivenUp,
    clip_ranges,
    read_given_up,
    skip_given_up,
    write_given_up,
)
from kafkawire.log.segments.file.open import read_lost_ranges, segment_path
from tests.fsck.test_fsck import stopped, texts
from tests.kit.env import EPOCH_MS
from tests.kit.log.cutting import expected, fill, started
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER, World, read_all
from tests.kit.log.recovery import JOURNALS, flip_bit
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.waiting import settle

FAR_MS = 1 << 40


async def cut_all(world: World) -> None:
    """Cut what is due, checkpoint, recycle journals."""
    await settle()
    await world.log.segments.cut()
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    await settle()


async def give_up(world: World) -> None:
    """Run `fsck --repair --skip-lost` on the stopped broker's folder."""
    report = await scanned(world)
    assert not report.clean
    await report.repair()
    assert not report.clean, "nothing is discarded without --skip-lost"
    assert NAME not in world.fs.listdir(FOLDER)
    report = await scanned(world)
    await report.repair(skip_lost=True)
    assert report.clean
    again = await scanned(world)
    assert again.clean, texts(again)
    assert any("given up" in problem.text for problem in again.problems)


async def account(world: World, partition: Partition) -> list[tuple[int, int]]:
    """The lost ranges that the segments of a partition record."""
    found: set[tuple[int, int]] = set()
    for row in await world.storage.segments(1, [1], 100):
        path = segment_path(f"{FOLDER}/segments", row.uuid)
        ranges = read_lost_ranges(world.fs, path).get(partition.number, [])
        found |= {(one.first, one.end) for one in ranges}
    return sorted(found)


def in_quarantine(world: World) -> list[str]:
    if "quarantine" not in world.fs.listdir(FOLDER):
        return []
    return sorted(world.fs.listdir(f"{FOLDER}/quarantine"))


@pytest.mark.parametrize("clean", [True, False])
async def test_cut_skips_discarded_offsets(clean: bool) -> None:
    """Two partitions share the damaged journal. After a clean end its index is used, after a crash
    the frames are scanned."""
    world = await started(2, cut_interval_ms=FAR_MS)
    for _ in range(4):
        await fill(world.find("t0"), 10)
        await fill(world.find("t1"), 10)
    log_position, base = world.find("t0").rows.log_position[12], world.find("t0").rows.base[12]
    await world.log.close()
    flip_bit(world, log_position + 100)
    if not clean:
        world.fs.remove(f"{JOURNALS}/{log_position >> 32:010d}.index")
        world.fs.crash()
    await world.start()
    await cut_all(world)
    assert world.find("t0").cut_offset <= base, "damage that was not discarded is not skipped"
    assert await account(world, world.find("t0")) == []
    with pytest.raises(DamagedOffsets):
        await read_all(world.find("t0"), base)
    await world.log.close()

    await give_up(world)
    await world.start()
    await cut_all(world)
    partition = world.find("t0")
    assert partition.cut_offset > base + 1
    assert await account(world, partition) == [(base, base + 1)]
    sound = [pair for pair in expected(0, 40) if pair[0] != base]
    assert await read_all(partition) == sound
    assert await read_all(world.find("t1")) == expected(0, 40)
    assert await account(world, world.find("t1")) == []
    name = journal_name(log_position >> 32)
    assert name not in world.fs.listdir(JOURNALS)
    assert log_position >> 32 not in world.log.journals.by_number
    index = name.replace(".journal", ".index")
    assert in_quarantine(world) == [index, name, "report.jsonl"]
    report = world.fs.open(f"{FOLDER}/quarantine/report.jsonl")
    lines = report.pread(report.size(), 0).decode().splitlines()
    assert {json.loads(line)["file"] for line in lines} == {index, name}

    for again in (world.restart, world.crash):
        await again()
        partition = world.find("t0")
        assert partition.next_offset == 40
        assert await read_all(partition) == sound
    await world.log.close()
    report_after = await scanned(world)
    assert report_after.problems == []


async def test_missing_journal_is_discarded(caplog: pytest.LogCaptureFixture) -> None:
    world = await started(1, cut_interval_ms=FAR_MS)
    await fill(world.find("t0"), 60)
    first, last = sorted(world.log.journals.by_number)[1], max(world.log.journals.by_number)
    await world.log.close()
    for number in (first, last):
        world.fs.remove(f"{JOURNALS}/{journal_name(number)}")
        world.fs.remove(f"{JOURNALS}/{number:010d}.index")
    await give_up(world)
    await world.start()
    partition = world.find("t0")
    end = partition.next_offset
    assert end >= 60
    await cut_all(world)
    assert partition.cut_offset == end, "loss at the end is skipped too"
    got = await read_some(partition)
    ranges = await account(world, partition)
    assert len(ranges) == 2
    assert ranges[-1][1] == end
    lost = {offset for one in ranges for offset in range(*one)}
    assert got == sorted(set(range(end)) - lost)
    assert len(got) > 20
    await fill(partition, 1)
    assert partition.next_offset == end + 1
    assert [offset for offset, _ in await read_all(partition, end)] == [end]
    await world.log.close()
    assert (await scanned(world)).clean
    assert in_quarantine(world) == []


async def read_some(partition: Partition) -> list[int]:
    """The offsets with records, up to the end; no read may fail."""
    from tests.kit.log.logs import values

    found: list[int] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        plan = partition.plan(offset, 1 << 20, partition.high_watermark, True)
        got = [each for each, _ in values(await partition.log.read(plan))]
        if not got or got[-1] < offset:
            break
        found += got
        offset = got[-1] + 1
    return found


async def test_later_damage_is_not_discarded() -> None:
    world = await stopped(cut_first=False)
    rows = world.find("t0").rows
    flip_bit(world, rows.log_position[3] + 100)
    await give_up(world)
    flip_bit(world, rows.log_position[9] + 100)
    report = await scanned(world)
    assert not report.clean
    assert "t0-0: offsets 9-9 are in no segment and no journal" in texts(report)
    await world.start()
    await cut_all(world)
    partition = world.find("t0")
    assert partition.cut_offset <= 9
    with pytest.raises(DamagedOffsets):
        await read_all(partition, 9)


async def test_damaged_account_discards_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await stopped(cut_first=False)
    flip_bit(world, world.find("t0").rows.log_position[3] + 100)
    await give_up(world)
    node = world.fs.files[f"{FOLDER}/{NAME}"]
    node.data[20] ^= 1
    assert read_given_up(world.fs, FOLDER) == GivenUp()
    assert "is damaged" in caplog.text
    report = await scanned(world)
    assert not report.clean
    await report.repair(skip_lost=True)
    assert (await scanned(world)).clean


async def test_account_of_other_topic_discards_nothing() -> None:
    given = GivenUp({3: (b"a" * 16, [LostRange(5, 9, 77, 1)])}, {(7, 10, 20)})
    fs = MemFileSystem()
    fs.makedirs(FOLDER)
    write_given_up(fs, FOLDER, given)
    found = read_given_up(fs, FOLDER)
    assert found == given
    assert found.ranges_of_partition(3, b"a" * 16) == [LostRange(5, 9, 77, 1)]
    assert found.ranges_of_partition(3, b"b" * 16) == ()
    assert found.ranges_of_partition(4, b"a" * 16) == []
    assert found.journals() == {7}


def test_newer_account_is_refused() -> None:
    from crc32c import crc32c

    fs = MemFileSystem()
    fs.makedirs(FOLDER)
    line = json.dumps({"version": 2}).encode()
    file = fs.open(f"{FOLDER}/{NAME}", create=True)
    file.pwritev([b"%s\n%08x\n" % (line, crc32c(line))], 0)
    file.close()
    with pytest.raises(JournalFormatError, match="format version 2"):
        read_given_up(fs, FOLDER)


def test_parts_of_ranges() -> None:
    ranges = [LostRange(5, 9, 1, 1), LostRange(9, 12, 1, 1), LostRange(20, 30, 1, 1)]
    assert [one[:2] for one in clip_ranges(ranges, 7, 25)] == [(7, 9), (9, 12), (20, 25)]
    assert clip_ranges(ranges, 12, 20) == []
    assert [skip_given_up(ranges, at) for at in (4, 5, 8, 9, 12, 29)] == [4, 12, 12, 12, 12, 30]


async def test_account_of_deleted_topic_is_ignored() -> None:
    """Partitions of deleted topics in the account are ignored."""
    world = await stopped(cut_first=False)
    flip_bit(world, world.find("t0").rows.log_position[3] + 100)
    await give_up(world)
    metadata = MemoryMetadata(world.database)
    await metadata.open()
    given = read_given_up(world.fs, FOLDER)
    given.ranges[99] = (bytes(16), [LostRange(0, 4, 1, 1)])
    write_given_up(world.fs, FOLDER, given)
    await world.start()
    await cut_all(world)
    assert 99 not in world.log.partitions
    assert world.find("t0").cut_offset > 4


async def test_cut_of_compacted_topic_skips_discarded_offsets() -> None:
    world = await started(0, cut_interval_ms=FAR_MS, log_cleaner_backoff_ms=FAR_MS)
    (partition,) = await world.topic("t0", cleanup_policy="compact")
    for at in range(60):
        raw = build([(b"key-%d" % at, bytes(500))], timestamp_ms=EPOCH_MS)
        partition.append(memoryview(raw), EPOCH_MS)
        await partition.log.wait_until_committed()
    await settle()
    log_position = partition.rows.log_position[12]
    await world.log.close()
    flip_bit(world, log_position + 100)
    await give_up(world)
    await world.start()
    await cut_all(world)
    partition = world.find("t0")
    assert partition.cut_offset > 13
    assert await account(world, partition) == [(12, 13)]
    assert [offset for offset, _ in await read_all(partition)] == [
        offset for offset in range(60) if offset != 12
    ]
    assert journal_name(log_position >> 32) in in_quarantine(world)
