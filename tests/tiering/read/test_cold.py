"""Cold reads: the same bytes wherever segments are stored, within the limits, at every level.

Covers: kafkawire.tiering.read.batch_stream.
"""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Buffer
from kafkawire.log.segments.store.remote_tier import local_log_start
from tests.kit.env import EPOCH_MS
from tests.kit.log.segments import split
from tests.kit.tier.cold import (
    BLOCK_BYTES,
    SEEDS,
    ColdWorld,
    gets,
    prepared,
    simulated,
    take,
    whole,
)


@pytest.mark.parametrize("seed", range(8))
def test_reads_are_the_same_from_disk_and_tier(seed: int) -> None:
    async def main(world: ColdWorld) -> None:
        rng = random.Random(seed)
        await prepared(world, size=rng.choice((60, 500, 3000)))
        batches = await whole(world)
        segments = world.segments()
        assert len(segments) == 3
        await world.remote(rng.sample(segments, rng.choice((1, 2, 3))), local=rng.random() < 0.2)
        world.open_tier(rng.choice((1, 2, 5, 64)), rng.choice((4096, 10_000, BLOCK_BYTES)))
        for _ in range(60):
            offset = rng.randrange(len(batches))
            room = rng.choice((0, 100, 700, 5000, 1 << 20))
            first = rng.random() < 0.8
            data, size = await take(world, "t", offset, room, first=first)
            assert size == len(data)
            got = split(data)
            assert got == batches[offset : offset + len(got)]
            assert len(data) <= room or (first and len(got) == 1)
            assert got or not first
            assert world.cold.tier(0).cache.leased <= len(world.cold.tier(0).cache)
        assert await whole(world) == batches

    simulated(main, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_many_readers_with_small_cache_and_faulty_store(seed: int) -> None:
    """Some cancel, some never use their result; the bytes are right and cache slots are
    released."""

    async def main(world: ColdWorld) -> None:
        rng = random.Random(seed)
        await prepared(world, count=300)
        batches = await whole(world)
        await world.remote(world.segments())
        faults = world.bucket.faults
        faults.delay_s, faults.error_rate = (0.0, 0.3), rng.choice((0.0, 0.1))
        world.config.tier_hedge_percentile = rng.choice((50, 95, 100))
        blocks = rng.choice((1, 2, 3, 8, 30))
        cold = world.open_tier(blocks)
        cache, partition = cold.tier(0).cache, world.find("t")
        held: list[tuple[int, list[Buffer]]] = []

        async def reader() -> None:
            offset = rng.randrange(300)
            for _ in range(rng.randrange(1, 12)):
                room = rng.choice((0, 2000, 30_000))
                plan = partition.plan(offset, room, partition.high_watermark, True)
                views = await partition.log.read(plan, rng.choice((None, 0.0, 0.05, 1.0)))
                held.append((offset, views))
                assert len(cache) <= blocks
                offset += len(split(b"".join(views)))
                if offset >= 300:
                    return
                await world.env.sleep(rng.choice((0.0, 0.01, 0.5)))
                if rng.random() < 0.8:
                    held.pop(rng.randrange(len(held)))

        tasks = [world.env.spawn(reader(), f"reader {n}") for n in range(25)]
        for task in rng.sample(tasks, 8):
            await world.env.sleep(rng.random() / 4)
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            failure = None if task.cancelled() else task.exception()
            # A request may fail so often in a row that its readers get an error.
            assert failure is None or (faults.error_rate and "InternalError" in str(failure))
        for offset, views in held:
            got = split(b"".join(views))
            assert got == batches[offset : offset + len(got)]
        held.clear()
        tasks.clear()
        await world.env.sleep(60)
        del task, views
        gc.collect()
        assert cache.leased == 0
        places = cache.room(blocks)
        assert sorted(places) == [at * BLOCK_BYTES for at in range(blocks)]

    simulated(main, seed)


@pytest.mark.parametrize("level", TierLevel)
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("in_memory", [True, False])
def test_storage_level_decides_where_to_read(
    level: TierLevel, local: bool, in_memory: bool
) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=local)
        world.open_tier()
        world.find("t").config.tier_level = level
        world.fs.cold = not in_memory
        if not local and level is TierLevel.DISABLE:
            with pytest.raises(KafkaError, match="tieredStorageLevel is disable"):
                await take(world, "t", 3)
            assert not gets(world)
            return
        assert await whole(world) == batches
        wanted = not local or level is TierLevel.FORCE
        wanted |= level is TierLevel.NOT_IN_MEM and not in_memory
        assert bool(gets(world)) == wanted

    simulated(main)


@pytest.mark.parametrize("down", [True, False])
def test_local_file_is_read_when_tier_fails(down: bool) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=True)
        world.find("t").config.tier_level = TierLevel.FORCE
        world.open_tier()
        world.bucket.faults.down, world.bucket.faults.delay_s = down, (2, 2)
        data, _ = await take(world, "t", 3, 600, patience_s=0.5)
        assert data == batches[3]
        assert world.log.segments.warm.fallbacks == 1

    simulated(main)


def test_offsets_by_timestamp_in_tier() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=300)
        segments = world.segments()
        await world.remote([segments[0], segments[2]])
        world.open_tier()
        partition = world.find("t")
        for offset in (0, 7, 99, 100, 150, 199, 200, 250, 299, 302):
            found = await partition.offset_for_time(EPOCH_MS + offset)
            assert found == (offset, EPOCH_MS + offset)
        assert await partition.max_timestamp() == (304, EPOCH_MS + 304)
        assert await partition.offset_for_time(EPOCH_MS + 305) is None
        assert local_log_start(partition, world.log.segments.store) == 300

    simulated(main)
