"""fsck: no findings after every kind of end, and each kind of damage is located.

Covers: kafkawire.cli.fsck, kafkawire.fsck.journals, kafkawire.fsck.offsets,
kafkawire.log.io.read_only_disk, kafkawire.fsck.segments,
kafkawire.log.segments.strays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.fsck.report import FsckReport
from kafkawire.log.journal.file import index_name
from kafkawire.log.partition.damaged_ranges import find_uncovered
from kafkawire.log.segments.file.open import segment_path
from kafkawire.offsets.catalog.port import STARTED, SegmentRow
from tests.kit.log.cutting import cut, fill, started
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER, World
from tests.kit.memory_metadata import MemoryMetadata

JOURNALS = f"{FOLDER}/journals"


async def stopped(cut_first: bool = True, count: int = 60) -> World:
    """A broker with segments and journals, stopped cleanly."""
    world = await started(2)
    await fill(world.find("t0"), count)
    await fill(world.find("t1"), count)
    if cut_first:
        await cut(world)
        await fill(world.find("t0"), 30)
    await world.log.close()
    return world


def texts(report: FsckReport) -> list[str]:
    return [f"{p.where}: {p.text}" for p in report.problems if not p.harmless]


def overwrite(world: World, path: str, position: int) -> None:
    """Flip the bits of one byte."""
    file = world.fs.open(path)
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 0xFF])], position)
    file.close()


@pytest.mark.parametrize("cut_first", [False, True])
async def test_cleanly_closed_folder_has_no_findings(cut_first: bool) -> None:
    world = await stopped(cut_first)
    report = await scanned(world)
    assert report.problems == []
    assert report.clean
    assert report.journals >= 1
    assert report.partitions == 2
    assert report.segments == (1 if cut_first else 0)


@pytest.mark.parametrize("power", [False, True])
async def test_folder_after_crash_has_no_findings_and_is_unchanged(power: bool) -> None:
    world = await started(1)
    await fill(world.find("t0"), 60)
    await world.abandon()
    if power:
        world.fs.crash()
    before = {name: world.fs.open(f"{JOURNALS}/{name}").size() for name in files(world)}
    metadata = MemoryMetadata(world.database)
    world.catalog = await metadata.open()
    world.storage = metadata.storage(world.env.clock.now_ms)
    report = await scanned(world)
    assert texts(report) == []
    assert before == {name: world.fs.open(f"{JOURNALS}/{name}").size() for name in files(world)}


def files(world: World) -> list[str]:
    return world.fs.listdir(JOURNALS)


@pytest.mark.parametrize("at", [24, 58, 100], ids=["last offset delta", "count", "a record"])
async def test_flipped_bit_in_journal_is_reported_with_offsets(at: int) -> None:
    world = await stopped(cut_first=False)
    rows = world.find("t0").rows
    log_position, base = rows.log_position[3], rows.base[3]
    overwrite(
        world, f"{JOURNALS}/{log_position >> 32:010d}.journal", (log_position & 0xFFFFFFFF) + at
    )
    report = await scanned(world)
    assert not report.clean
    found = "\n".join(texts(report))
    assert f"offsets {base}-{base} of t0-0" in found
    assert f"t0-0: offsets {base}-{base} are in no segment and no journal" in found
    assert "table" not in found, "the metadata is right"
    await report.repair()
    assert not report.clean, "acknowledged records cannot be rebuilt"


async def test_flipped_bit_in_segment_is_reported() -> None:
    world = await stopped()
    (row,) = await world.storage.segments(1, [1], 10)
    overwrite(world, segment_path(f"{FOLDER}/segments", row.uuid), 1000)
    report = await scanned(world)
    assert not report.clean
    assert any(f"segment {row.uuid.hex()}" in text and "t0-0" in text for text in texts(report))


async def test_missing_segment_is_reported_with_its_content() -> None:
    world = await stopped()
    (row,) = await world.storage.segments(1, [1], 10)
    world.fs.remove(segment_path(f"{FOLDER}/segments", row.uuid))
    found = "\n".join(texts(await scanned(world)))
    assert "its file is gone" in found
    assert "t0-0: offsets 0-" in found


async def test_truncated_segment_is_reported() -> None:
    world = await stopped()
    (row,) = await world.storage.segments(1, [1], 10)
    world.fs.open(segment_path(f"{FOLDER}/segments", row.uuid)).truncate(row.size_bytes - 8)
    assert not (await scanned(world)).clean


async def test_damaged_index_is_removed_and_rebuilt() -> None:
    world = await stopped(cut_first=False)
    first = min(int(name[:10]) for name in files(world) if name.endswith(".index"))
    overwrite(world, f"{JOURNALS}/{index_name(first)}", 70)
    report = await scanned(world)
    assert texts(report) == [f"journal {first}: its index {index_name(first)} is damaged"]
    await report.repair()
    assert report.clean
    assert index_name(first) not in files(world)
    assert (await scanned(world)).clean


async def test_files_of_interrupted_cut_are_harmless_and_removable() -> None:
    world = await stopped()
    started_row = SegmentRow(b"s" * 16, 1, 0)
    await world.storage.start_segments([started_row])
    world.fs.open(segment_path(f"{FOLDER}/segments", started_row.uuid), create=True).close()
    report = await scanned(world)
    assert report.clean
    assert len(report.problems) == 1
    await report.repair()
    assert len(world.fs.listdir(f"{FOLDER}/segments")) == 1
    assert await world.storage.segments(1, [STARTED], 10) == []


async def test_checkpoint_ahead_of_journals_means_missing_records() -> None:
    world = await stopped(cut_first=False)
    last = max(name for name in files(world) if name.endswith(".journal"))
    world.fs.remove(f"{JOURNALS}/{last}")
    report = await scanned(world)
    assert not report.clean
    assert f"journal {int(last[:10])}: is missing, though it was acknowledged" in "\n".join(
        texts(report)
    )


def test_offsets_in_no_range_are_reported() -> None:
    assert list(find_uncovered(0, 10, [(0, 4), (4, 10)])) == []
    assert list(find_uncovered(0, 10, [(2, 4), (3, 6), (20, 30)])) == [(0, 2), (6, 10)]
    assert list(find_uncovered(5, 5, [])) == []
    assert list(find_uncovered(5, 8, [(0, 5)])) == [(5, 8)]


def fsck(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kafkawire", "fsck", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_path_that_is_not_a_data_folder_is_refused(tmp_path: Path) -> None:
    done = fsck("--data", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"kafkawire: {tmp_path} is not a data folder: it has no folder brokers/<node id>"
    )
    (tmp_path / "brokers" / "1").mkdir(parents=True)
    (tmp_path / "metadata.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    done = fsck("--data", str(tmp_path))
    assert done.returncode == 2
    assert "metadata.db is damaged" in done.stderr
    assert "restore --from-log" in done.stderr


@pytest.mark.slow
def test_fsck_command_on_folder_of_real_broker(tmp_path: Path) -> None:
    from kafkawire.testing.process import BrokerProcess

    with BrokerProcess(data=tmp_path) as broker:
        create = [sys.executable, "-P", "-m", "kafkawire", "topics", "create", "made"]
        subprocess.run([*create, "--server", broker.bootstrap], check=True, timeout=60)
        busy = fsck("--data", str(tmp_path))
        assert busy.returncode == 2
        assert "another kafkawire process uses" in busy.stderr
    done = fsck("--data", str(tmp_path), "--json")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    (report,) = json.loads(done.stdout)
    assert report["clean"]
    assert report["journals"] == 1
