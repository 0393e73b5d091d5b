"""Files without a row in the metadata are reported and moved aside by fsck and by a start, not
deleted."""

from __future__ import annotations

import json

import pytest

from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.offsets.catalog.port import STARTED, SegmentRow, Swap
from tests.kit.env import memory_env
from tests.kit.log.cutting import cut, fill, segments, started
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER, World

SEGMENTS = f"{FOLDER}/segments"
ASIDE = f"{FOLDER}/quarantine"


async def with_one_segment() -> tuple[World, str, int]:
    """A stopped broker whose first records are in one segment only; its name and their number."""
    world = await started(2)
    await fill(world.find("t0"), 60)
    await cut(world)
    end = world.find("t0").cut_offset
    (name,) = segments(world)
    await world.log.close()
    return world, name, end


async def forget_rows(world: World) -> SegmentRow:
    """Restore the metadata of an earlier time, when the segment was not written yet."""
    (row,) = await world.storage.segments(1, [1], 10)
    numbers = [p.number for info in world.catalog.by_id.values() for p in info.partitions]
    await world.storage.remove_mappings(dict.fromkeys(numbers, 1 << 60))
    await world.storage.drop_segments([row.id])
    return row


def aside(world: World) -> dict[str, dict[str, object]]:
    """The report of the quarantine, by file."""
    file = world.fs.open(f"{ASIDE}/report.jsonl")
    lines = [json.loads(line) for line in file.pread(1 << 20, 0).splitlines()]
    return {line["file"]: line for line in lines}


async def test_file_without_row_is_reported_and_quarantined() -> None:
    world, name, end = await with_one_segment()
    await forget_rows(world)
    report = await scanned(world)
    assert not report.clean
    found = [problem for problem in report.problems if "no row knows its file" in problem.text]
    assert f"the only copy of t0-0 offsets 0-{end - 1}" in found[0].text
    await report.repair()
    assert segments(world) == []
    assert world.fs.listdir(ASIDE) == sorted([name, "report.jsonl"])
    line = aside(world)[name]
    assert line["from"] == f"{SEGMENTS}/{name}"
    assert "the only copy of t0-0" in str(line["why"])


async def test_redundant_file_without_row_is_quarantined_too() -> None:
    world, name, _ = await with_one_segment()
    data = world.fs.open(f"{SEGMENTS}/{name}").pread(1 << 24, 0)
    copy = world.fs.open(f"{SEGMENTS}/{'ab' * 16}.segment", create=True)
    copy.pwritev([data], 0)
    world.fs.open(f"{SEGMENTS}/{'cd' * 16}.segment", create=True).close()
    report = await scanned(world)
    reported = sorted(problem.text for problem in report.problems)
    assert reported == [
        "no row knows its file, which cannot be read as a segment",
        "no row knows its file; what it holds is in other files too, or was deleted",
    ]
    assert not report.clean
    await report.repair()
    assert report.clean
    assert segments(world) == [name]
    assert len(world.fs.listdir(ASIDE)) == 3


async def as_unfinished(world: World, name: str) -> None:
    """Restore metadata of an earlier time, in which the segment is being written."""
    await forget_rows(world)
    await world.storage.start_segments([SegmentRow(bytes.fromhex(name[:32]), 1, 0)])


async def test_fsck_keeps_unfinished_segment_with_only_copy() -> None:
    world, name, end = await with_one_segment()
    await as_unfinished(world, name)
    report = await scanned(world)
    assert any(f"only copy of t0-0 offsets 0-{end - 1}" in p.text for p in report.problems)
    assert not report.clean
    await report.repair()
    assert name in world.fs.listdir(ASIDE)
    assert await world.storage.segments(1, [STARTED], 10) == []


async def test_start_keeps_unfinished_segment_with_only_copy() -> None:
    world, name, end = await with_one_segment()
    await as_unfinished(world, name)
    await world.start()
    await world.log.segments.clean()
    assert f"only copy of t0-0 offsets 0-{end - 1}" in str(aside(world)[name]["why"])
    assert name in world.fs.listdir(ASIDE)
    assert segments(world) == []


@pytest.mark.parametrize("deleted", [False, True])
async def test_files_of_interrupted_cut_are_removed(deleted: bool) -> None:
    world = await started(1)
    await fill(world.find("t0"), 60)
    submit = world.storage.finish_segments

    async def ends(swap: Swap) -> None:
        raise OSError("the process ends here")

    world.storage.finish_segments = ends  # type: ignore[method-assign]
    with pytest.raises(OSError, match="ends here"):
        await cut(world)
    world.storage.finish_segments = submit  # type: ignore[method-assign]
    if deleted:
        await world.metadata.delete_topics([world.catalog.by_name["t0"].id])
    await world.crash()
    await world.log.segments.clean()
    assert segments(world) == []
    assert "quarantine" not in world.fs.listdir(FOLDER)


async def test_records_of_unknown_topic_are_reported() -> None:
    world = await started(2)
    await fill(world.find("t0"), 20)
    await world.log.close()
    assert world.database.catalog is not None
    for catalog in (world.database.catalog, world.catalog):
        catalog.remove_topic(catalog.by_name["t0"].id)
    report = await scanned(world)
    (problem,) = [each for each in report.problems if each.where == "topic t0"]
    assert "the metadata does not know it" in problem.text
    assert not report.clean


def test_files_of_the_same_name_do_not_replace_each_other() -> None:
    env = memory_env()
    env.fs.makedirs(SEGMENTS)
    quarantine = Quarantine(env.fs, FOLDER)
    for text in (b"one", b"two"):
        file = env.fs.open(f"{SEGMENTS}/a.segment", create=True)
        file.pwritev([text], 0)
        file.close()
        quarantine.move_file(f"{SEGMENTS}/a.segment", "because", 5)
    assert env.fs.listdir(ASIDE) == ["a.segment", "a.segment.1", "report.jsonl"]
    assert env.fs.open(f"{ASIDE}/a.segment").pread(9, 0) == b"one"
    assert env.fs.open(f"{ASIDE}/a.segment.1").pread(9, 0) == b"two"
