"""Compacted topics whose segments are remote: cleaned after download, never at the cost of records.

Covers: kafkawire.log.segments.merge.fetch_remote, kafkawire.tiering.retention.local_files.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.offsets.catalog.port import DELETING, LIVE
from tests.kit.log import compacted
from tests.kit.tier.local import GRACE_MS, HOUR_MS, LocalWorld, remote, tend


async def compact_world(**more: str) -> LocalWorld:
    world = LocalWorld(log_cleaner_dedupe_buffer_size=1 << 16)
    partition = await world.begin(cleanup_policy="compact", **more)
    await compacted.fill(partition, 40)
    await world.cut_all()
    return world


@pytest.mark.parametrize("aged", [False, True])
async def test_compacted_topic_with_remote_segments_is_cleaned(aged: bool) -> None:
    world = await compact_world(**({"max_compaction_lag_ms": "1000"} if aged else {}))
    partition = world.find("t")
    before = await compacted.read(partition)
    if aged:
        partition.config.min_cleanable_dirty_ratio = 1.0
    (segment,) = await remote(world)
    if aged:
        world.later(HOUR_MS)
    await compacted.clean(world)
    got = await compacted.read(partition)
    assert compacted.latest(got) == compacted.latest(before)
    assert len(got) < len(before)
    assert world.local.files.downloads == 1
    assert segment.pins == 0
    assert segment.row.state == DELETING
    world.later(GRACE_MS + 1000)
    await tend(world, 1)
    assert segment.name + ".segment" not in world.files()
    await world.again()
    assert await compacted.read(world.find("t")) == got


def failures(caplog: pytest.LogCaptureFixture) -> list[bool]:
    """For each cleaning that failed: whether its log line has a traceback."""
    lines = [record for record in caplog.records if record.name.endswith("compact.cleaner")]
    return [bool(record.exc_info) for record in lines if record.levelname == "WARNING"]


async def test_cleaning_waits_for_unfetchable_segment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await compact_world()
    (segment,) = await remote(world)
    world.bucket.faults.down = True
    world.bucket.faults.timeout_s = 0.0
    await compacted.clean(world)
    assert [row.id for row in await world.storage.segments(1, (0, LIVE, DELETING), 9)] == [
        segment.row.id
    ], "no rows are left from a job that did not begin"
    assert failures(caplog) == [False]
    assert segment.pins == 0
    world.bucket.faults.down = False
    world.later(HOUR_MS)
    await compacted.clean(world)
    assert segment.row.state == DELETING
    assert len(await compacted.read(world.find("t"))) == 5


async def test_compacted_topic_is_unchanged_without_tier(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a start, while the tier is not attached yet."""
    world = await compact_world()
    (segment,) = await remote(world)
    world.log.segments.remote.detach_files()
    await compacted.clean(world)
    assert segment.row.state == LIVE
    assert segment.pins == 0
    assert failures(caplog) == [False]


async def test_segments_of_a_broker_with_another_folder_are_downloaded() -> None:
    """After a partition was moved between machines its segments are objects of another broker."""
    world = await compact_world()
    partition = world.find("t")
    before = await compacted.read(partition)
    (segment,) = await remote(world)
    store, files = world.log.segments.store, world.local.files
    row = replace(segment.row, node_id=9, local=True)
    del store.by_id[row.id]
    other = store.others[row.id] = Segment(row, "/elsewhere/brokers/9/segments")
    await compacted.clean(world)
    got = await compacted.read(partition)
    assert compacted.latest(got) == compacted.latest(before)
    assert len(got) < len(before)
    assert other.path.startswith(store.downloads)
    assert world.env.fs.listdir(store.downloads) == [f"{other.name}.segment"]
    await files.sweep(0.0)
    assert world.env.fs.listdir(store.downloads) == []
    assert not other.has_file
