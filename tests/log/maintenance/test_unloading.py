"""Unloading of partitions: only idle ones, and they are the same when loaded again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkawire.codec.errors import KafkaError
from kafkawire.log.maintenance.unloader import Unloader, is_idle
from kafkawire.log.partition.loader import NotLoaded
from kafkawire.log.partition.partition import Partition
from tests.kit.client import Client
from tests.kit.client import batch as client_batch
from tests.kit.env import EPOCH_MS
from tests.kit.log.cutting import JOURNAL, cut, expected, fill
from tests.kit.log.logs import batch, read_all
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running
from tests.log.partition.test_loader import Lazy


async def world_of(count: int) -> tuple[Lazy, list[Partition]]:
    """A world with some partitions of one topic, all in memory."""
    world = Lazy()
    await world.start()
    partitions = await world.topic("t", count)
    return world, [world.table.find_by_name("t", partition.index) for partition in partitions]


async def test_idle_partitions_are_unloaded_and_loaded_unchanged() -> None:
    world, partitions = await world_of(3)
    first = partitions[0]
    first.append(batch(b"a", b"b"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert await world.log.unloader.run(0) == 2, "partitions in the journals stay loaded"
    assert [p.removed for p in partitions] == [False, True, True]
    with pytest.raises(NotLoaded):
        world.table.find_by_name("t", 1)
    await world.table.load([("t", 1)])
    again = world.table.find_by_name("t", 1)
    assert again is not partitions[1]
    assert (again.next_offset, again.log_start) == (0, 0)
    again.append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.restart()
    await world.loader.load([partition.number for partition in partitions])
    assert await read_all(world.log.partitions[first.number]) == [(0, b"a"), (1, b"b")]
    assert await read_all(world.log.partitions[again.number]) == [(0, b"c")]


async def test_unloaded_partition_keeps_offsets_after_cut() -> None:
    world = Lazy(journal_bytes=JOURNAL, hot_bytes=0, journal_roll_ms=0)
    await world.start()
    await world.topic("t", 2)
    partition, other = (world.table.find_by_name("t", index) for index in (0, 1))
    await fill(partition, 3)
    await fill(other, 20)  # which fills the journal
    await cut(world)
    assert partition.cut_offset == 3
    partition.mark_dirty()
    await world.log.unloader.run(0)
    assert not partition.removed, "its checkpoint is not stored"
    await world.log.checkpoint()
    await world.log.unloader.run(0)
    assert partition.removed
    await world.table.load([("t", 0)])
    again = world.table.find_by_name("t", 0)
    assert (again.next_offset, again.high_watermark, again.cut_offset) == (3, 3, 3)
    assert await read_all(again) == expected(0, 3)
    assert again.append(batch(b"d"), EPOCH_MS).base_offset == 3


async def test_partitions_in_use_stay_loaded() -> None:
    world, (partition,) = await world_of(1)
    assert is_idle(partition)
    partition.watch(print)
    assert not is_idle(partition)
    partition.watchers.clear()
    partition.append(batch(b"queued"), EPOCH_MS)
    assert not is_idle(partition)
    await world.log.commit_log.wait_until_committed()
    other, (held,) = await world_of(1)
    log = other.log
    pinning = Unloader(other.env, log.loader, log.checkpoints, {"t"})
    assert await pinning.run(0) == 0
    assert not held.removed


async def test_unloading_goes_below_the_bound() -> None:
    world, _ = await world_of(20)
    assert await world.log.unloader.run(20) == 0
    assert await world.log.unloader.run(19) == 3, "to 90 % of the bound"
    assert await world.log.unloader.run(19) == 0


async def test_delete_records_loads_unloaded_partition() -> None:
    world, (partition,) = await world_of(1)
    partition.append(batch(b"a", b"b"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    partition.removed = True  # like one that was unloaded while the caller waited
    del world.log.partitions[partition.number]
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await partition.delete_records(1)


@pytest.mark.slow
async def test_unloading_is_transparent_to_clients(tmp_path: Path) -> None:
    """A producer that repeats itself and a reader that waits continue over an unloading."""
    settings = {"cut_interval_ms": "10", "journal_roll_ms": "20"}
    async with running(tmp_path / "data", **settings) as server:
        log = server.broker.log
        client = await Client.connect(port_of(server))
        await make(client, "t")
        for number in range(3):
            for _ in range(4):
                answer = await client.call(produce("t", client_batch(b"x"), acks=1), 7)
                assert answer.responses[0].partition_responses[0].error_code == 0
            async with asyncio.timeout(20):
                while not await log.unloader.run(0):
                    await log.checkpoint()
                    await asyncio.sleep(0.01)
            got = (await client.call(fetch("t", 4 * number), 11)).responses[0].partitions[0]
            assert got.error_code == 0
            assert got.high_watermark == 4 * (number + 1)
            assert got.records
        await client.close()
