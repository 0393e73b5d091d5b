"""The hand-over of partitions before a broker stops, with a mover that only counts.

Covers: kafkawire.broker.moving.controlled_shutdown.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.moving import controlled_shutdown
from kafkawire.broker.moving.controlled_shutdown import FOLLOWERS_S, ControlledShutdown
from kafkawire.broker.moving.plan import STOPPING
from kafkawire.metadata.store import MetadataError
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.waiting import until


class Mover:
    """`left`: partitions that can be handed over, `per_check` less at each check."""

    def __init__(self, left: int = 0, per_check: int = 1) -> None:
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


class Process:
    """A process of broker 1, the only one or one of two. `replicas`: what it knows of its
    followers."""

    def __init__(self, database: MemoryDatabase, *, enabled: bool = True, others: int = 1) -> None:
        self.faults: dict[str, Exception] = {}
        self.metadata = MemoryMetadata(database, fault=self.faults.get)
        self.replicas = SimpleNamespace(began=False, refusal=None)
        self.mover = Mover()
        self.now_s = 0.0
        self._enabled = enabled
        self._others = others

    async def open(self) -> Process:
        catalog = await self.metadata.open()
        for node in range(1, self._others + 2):
            await self.metadata.register_broker(node, {}, None)
        self._broker: Any = SimpleNamespace(
            node_id=1, metadata=self.metadata, catalog=catalog,
            config=SimpleNamespace(controlled_shutdown_enable=self._enabled),
            log=SimpleNamespace(commit_log=SimpleNamespace(follower_sink=self.replicas)),
            env=SimpleNamespace(
                sleep=self._sleep, clock=SimpleNamespace(monotonic=lambda: self.now_s),
                spawn=lambda work, name: asyncio.ensure_future(work),
            ),
        )  # fmt: skip
        mover: Any = self.mover
        self.shutdown = ControlledShutdown(self._broker, mover)
        return self

    async def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


async def stopping(database: MemoryDatabase) -> bool:
    """Return whether broker 1 is known to stop."""
    return STOPPING in (await MemoryMetadata(database).open()).broker_configs(1)


async def stopped(database: MemoryDatabase) -> None:
    """Stop broker 1, which hands over something."""
    process = await Process(database).open()
    process.mover.left = 3
    await process.shutdown.hand_over()
    assert (process.mover.leaves, process.mover.left) == (True, 0)
    assert await stopping(database)


async def test_start_has_partitions_moved_back_that_a_stop_has_handed_over() -> None:
    database = MemoryDatabase()
    await stopped(database)
    again = await Process(database).open()
    again.shutdown.check()
    await again.shutdown._task  # type: ignore[misc]
    assert not await stopping(database)
    await again.shutdown.close()
    other = await Process(database).open()
    other.shutdown.check()  # nothing was handed over
    await other.shutdown.close()


async def test_partitions_come_back_if_the_process_before_ends_after_the_start() -> None:
    """A machine takes its broker back while another one still hands over what it leads."""
    database = MemoryDatabase()
    process = await Process(database).open()
    process.shutdown.check()
    await stopped(database)
    process._broker.catalog = await process.metadata.open()  # as a poll of the catalog
    process.shutdown.check()
    await process.shutdown._task  # type: ignore[misc]
    assert not await stopping(database)


async def test_process_that_stops_takes_nothing_back() -> None:
    database = MemoryDatabase()
    process = await Process(database).open()
    process.mover.left = 3
    await process.shutdown.hand_over()
    process._broker.catalog = await process.metadata.open()
    process.shutdown.check()
    assert process.shutdown._task is None
    assert await stopping(database)


async def test_partitions_come_back_when_followers_are_in_sync() -> None:
    database = MemoryDatabase()
    await stopped(database)
    again = await Process(database).open()
    again.replicas.began, again.replicas.refusal = True, "no follower is in sync"
    again.shutdown.check()
    for _ in range(20):
        await asyncio.sleep(0)
    assert await stopping(database)
    again.replicas.refusal = None
    await again.shutdown._task  # type: ignore[misc]
    assert not await stopping(database)


async def test_partitions_come_back_without_followers_after_a_time() -> None:
    database = MemoryDatabase()
    await stopped(database)
    again = await Process(database).open()
    again.replicas.began, again.replicas.refusal = True, "no follower is in sync"
    again.shutdown.check()
    await again.shutdown._task  # type: ignore[misc]
    assert again.now_s >= FOLLOWERS_S
    assert not await stopping(database)


async def test_taking_back_waits_for_the_database(caplog: pytest.LogCaptureFixture) -> None:
    database = MemoryDatabase()
    await stopped(database)
    again = await Process(database).open()
    again.faults["alter_configs"] = MetadataError("the database is gone")
    again.shutdown.check()
    await until(lambda: "cannot be moved back to this broker yet" in caplog.text)
    await again.shutdown.close()
    assert await stopping(database)


@pytest.mark.parametrize(("left", "enabled", "others"), [(0, True, 1), (3, False, 1), (3, True, 0)])
async def test_stop_without_need_changes_nothing(left: int, enabled: bool, others: int) -> None:
    database = MemoryDatabase()
    process = await Process(database, enabled=enabled, others=others).open()
    process.mover.left = left
    await process.shutdown.hand_over()
    assert not process.mover.leaves
    assert not await stopping(database)


async def test_stop_continues_when_moves_take_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controlled_shutdown, "LEAVE_WITHIN_S", 0.05)
    process = await Process(MemoryDatabase()).open()
    process.mover.left, process.mover.per_check = 3, 0
    await process.shutdown.hand_over()
    assert "3 partitions not handed over before this broker stops: it takes longer" in caplog.text


async def test_stop_continues_without_the_database(caplog: pytest.LogCaptureFixture) -> None:
    process = await Process(MemoryDatabase()).open()
    process.mover.left = 3
    process.faults["alter_configs"] = MetadataError("the database is gone")
    await process.shutdown.hand_over()
    assert "the database is gone. Clients wait" in caplog.text
    assert not process.mover.leaves
