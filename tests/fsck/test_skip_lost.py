"""`fsck --repair --skip-lost`: damaged batches of segments are skipped, and nothing else."""

from __future__ import annotations

import pytest

from kafkawire.log.segments.file.open import read_lost_ranges, segment_path
from tests.fsck.test_fsck import overwrite, stopped, texts
from tests.kit.log.cutting import ROOM
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER, World, values


async def read_on(world: World, name: str = "t0") -> list[int]:
    """The offsets that a consumer reads from the log start on."""
    await world.start()
    partition = world.find(name)
    found: list[int] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        plan = partition.plan(offset, ROOM, partition.high_watermark, True)
        buffers = await partition.log.read(plan)
        got = [each for each, _ in values(buffers)]
        found += got
        offset = max([offset + 1, *(each + 1 for each in got)])
    return found


@pytest.mark.parametrize("harm", ["batch", "gone", "directory"])
async def test_lost_batches_are_skipped(harm: str) -> None:
    world = await stopped()
    (row,) = await world.storage.segments(1, [1], 10)
    path = segment_path(f"{FOLDER}/segments", row.uuid)
    end = world.find("t0").cut_offset
    if harm == "gone":
        world.fs.remove(path)
    else:
        overwrite(world, path, 1000 if harm == "batch" else row.size_bytes - 250)
    report = await scanned(world)
    assert not report.clean
    await report.repair()
    assert not report.clean, "nothing is discarded without --skip-lost"
    report = await scanned(world)
    await report.repair(skip_lost=True)
    again = await scanned(world)
    assert again.clean, texts(again)
    new = max(await world.storage.segments(1, [1], 10), key=lambda each: each.id)
    account = read_lost_ranges(world.fs, segment_path(f"{FOLDER}/segments", new.uuid))
    got = await read_on(world)
    lost = sorted(set(range(got[-1] + 1)) - set(got)) if harm != "gone" else list(range(end))
    if harm == "directory":
        assert (lost, account) == ([], {})
    else:
        (first,) = account[world.find("t0").number]
        assert lost == list(range(first.first, first.end))
        assert (harm == "gone") == (first.reason == 2)
