"""A broker that is stopped at any moment: no warning, no traceback, no task and no pin is left."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.faults import Lines, listening
from tests.kit.tier.life import Life
from tests.kit.tier.world import TierWorld

SEEDS = 20
LIVES = 3


def stopped(seed: int) -> tuple[Life, Lines]:
    """Stop a broker while it attaches, uploads, publishes or removes; return what it logs from then
    on."""
    random, world = Random(seed), TierWorld(seed, tier_upload_threads=1)
    world.bucket.faults = StoreFaults(delay_s=(0.01, 1.0))
    life = Life(world)
    lines = Lines()

    async def main() -> None:
        nonlocal lines
        await life.start()
        await life.topic("t", 3)
        producing = life.env.spawn(life.produce("t", 1000), "produce")
        await life.env.sleep(random.random() * 30)
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
        with listening() as lines:
            await life.close()
            await life.env.sleep(60)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    life.run(main)
    return life, lines


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_stop_at_any_moment_logs_no_failure(seed: int) -> None:
    for each in range(LIVES):
        life, lines = stopped(seed * LIVES + each)
        assert not [record.getMessage() for record in lines.records]
        pinned = [segment for segment in life.log.segments.store.by_id.values() if segment.pins]
        assert not pinned, pinned
