"""Journals with records of topics with durability=replicated are kept until these are uploaded.

Covers: kafkawire.log.maintenance.upload_check, kafkawire.log.maintenance.retention.
"""

from __future__ import annotations

import pytest

from kafkawire.log.maintenance.upload_check import ALL, UploadCheck
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch
from tests.kit.waiting import settle


async def written(durability: str) -> tuple[World, Partition]:
    """A log with several journals of one partition, of which everything is cut and stored."""
    world = World(journal_bytes=4096, recycle_bytes=1 << 20)
    await world.start()
    log = world.log.commit_log
    (partition,) = await world.topic("t", durability=durability)
    if durability == "replicated":
        log.follower_sink.update("")
        log.follower_sink.when_written(lambda: log.follower_sink.commit(log.disk_sink.committed))
    for _ in range(20):
        partition.append(batch(bytes(1000)), EPOCH_MS)
        await log.wait_until_committed()
    await settle()
    await world.log.segments.cutter.cut_all([partition])
    await world.log.checkpoint()
    assert partition.cut_offset > 0
    return world, partition


def numbers(world: World) -> list[int]:
    return [journal.number for journal in world.log.journals]


async def test_journals_wait_for_the_upload_of_replicated_records() -> None:
    world, partition = await written("replicated")
    before = numbers(world)
    await world.log.retention.reclaim()
    assert numbers(world) == before
    assert world.log.retention.held
    partition.commit_offset = partition.cut_offset
    await world.log.retention.reclaim()
    assert len(numbers(world)) < len(before)
    assert not world.log.retention.held


async def test_journals_of_local_records_do_not_wait() -> None:
    world, _ = await written("local")
    before = numbers(world)
    await world.log.retention.reclaim()
    assert len(numbers(world)) < len(before)


@pytest.mark.parametrize("loaded", [True, False])
async def test_partition_that_is_not_in_memory_is_checked_in_sql(loaded: bool) -> None:
    world, partition = await written("replicated")
    check = UploadCheck(world.log.loader, world.storage, world.env.slices)
    number, end = partition.number, partition.next_offset
    if not loaded:
        await world.log.checkpoint()
        world.log.loader.unload(partition)
    for wanted in (end, ALL):
        assert not await check.is_uploaded([(number, wanted)])
    assert await check.is_uploaded([(number, 0)])
    assert await check.is_uploaded([(number + 1, ALL)])  # there is none
