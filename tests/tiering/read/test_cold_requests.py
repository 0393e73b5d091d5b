"""Timing of cold reads: round trips, read-ahead, timeouts, and the bounds of the cache."""

from __future__ import annotations

import gc
import random

import pytest

from kafkawire.log.io.ports import Buffer
from tests.kit.log.segments import split
from tests.kit.tier.cold import BLOCK_BYTES, ColdWorld, gets, prepared, simulated, take, whole

# -- Latency of the first byte, and the number of requests


def test_first_byte_takes_two_round_trips_and_next_none() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=600, cuts=1)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.5, 0.5)  # a second there and back
        world.open_tier(blocks=64)
        for offset, trips in [(300, 2), (301, 0), (0, 1), (2, 0)]:
            began = world.env.clock.monotonic()
            data, _ = await take(world, "t", offset, 1000)
            assert data
            assert round(world.env.clock.monotonic() - began) == trips

    simulated(main)


def test_small_sequential_read_takes_one_round_trip() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=30)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.5, 0.5)
        world.open_tier(block_bytes=64 << 10)
        for offset in (0, 15):
            began = world.env.clock.monotonic()
            assert (await take(world, "t", offset, 1000))[0]
            assert round(world.env.clock.monotonic() - began) == 1

    simulated(main)


def test_readers_of_same_bytes_share_one_request() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=90)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.1, 0.2)
        world.open_tier()
        reads = [world.env.spawn(take(world, "t", 40, 900), f"reader {n}") for n in range(20)]
        answers = {(await read)[0] for read in reads}
        assert len(answers) == 1
        assert gets(world) == 2  # index and data

    simulated(main)


def test_sequential_read_ahead_crosses_segment_boundary() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.05, 0.05)
        world.open_tier(blocks=200)
        offset, waits, began = 0, 0, world.env.clock.monotonic()
        while offset < 900:
            before = world.env.clock.monotonic()
            got = split((await take(world, "t", offset, 4000))[0])
            assert got == batches[offset : offset + len(got)]
            offset += len(got)
            waits += world.env.clock.monotonic() > before
            await world.env.sleep(0.02)  # the client processes the records
        reads = 900 * len(batches[0]) / 4000
        assert waits < reads / 4
        assert world.env.clock.monotonic() - began < reads * 0.05  # a round trip takes 0.1
        assert gets(world) < reads / 2

    simulated(main)


def test_random_reads_are_not_read_ahead() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900, cuts=1)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=200)
        rng = random.Random(1)
        for _ in range(30):
            await take(world, "t", rng.randrange(880), 100)
        loaded = len(cold.tier(0).cache) * BLOCK_BYTES
        assert cold.counts.bytes_read < loaded + (64 << 10)  # and the index
        assert loaded <= 30 * 4 * BLOCK_BYTES  # the slack before and after each

    simulated(main)


# -- Patience


def test_read_timeout_is_empty_and_load_is_kept() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.4, 0.4)
        cold = world.open_tier()
        began = world.env.clock.monotonic()
        assert await take(world, "t", 3, 600, patience_s=0.5) == (b"", 0)
        assert 0.5 <= world.env.clock.monotonic() - began < 0.51
        assert cold.counts.late == 1
        await world.env.sleep(2)
        asked = gets(world)
        assert asked == 2
        assert (await take(world, "t", 3, 600, patience_s=0.0))[0] == batches[3]
        assert gets(world) == asked

    simulated(main)


def test_cancelled_read_releases_slots_and_load_continues() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.2, 0.2)
        cold = world.open_tier(blocks=4)
        for delay in (0.0, 0.1, 0.41, 0.7):
            read = world.env.spawn(take(world, "t", 70, 600), "read")
            await world.env.sleep(delay)
            read.cancel()
        await world.env.sleep(5)
        cache = cold.tier(0).cache
        assert cache.leased == 0
        assert len(cache.room(4)) == 4  # every slot is free, or can be freed
        cache.give_back([at * BLOCK_BYTES for at in range(4)])
        assert (await take(world, "t", 70, 600))[0] == batches[70]

    simulated(main)


def test_available_batches_are_returned_without_waiting() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        first, second, _ = world.segments()
        await world.remote([second])
        world.bucket.faults.delay_s = (5, 5)
        world.open_tier()
        began = world.env.clock.monotonic()
        got = split((await take(world, "t", 35))[0])
        assert got == batches[35:40]
        assert world.env.clock.monotonic() - began < 1
        assert first.row.local

    simulated(main)


# -- Bounds


@pytest.mark.slow
def test_held_views_use_at_most_half_of_cache() -> None:
    """Responses of clients that do not read: their bytes stay unchanged."""

    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900, cuts=1)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=8)
        partition = world.find("t")
        held: list[tuple[int, list[Buffer]]] = []
        for offset in range(0, 900, 15):
            plan = partition.plan(offset, 2000, partition.high_watermark, True)
            held.append((offset, await partition.log.read(plan)))
            assert cold.tier(0).cache.leased <= 4
            assert len(cold.tier(0).cache) <= 8
        assert cold.tier(0).cache.leased == 4
        for offset, views in held:
            got = split(b"".join(views))
            assert got
            assert got == batches[offset : offset + len(got)]
        del held, views, plan
        gc.collect()
        assert cold.tier(0).cache.leased == 0

    simulated(main)


def test_batch_larger_than_cache_is_read() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=12, size=40_000)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=2)
        assert await whole(world) == batches
        assert cold.tier(0).cache.slots * BLOCK_BYTES < len(batches[0])

    simulated(main)


def test_reads_respect_rate_limit() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=300)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=2)
        world.config.remote_log_manager_fetch_max_bytes_per_second = 20_000
        began = world.env.clock.monotonic()
        for offset in range(0, 300, 10):
            await take(world, "t", offset, 100)
        seconds = world.env.clock.monotonic() - began
        assert cold.counts.bytes_read > 100_000
        assert seconds >= (cold.counts.bytes_read - 2 * BLOCK_BYTES) / 20_000 - 1

    simulated(main)
