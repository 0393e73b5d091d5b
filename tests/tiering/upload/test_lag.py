"""The limit `tiering.max.lag.ms`: a record acknowledged at t is in the bucket by t + lag.

In virtual time, with a bucket that takes a while for each request; with any traffic, and with long
concurrent rewrites.

Covers: kafkawire.log.partition.topic_configs, kafkawire.tiering.upload.lag_monitor.
"""

from __future__ import annotations

import random
from collections import deque
from statistics import median

import pytest

from kafkawire.log.partition.partition import Partition
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.world import TierProcess, TierWorld

STEP_S = 0.1
LARGE = {
    "journal_bytes": 1 << 22,
    "journal_entries": 500_000,
    "hot_bytes": 1 << 26,
    "cut_interval_ms": 1000,
    "journal_roll_ms": 600_000,
    "busy_disk_ms": 60_000,
}


class Watch:
    """Acknowledged records of one partition with their times; checks whether they are uploaded in
    time."""

    def __init__(self, life: TierProcess, partition: Partition, lag_s: float) -> None:
        self.life = life
        self.partition = partition
        self.lag_s = lag_s
        self.waiting: deque[tuple[float, int]] = deque()
        self.worst_s = 0.0
        self.cuts: list[float] = []
        self._cut_seen = 0

    async def append(self, count: int) -> None:
        self.life.append(self.partition, count)
        await self.life.log.commit_log.wait_until_committed()
        self.waiting.append((self.life.loop.now, self.partition.high_watermark))

    def scan(self) -> None:
        now, partition = self.life.loop.now, self.partition
        for at, end in self.waiting:
            if self._cut_seen < end <= partition.cut_offset:
                self.cuts.append(now - at)
                self._cut_seen = end
        while self.waiting and self.waiting[0][1] <= partition.commit_offset:
            at, _ = self.waiting.popleft()
            self.worst_s = max(self.worst_s, now - at)
        if self.waiting:
            assert now - self.waiting[0][0] <= self.lag_s, self.waiting[0]


def worst(
    lag_ms: int, gap_s: tuple[float, float], seconds: float, burst: int = 3, **values: int
) -> Watch:
    """Produce at random moments for this many seconds, and wait until all is uploaded."""
    world = TierWorld(7, **{**LARGE, **values})
    rng = random.Random(7)
    life = TierProcess(world)
    found: list[Watch] = []

    async def main() -> None:
        await life.start()
        world.bucket.faults = StoreFaults(delay_s=(0.01, 0.1))
        (partition,) = await life.create("t", tiering_max_lag_ms=str(lag_ms))
        (local,) = await life.create("local", remote_storage_enable="false")
        watch = Watch(life, partition, lag_ms / 1000)
        found.append(watch)
        next_at = life.loop.now
        until = life.loop.now + seconds
        while life.loop.now < until or watch.waiting:
            if life.loop.now < until and life.loop.now >= next_at:
                await watch.append(rng.randint(1, burst))
                life.append(local, 1)
                next_at = life.loop.now + rng.uniform(*gap_s)
            watch.scan()
            await life.env.sleep(STEP_S)
        assert partition.commit_offset == partition.high_watermark
        assert local.commit_offset == 0
        assert not life.tiering.upload_lag.episodes
        await life.close()

    life.run(main)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag_ms", "gap_s", "seconds"),
    [
        (5_000, (0.05, 0.3), 30),  # all the time
        (5_000, (4.0, 30.0), 300),  # now and then
        (60_000, (1.0, 20.0), 600),
        (300_000, (10.0, 400.0), 4000),
    ],
)
def test_record_is_in_bucket_within_lag(
    lag_ms: int, gap_s: tuple[float, float], seconds: float
) -> None:
    watch = worst(lag_ms, gap_s, seconds)
    assert 0 < watch.worst_s <= lag_ms / 1000
    # At most half of it is for cutting, with a scan and a write to spare.
    assert max(watch.cuts) <= lag_ms / 2000 + 0.5
    if lag_ms >= 60_000:  # small objects do wait: each is a request
        assert watch.worst_s > 0.7 * lag_ms / 1000


@pytest.mark.slow
def test_full_journals_are_cut_early_within_lag() -> None:
    """Little of the lag has passed then, and all of the rest is the upload's."""
    watch = worst(60_000, (0.5, 1.0), 200, burst=60, journal_bytes=1 << 15, hot_bytes=0)
    assert median(watch.cuts) < 15  # a journal is full in some seconds
    assert watch.worst_s > 40
