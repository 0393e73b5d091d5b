"""A tiered broker in virtual time whose log lines are captured, for tests of failures."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.life import SETTLE_S, Life
from tests.kit.tier.world import TierWorld

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
HOUR_S = 3600.0 if SEEDS >= 50 else 900.0
WARNINGS_PER_HOUR = 300
"""Each component that waits for the bucket tries once in `tier.retry.max.ms`, and logs why it
failed."""
CALM = {
    "tier_retry_max_ms": 60_000,
    "cut_interval_ms": 2000,
    "log_retention_check_interval_ms": 60_000,
    "log_cleaner_backoff_ms": 15_000,
}
"""Settings closer to the defaults than those of the simulation, for tests that span an hour."""


class Lines(logging.Handler):
    """The log lines at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def count(self, level: int) -> int:
        """The number of lines of one level."""
        return sum(record.levelno == level for record in self.records)

    def texts(self, level: int) -> list[str]:
        """The lines of one level."""
        return [record.getMessage() for record in self.records if record.levelno == level]


@contextmanager
def listening() -> Iterator[Lines]:
    """Capture what is logged meanwhile."""
    lines, root = Lines(), logging.getLogger()
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)


def live(
    act: Callable[[Life], Awaitable[None]], faults: StoreFaults | None = None, **values: int
) -> Lines:
    """Run one broker while `act` happens; then the faults end, and everything must settle. `faults`
    are those of its start."""
    world = TierWorld(1, **{**CALM, **values})
    world.bucket.faults = faults or StoreFaults()
    life = Life(world)

    async def main() -> None:
        await life.start()
        await act(life)
        world.bucket.faults = StoreFaults()
        await life.env.sleep(SETTLE_S)
        await life.settle()
        await life.close()

    with listening() as lines:
        life.run(main)
    assert not life.loop.failures
    return lines


async def trickle(life: Life, name: str, seconds: float, every_s: float = 30.0) -> None:
    """Append records now and then."""
    end = life.loop.now + seconds
    while life.loop.now < end:
        for row in life.catalog.by_name[name].partitions:
            life.append(await life.partition(row.number), 1)
        await life.env.sleep(every_s)


async def uploaded(life: Life, name: str) -> bool:
    """Whether all of a topic is in the bucket."""
    rows = [await life.partition(row.number) for row in life.catalog.by_name[name].partitions]
    return all(partition.commit_offset == partition.high_watermark for partition in rows)
