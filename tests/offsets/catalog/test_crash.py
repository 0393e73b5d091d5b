"""Kill -9 while segments are cut, merged and dropped: each swap is stored completely or not at all.

The child (this file, run as a program) prints what has been answered; the parent kills it at a
seeded moment, opens the storage, and compares. At most the one unanswered call may have been
stored. `sqlite` goes through SQLAlchemy, `rocksdb` through rocksdict.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafkawire.offsets.catalog.port import (
    DELETING,
    LIVE,
    STARTED,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    Swap,
)
from tests.kit.offsets.worlds import MINE, KeyValueWorld, SqlWorld, World

ROUNDS = 4
MERGE_AT = 4


def world_of(kind: str, folder: Path) -> World:
    """The storage that the child and the parent open."""
    if kind == "rocksdb":
        return KeyValueWorld(folder)
    return SqlWorld(f"sqlite:///{folder}/metadata.db")


def mapping(number: int, base: int, end: int) -> SegmentRange:
    return SegmentRange(number, 0, base, end, 64, end - base, 0, 0, 0, base, 1, end - base, end)


async def work(storage: SegmentCatalog) -> None:
    """Cut ten offsets of every partition at a time, merge when there are many segments;
    endlessly."""
    count = time.time_ns()
    while True:
        rows = [row.mappings for row in await storage.load_partitions(MINE)]
        ends = [mappings[-1].end_offset if mappings else 0 for mappings in rows]
        count += 1
        segment = SegmentRow(count.to_bytes(16, "big"), 1, 0)
        (segment.id,) = await storage.start_segments([segment])
        if len(rows[0]) >= MERGE_AT:
            added = [mapping(n, 0, end) for n, end in zip(MINE, ends, strict=True)]
            swap = Swap([(segment, added)], [row for mappings in rows for row in mappings])
        else:
            added = [mapping(n, end, end + 10) for n, end in zip(MINE, ends, strict=True)]
            swap = Swap([(segment, added)])
        await storage.finish_segments(swap)
        print(added[0].end_offset, flush=True)
        gone = await storage.segments(1, [DELETING], 100)
        await storage.drop_segments([row.id for row in gone])


async def child(kind: str, folder: str) -> None:
    """Work until killed."""
    await work(await world_of(kind, Path(folder)).start())


def run_and_kill(kind: str, folder: Path, seed: int) -> int:
    """One life of the child: the last end that was answered."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.offsets.catalog.test_crash", kind, str(folder)]
    answers, delay_s = rng.randint(3, 30), rng.uniform(0, 0.02)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = 0
        for _ in range(answers):
            line = process.stdout.readline()
            assert line, "the child ended by itself"
            last = int(line)
        time.sleep(delay_s)
        process.kill()
        more = [
            line for line in process.stdout.read().splitlines(keepends=True) if line[-1] == "\n"
        ]
    return int(more[-1]) if more else last


async def check(storage: SegmentCatalog, answered: int) -> None:
    """Check that nothing is lost, partial or duplicated."""
    rows = [row.mappings for row in await storage.load_partitions(MINE)]
    ends = {mappings[-1].end_offset for mappings in rows}
    assert len(ends) == 1, "a swap is stored partially"
    assert ends <= {answered, answered + 10}
    assert len({len(mappings) for mappings in rows}) == 1
    for mappings in rows:
        edges = [0, *(row.end_offset for row in mappings)]
        assert [row.base_offset for row in mappings] == edges[:-1]
    segments = {row.id: row for row in await storage.segments(1, [STARTED, LIVE, DELETING], 1000)}
    for row in segments.values():
        members = await storage.segment_mappings([row.id])
        assert sum(each.length for each in members) == row.live_bytes
        assert bool(members) == (row.state == LIVE)
    assert {row.segment_id for mappings in rows for row in mappings} <= set(segments)
    due = await storage.expiring(1 << 61, 1000)
    assert sorted(due) == sorted(row for mappings in rows for row in mappings)
    stats = await storage.stats(MINE)
    assert {each.records for each in stats} == ends


@pytest.mark.real
@pytest.mark.parametrize("kind", ["sqlite", "rocksdb"])
async def test_swap_is_atomic_across_kill_9(kind: str, tmp_path: Path) -> None:
    world = world_of(kind, tmp_path)
    if isinstance(world, SqlWorld):
        await world.make()
    answered = 0
    for seed in range(ROUNDS):
        answered = await asyncio.to_thread(run_and_kill, kind, tmp_path, seed)
        await check(await world.start(), answered)
        await world.close()
    assert answered > 10 * ROUNDS


if __name__ == "__main__":
    asyncio.run(child(sys.argv[1], sys.argv[2]))
