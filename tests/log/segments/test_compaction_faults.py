"""Cleaning compacted topics in a whole Log: failures, crashes, changes while it works."""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.offsets.catalog.port import LIVE, STARTED
from tests.kit.env import InlineOffload, SettableClock
from tests.kit.log.compacted import clean, cut_all, files, fill, latest, read, started
from tests.kit.log.logs import FOLDER
from tests.kit.waiting import settle

HOUR_MS = 3_600_000


async def test_failed_cleaning_is_abandoned_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started()
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    parts = await world.topic("t", 2, cleanup_policy="compact")
    for partition in parts:
        await fill(partition, 20)
    await cut_all(world)
    there = files(world)
    world.fs.faults.failing_syncs = 1
    await clean(world)
    assert "cleaning 2 partitions failed" in caplog.text
    assert files(world) == there
    assert not await world.storage.segments(1, (STARTED,), 10)
    await clean(world)
    assert len(await read(parts[0])) == 40, "not at once"
    clock.ms += 2 * world.config.log_cleaner_backoff_ms
    await clean(world)
    for partition in parts:
        assert len(await read(partition)) == 5
    assert parts[0].segments.segment[0] != parts[1].segments.segment[0], "each separately now"


async def test_cleaning_is_retried_after_the_wall_clock_was_set_back() -> None:
    world = await started()
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 20)
    await cut_all(world)
    clock.ms += 10 * HOUR_MS
    world.fs.faults.failing_syncs = 1
    await clean(world)
    assert len(await read(partition)) == 40
    clock.ms -= 9 * HOUR_MS
    await clean(world)
    assert len(await read(partition)) == 5


async def test_cleaning_is_not_started_on_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 40)
    await cut_all(world)
    world.fs.faults.room_bytes = 1 << 20
    await clean(world)
    assert "needs as much room" in caplog.text
    assert len(await read(partition)) == 80


async def test_damaged_batch_is_reported_and_blocks_only_its_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started()
    one, two = await world.topic("t", 2, cleanup_policy="compact")
    for partition in (one, two):
        await fill(partition, 20)
    await cut_all(world)
    (name,) = files(world)
    world.fs.files[f"{FOLDER}/segments/{name}"].data[one.segments.mapping(1, 0).start + 1000] ^= 1
    await clean(world)
    assert "t-0 cannot be compacted" in caplog.text
    assert [r.levelname for r in caplog.records].count("CRITICAL") == 1
    assert len(await read(two)) == 5
    assert (one.segments.base[0], one.segments.end[0]) == (0, 40)
    world.log.segments.cleaner.note_partitions([one.number])
    await clean(world)
    assert [r.levelname for r in caplog.records].count("CRITICAL") == 1, "left alone"


@pytest.mark.parametrize("what", ["delete records", "delete topic", "cut"])
async def test_changes_during_cleaning_are_kept(what: str) -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 20)
    await cut_all(world)
    await fill(partition, 20)
    await cut_all(world)
    before = latest(await read(partition))
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("worker")
    cleaning = asyncio.ensure_future(world.log.segments.cleaner.run())
    await settle()
    assert len(world.env.offload.held) == 1
    if what == "delete records":
        await partition.delete_records(partition.segments.base[1])
        await world.log.segments.deletion.run_pending()
    elif what == "delete topic":
        info = world.catalog.by_name["t"]
        await world.metadata.delete_topics([info.id])
        world.catalog.remove_topic(info.id)
        world.log.remove_topic(info)
        await world.log.segments.deletion.run_pending()
    else:
        await fill(partition, 20)
        await cut_all(world)
    world.env.offload.release("worker")
    await cleaning
    assert not await world.storage.segments(1, (STARTED,), 10)
    if what == "delete topic":
        await world.log.segments.tend()
        assert not await world.storage.segments(1, (LIVE,), 10)
        return
    got = await read(partition)
    if what == "delete records":
        assert latest(got) == before
        assert partition.log_start == 40
    else:
        assert len(got) < 80
        assert all(r.value is not None and r.value.startswith(b"%d:" % r.offset) for r in got)
    await world.crash()
    assert await read(world.find("t")) == got


async def test_dirty_partitions_are_found_after_restart() -> None:
    world = await started(log_cleaner_enable=False)
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 40)
    await cut_all(world)
    await clean(world)
    assert len(await read(partition)) == 80, "it is disabled"
    world.config.log_cleaner_enable = True
    await world.crash()
    await clean(world)
    assert len(await read(world.find("t"))) == 5


async def test_start_loads_compacted_partitions_only() -> None:
    world = await started()
    (plain,) = await world.topic("plain")
    (partition,) = await world.topic("t", cleanup_policy="compact")
    for one in (plain, partition):
        await fill(one, 20)
    await cut_all(world)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    await world.abandon()
    world.fs.kill()
    log = await world.start(load=False)
    assert not log.partitions
    await log.segments.cleaner.run()
    assert set(log.partitions) == {partition.number}
    assert len(await read(log.partitions[partition.number])) == 5


async def test_crash_after_writing_files_leaves_nothing() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await fill(partition, 40)
    await cut_all(world)
    before = await read(partition)
    there = files(world)
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("worker")
    cleaning = asyncio.ensure_future(world.log.segments.cleaner.run())
    await settle()
    for _, work in world.env.offload.held:
        work()  # the file is written, and the caller does not receive the result
    cleaning.cancel()
    world.env.offload.held = []
    world.env.offload.holding.clear()
    assert len(files(world)) > len(there)
    await world.crash()
    await settle()
    assert files(world) == there
    assert await read(world.find("t")) == before
    await clean(world)
    assert len(await read(world.find("t"))) == 5
