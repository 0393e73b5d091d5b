"""A tiered broker loses its data folder at a random moment; SQL and the bucket remain.

Topics of all kinds are written, merged, compacted, uploaded and deleted, while the bucket is
unreachable at times, so that the outputs of merges and compactions exist only locally. Then all
files are gone. The corrected rows must be contiguous, cover what is below the commit offsets by
objects that have these records (or local copies of parts of them), and name no missing file, also
if the correction ends at any of its steps and is repeated. The next life serves them.
"""

from __future__ import annotations

import copy
import os
import random
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from kafkawire.log.segments.file.open import SUFFIX
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.port import Stored
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETING,
    LIVE,
    STARTED,
    PartitionRow,
    SegmentRange,
    SegmentRow,
)
from kafkawire.restore.lost_files import UnreadableRange, forget_lost_files
from tests.kit.log.logs import FOLDER
from tests.kit.seeds import AT_ONCE, run_seeds
from tests.kit.tier.checks import ALL, objects_in, partitions_in
from tests.kit.tier.crash_points import Points
from tests.kit.tier.fake_bucket import StoreFaults, no_hook
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.life import SETTLE_S, Life
from tests.kit.tier.model import Row, rows_in
from tests.kit.tier.world import CLUSTER_NODE, MEMORY_BYTES, TierProcess, TierWorld, read_partition

SEEDS = int(os.environ.get("SIM_SEEDS", "24"))
STEPS = 12
MAX_FATAL = 4
"""Moments of the correction at which it is ended and repeated, per seed."""


class FailingUploads(FakeStore):
    """A store that rejects the uploads of some segments, but nothing else."""

    failing, salt = 0.0, 0

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        if random.Random(f"{path} {self.salt}").random() < self.failing:
            raise StoreError("InternalError", "we encountered an internal error, try again")
        return await super().upload(key, path, bytes_per_second)


class Writer(Life):
    """The life that ends with the loss of its files."""

    def __init__(self, world: TierWorld) -> None:
        super().__init__(world)
        self.uploads = FailingUploads(world.bucket, self.env.fs, MEMORY_BYTES)
        self.store = self.uploads

    async def main(self) -> None:
        await self.start()
        rng = self.rng
        for name in "abc"[: rng.randrange(1, 4)]:
            await self.topic(
                name, rng.randrange(1, 3),
                cleanup_policy=rng.choice(("delete", "compact")),
                min_cleanable_dirty_ratio="0", delete_retention_ms="100000000",
                local_retention_ms=rng.choice(("-2", "-2", "1")),
            )  # fmt: skip
        for _ in range(rng.randrange(2, STEPS)):
            await self.step()
        self.die("kill")

    async def step(self) -> None:
        rng, names = self.rng, sorted(self.catalog.by_name)
        faults = StoreFaults(delay_s=(0.001, 0.02))
        if rng.random() < 0.4:
            self.uploads.failing = rng.choice((0.0, 0.0, 0.3, 0.6, 1.0))
            self.uploads.salt = rng.randrange(1000)
        match rng.randrange(10):
            case 0 | 1:
                await self.env.sleep(rng.random() * 20)
            case 2:
                faults.down, faults.timeout_s = True, 0.5
            case 3 | 4:
                faults.error_rate, faults.lost_rate = rng.choice((0.2, 0.6)), 0.2
            case 5:
                await self.remove_records(rng.choice(names))
            case 6 if len(names) > 1:
                await self.delete(rng.choice(names))
            case _:
                pass
        self.world.bucket.faults = faults
        for name in sorted(self.catalog.by_name):
            await self.produce(name, rng.randrange(3))
        await self.env.sleep(rng.random() * 4)

    async def remove_records(self, name: str) -> None:
        """Delete some of the oldest records of each partition."""
        for row in self.catalog.by_name[name].partitions:
            partition = await self.partition(row.number)
            expected = self.world.expected(row.number)
            expected.asked = self.rng.randint(partition.log_start, partition.high_watermark)
            expected.log_start = await partition.delete_records(expected.asked)


class Correction(TierProcess):
    """A process that only corrects the rows."""

    found: list[UnreadableRange]

    async def main(self) -> None:
        await self.open_metadata()
        self.points.on = True
        self.found = await forget_lost_files(
            self.env, self.storage, self.catalog, CLUSTER_NODE, FOLDER, lambda tier: self.store
        )
        self.points.on = False


class Reader(TierProcess):
    """The next life: serves what the rows say."""

    async def main(self) -> None:
        await self.open_metadata()
        await self.storage.save_checkpoint(Checkpoint(CLUSTER_NODE, 0, []))
        await self.open_log()
        for partition in await self.partitions():
            (row,) = await self.storage.load_partitions([partition.number])
            end = row.mappings[-1].end_offset if row.mappings else partition.log_start
            end = max(end, partition.log_start)
            found = await read_partition(partition, partition.log_start, upto=end)
            self.world.promises.check(partition.number, partition.log_start, end, found)
        await self.env.sleep(SETTLE_S)
        left = await self.storage.segments(CLUSTER_NODE, (STARTED, DELETING), ALL)
        assert not left, f"segments that nothing needs are not removed: {left}"
        assert not objects_in(self.world, COPY_STARTED)
        self.die("kill")


def live(world: TierWorld) -> dict[int, SegmentRow]:
    rows: list[SegmentRow] = world.peek(lambda s: s.segments(CLUSTER_NODE, (LIVE,), ALL))
    return {row.id: row for row in rows}


