"""Requests of the remote tier to the store: few for many partitions, none for idle ones.

An hour in virtual time at the default settings of tiering; the disk, SQL and the bucket are the
simulation's. The number of requests does not depend on the number of partitions, so a few hundred
represent ten thousand.
"""

from __future__ import annotations

import pytest

from kafkawire.log.partition.partition import Partition
from tests.kit.tier.world import TierProcess, TierWorld

HOUR_S = 3600
DEFAULTS = {
    "journal_bytes": 1 << 22,  # holds an hour of these; the disk is in memory
    "journal_entries": 500_000,
    "cut_interval_ms": 1000,
    "journal_roll_ms": 600_000,
    "segment_dead_max_ms": 43_200_000,
    "file_delete_delay_ms": 60_000,
    "log_retention_check_interval_ms": 300_000,
    "log_flush_offset_checkpoint_interval_ms": 60_000,
    "log_cleaner_backoff_ms": 15_000,
    "tier_delete_delay_ms": 3_600_000,
    "tier_manifest_fold": 64,
    "tier_retry_max_ms": 60_000,
    "busy_disk_ms": 60_000,
}


def requests_of_an_hour(partitions: int, every_s: int, *, restart: bool = False) -> dict[str, int]:
    """Requests by kind; each partition gets a small batch at this interval in seconds (0: none)."""
    world = TierWorld(1, **DEFAULTS)

    async def trickle(life: TierProcess, some: list[Partition]) -> None:
        for second in range(0, HOUR_S, 10):
            for at, partition in enumerate(some):
                if every_s and (second // 10 + at) % (every_s // 10) == 0:
                    life.append(partition, 1)
            await life.log.commit_log.wait_until_committed()
            await life.env.sleep(10)

    async def first() -> None:
        await life.start()
        some = await life.create("t", partitions)
        life.append(some[0], 1)
        await life.log.commit_log.wait_until_committed()
        await life.env.sleep(600)
        world.bucket.requests.clear()
        if not restart:
            await trickle(life, some)
        await life.close()

    life = TierProcess(world)
    life.run(first)
    if restart:

        async def second() -> None:
            await life.start()
            await life.env.sleep(600)
            world.bucket.requests.clear()
            await trickle(life, await life.partitions())
            await life.close()

        life = TierProcess(world)
        life.run(second)
    check_all_uploaded(world)
    return dict(world.bucket.requests)


def check_all_uploaded(world: TierWorld) -> None:
    """Check that the counted requests have uploaded everything."""
    assert [key for key in world.bucket.objects if key.startswith("segments/")]


@pytest.mark.slow
def test_hour_of_slow_traffic_costs_two_puts_per_cut() -> None:
    """A cut every 150 s makes an object and a delta; 2,000 is the bound for 10,000 partitions."""
    many = requests_of_an_hour(40, 120)
    cuts = HOUR_S / 150
    assert cuts <= many["put"] <= 2 * cuts + 10  # however many partitions there are
    assert many.get("list", 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_idle_partitions_make_no_requests(restart: bool) -> None:
    assert requests_of_an_hour(20, 0, restart=restart) == {}
