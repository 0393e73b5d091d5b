"""The hand-over of partitions before a broker stops, with a mover that only counts.

Covers: kafkawire.broker.moving.departure.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.moving import departure
from kafkawire.broker.moving.departure import end_stopping, hand_over
from kafkawire.broker.moving.plan import STOPPING
from kafkawire.metadata.store import MetadataError
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata


class Mover:
    """`left`: partitions that can be handed over, one less at each check."""

    def __init__(self, left: int, per_check: int = 1) -> None:
        self.left = left
        self.per_check = per_check
        self.leaves = False

    def leave(self) -> None:
        self.leaves = True

    async def remaining(self) -> int:
        return self.left

    def check(self) -> None:
        if self.leaves:
            self.left -= self.per_check


class Stop:
    """Broker 1 of two, which stops."""

    def __init__(self, mover: Any, *, enabled: bool = True) -> None:
        self.mover = mover
        self.faults: dict[str, Exception] = {}
        self.metadata = MemoryMetadata(MemoryDatabase(), fault=self.faults.get)
        self.enabled = enabled

    async def run(self, others: int = 1) -> str | None:
        """Stop; return the stored setting."""
        await self.metadata.open()
        for node in range(1, others + 2):
            await self.metadata.register_broker(node, {}, None)
        catalog = await MemoryMetadata(self.metadata._database).open()
        broker: Any = SimpleNamespace(
            node_id=1, metadata=self.metadata, catalog=catalog,
            config=SimpleNamespace(controlled_shutdown_enable=self.enabled),
            env=SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)),
        )  # fmt: skip
        await hand_over(broker, self.mover)
        return await self.stored()

    async def stored(self) -> str | None:
        """Return the setting as another process reads it."""
        catalog = await MemoryMetadata(self.metadata._database).open()
        return catalog.broker_configs(1).get(STOPPING)


async def test_stop_waits_until_everything_is_handed_over() -> None:
    mover = Mover(3)
    stop = Stop(mover)
    assert await stop.run() == "true"
    assert (mover.leaves, mover.left) == (True, 0)
    catalog = await MemoryMetadata(stop.metadata._database).open()
    await end_stopping(stop.metadata, catalog, 1)
    assert await stop.stored() is None
    await end_stopping(stop.metadata, catalog, 2)  # it did not stop in this way


@pytest.mark.parametrize(("left", "enabled", "others"), [(0, True, 1), (3, False, 1), (3, True, 0)])
async def test_stop_without_need_changes_nothing(left: int, enabled: bool, others: int) -> None:
    mover = Mover(left)
    assert await Stop(mover, enabled=enabled).run(others) is None
    assert not mover.leaves


async def test_stop_continues_when_moves_take_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(departure, "LEAVE_WITHIN_S", 0.05)
    mover = Mover(3, per_check=0)
    assert await Stop(mover).run() == "true"
    assert "3 partitions not handed over before this broker stops: it takes longer" in caplog.text


async def test_stop_continues_without_the_database(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop(Mover(3))
    stop.faults["alter_configs"] = MetadataError("the database is gone")
    assert await stop.run() is None
    assert "the database is gone. Clients wait" in caplog.text
    assert not stop.mover.leaves