def data_of(world: TierWorld, segment: SegmentRow) -> bytes:
    """The file of a segment, or its object."""
    if segment.local:
        return bytes(world.fs.files[path_of(segment)].data)
    return world.bucket.held[segment_key(segment.object)].data


def path_of(segment: SegmentRow) -> str:
    return f"{FOLDER}/segments/{segment.uuid.hex()}{SUFFIX}"


def records_in(world: TierWorld, segment: SegmentRow, each: SegmentRange) -> list[tuple[int, Row]]:
    """The records of a mapping."""
    data = data_of(world, segment)[each.start : each.start + each.length]
    assert len(data) == each.length
    return [pair for pair in rows_in([data], each.base_offset) if pair[0] < each.end_offset]


def lose(world: TierWorld) -> None:
    """Remove everything on the disk."""
    world.fs.__init__(world.rng)  # type: ignore[misc]
    world.bucket.faults = StoreFaults()
    world.bucket.hook = no_hook
    world.process = None


def check(world: TierWorld, before: dict[int, PartitionRow]) -> int:
    """Check all rows and records; return how many mappings were replaced."""
    segments, replaced = live(world), 0
    for segment in segments.values():
        assert segment.object or segment.local
        assert not segment.local or path_of(segment) in world.fs.files
    mapped: dict[int, int] = dict.fromkeys(segments, 0)
    finished = {row.uuid: row.segment_id for row in objects_in(world, COPY_FINISHED)}
    for row in partitions_in(world):
        log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
        old = before[row.number]
        assert (row.checkpoint, row.commit_offset) == (old.checkpoint, old.commit_offset)
        for one, two in pairwise(row.mappings):
            assert one.end_offset == two.base_offset
        found: list[tuple[int, Row]] = []
        for each in row.mappings:
            segment = segments[each.segment_id]
            mapped[each.segment_id] += each.length
            if segment.object:
                assert finished[segment.object] == segment.id
            found += records_in(world, segment, each)
        replaced += len(set(row.mappings) - set(old.mappings))
        if row.mappings:
            first = max(log_start, old.mappings[0].base_offset)
            assert row.mappings[0].base_offset <= first
            start, end = first, row.mappings[-1].end_offset
        else:
            start = end = log_start
        assert end >= row.commit_offset or row.commit_offset <= log_start
        found = [pair for pair in found if pair[0] >= start]
        world.promises.check(row.number, start, end, found)
    assert {at: row.live_bytes for at, row in segments.items()} == mapped
    return replaced


def outcome(world: TierWorld) -> Any:
    """The contents of the rows, without the ids that depend on the number of attempts."""
    segments = live(world)

    def named(each: SegmentRange) -> tuple[object, ...]:
        segment = segments[each.segment_id]
        return each.base_offset, each.end_offset, segment.object, segment.local, each.records

    return [
        (row.number, row.commit_offset, [named(each) for each in row.mappings])
        for row in partitions_in(world)
    ]


def run(world: TierWorld, fatal: int = -1) -> Points:
    """One process that corrects the rows."""
    points = Points(fatal)
    process = Correction(world, points)
    process.run(process.main)
    assert points.dead or process.found == []
    world.bucket.hook, world.process = no_hook, None
    return points


def simulate(seed: int) -> tuple[int, bool]:
    """Return how many mappings were replaced, and whether parts were copied."""
    world = TierWorld(seed)
    rng = world.rng
    world.config.tier_manifest_fold = rng.choice((2, 64))
    small = rng.choice((2000, 1 << 20))  # a compaction has several outputs, or one
    size = property(lambda _: small, lambda _, value: None)
    with (
        patch("kafkawire.log.segments.merge.plan.MAX_SMALL", rng.choice((3, 6))),
        patch("kafkawire.log.segments.compact.job.PIECE_BYTES", 1000),
        patch("kafkawire.codec.configs.settings.TopicConfig.segment_bytes", size),
    ):
        first = Writer(world)
        first.run(first.main)
        lose(world)
        before = {row.number: row for row in partitions_in(world)}
        return _correct(world, before)


def _correct(world: TierWorld, before: dict[int, PartitionRow]) -> tuple[int, bool]:
    """Correct the rows once, and with interruptions; then serve what is there. Return how many
    mappings were replaced, and whether parts were copied."""
    lost = copy.deepcopy(world)
    points = run(world)
    once = outcome(world)
    steps = len(points.names)
    for fatal in sorted(world.rng.sample(range(steps), min(MAX_FATAL, steps))):
        again = copy.deepcopy(lost)
        assert run(again, fatal).dead
        run(again)
        assert outcome(again) == once, f"ended at {points.names[fatal]}"
        check(again, before)
    assert not _writes(run(world)), "there is nothing left to do"
    assert outcome(world) == once
    replaced = check(world, before)
    reader = Reader(world)
    reader.run(reader.main)
    return replaced, any("start_segments" in name for name in points.names)


def _writes(points: Points) -> list[str]:
    return [name for name in points.names if "sql" in name and "drop_segments" not in name]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_rows_are_right_after_all_files_are_lost(first: int) -> None:
    replaced: list[int] = []
    run_seeds(lambda seed: replaced.append(simulate(seed)[0]), first, SEEDS)
    assert any(replaced) or len(replaced) < AT_ONCE, "no mapping was replaced by an object"
