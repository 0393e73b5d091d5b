"""Tiers of brokers that were started later.

Covers: kafkawire.tiering.store.tiers.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from kafkawire.offsets.catalog.port import CURRENT, TierRow
from kafkawire.tiering.store.tiers import RELOAD_INTERVAL_S, Tiers
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

URL = "file:///tier"


class Rows:
    """The tiers in SQL, which answers after a time."""

    def __init__(self) -> None:
        self.rows = [TierRow(0, URL, CURRENT, 0, 1)]
        self.reads = 0

    async def tiers(self) -> list[TierRow]:
        self.reads += 1
        found = list(self.rows)
        await asyncio.sleep(0.1)
        return found


def tiers_in(loop: simloop.SimLoop, rows: Rows) -> Tiers:
    env = sim_env(loop, random.Random(1), MemFileSystem())
    storage: Any = rows
    store: Any = FakeStore(FakeBucket(), env.fs)
    unused: Any = None
    return Tiers(env, storage, unused, unused, URL, store, "data", 1)


def test_readers_of_an_unknown_tier_wait_for_the_search_that_another_one_began() -> None:
    """A Fetch of two partitions whose former leader was started later than this broker."""
    loop, rows = simloop.SimLoop(), Rows()

    async def main() -> None:
        tiers = tiers_in(loop, rows)
        tiers.rows = await rows.tiers()
        rows.rows.append(TierRow(7, f"{URL}/nodes/2", CURRENT, 0, 2))
        known: list[bool] = []

        async def read() -> None:
            await tiers.reload(7)
            known.append(any(row.id == 7 for row in tiers.rows))

        await asyncio.gather(read(), read())
        assert known == [True, True]
        rows.rows.append(TierRow(8, f"{URL}/nodes/3", CURRENT, 0, 3))
        await tiers.reload(8)
        assert any(row.id == 8 for row in tiers.rows)
        await tiers.reload(8)

    simloop.run(loop, main())
    assert rows.reads == 3
    assert loop.now < 2 * RELOAD_INTERVAL_S
