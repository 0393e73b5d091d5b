"""Moves of a tier with damaged objects: damage is never moved as if it were sound."""

from __future__ import annotations

import re

import pytest

from tests.kit.tier.world import TierWorld, read_partition
from tests.tiering.test_move import (
    NEW,
    SETTLE_S,
    Moving,
    check_moved,
    filled,
    live,
    segments_in,
    two_buckets,  # noqa: F401  (a fixture, by name)
)


@pytest.mark.parametrize("skip_lost", [False, True])
def test_damaged_batch_is_not_moved(world: TierWorld, skip_lost: bool) -> None:
    async def act(process: Moving) -> None:
        await filled(process)
        key = min(segments_in(world.bucket))
        data = bytearray(world.bucket.data(key))
        data[150] ^= 1
        world.bucket.store(key, bytes(data))
        mover = process.tiering.mover
        await mover.start_move(NEW, skip_lost)
        if not skip_lost:
            await process.moved("stuck")
            (failed,) = mover.progress.failed
            assert re.fullmatch(
                rf"{key}: offsets \d+-\d+ of t-\d are damaged: bytes 64-\d+", failed
            )
            return
        await process.moved("waiting", "done")
        assert not mover.progress.failed
        lost = 0
        for partition in await process.partitions():
            found = await read_partition(partition, 0)
            lost += partition.high_watermark - len(found)
        assert lost == 3

    live(world, act)


def test_sound_file_is_uploaded_instead_of_damaged_object(world: TierWorld) -> None:
    async def act(process: Moving) -> None:
        await process.create("t", 1, retention_ms="-1", tiering_min_object_bytes="1")
        await process.fill(1)
        await process.env.sleep(SETTLE_S)
        for key in segments_in(world.bucket):
            data = bytearray(world.bucket.data(key))
            data[150] ^= 1
            world.bucket.store(key, bytes(data))
        await process.tiering.mover.start_move(NEW)
        await process.moved("waiting", "done")
        await process.check()

    live(world, act)
    check_moved(world)
