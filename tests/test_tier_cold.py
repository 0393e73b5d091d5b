"""Cold reads: the same bytes wherever segments lie, within the limits, whatever goes wrong."""

from __future__ import annotations

import random

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.configs import TierLevel
from tests.kit.cold import ColdWorld, simulated, take
from tests.kit.segments import split


async def prepared(world: ColdWorld, count: int = 120, size: int = 500, cuts: int = 3) -> None:
    """A topic `t` in some segments, and the last records in the journals."""
    await world.start()
    await world.topic("t")
    for _ in range(cuts):
        await world.fill("t", count // cuts, size)
        await world.cut()
    await world.fill("t", 5, size)


async def whole(world: ColdWorld, name: str = "t") -> list[bytes]:
    """Every batch, as it is read now."""
    partition = world.find(name)
    found: list[bytes] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        data, _ = await take(world, name, offset)
        found += split(data)
        offset = next(iter(iter_batches(found[-1])))[1].last_offset + 1
    return found


@pytest.mark.parametrize("seed", range(8))
def test_reads_are_the_same_wherever_segments_lie(seed: int) -> None:
    async def main(world: ColdWorld) -> None:
        rng = random.Random(seed)
        await prepared(world, size=rng.choice((60, 500, 3000)))
        batches = await whole(world)
        segments = world.segments()
        assert len(segments) == 3
        await world.remote(rng.sample(segments, rng.choice((1, 2, 3))), local=rng.random() < 0.2)
        world.open_tier(rng.choice((1, 2, 5, 64)))
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

    simulated(main, seed, journal_bytes=random.Random(seed).choice((16 << 10, 100 << 10)))
