"""Waiting until a broker that runs on another machine has ended there, with real SQL.

Covers: kafkawire.broker.liveness.waiting, kafkawire.metadata.heartbeats,
kafkawire.server.worker.returning.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kafkawire.broker.liveness.waiting import (
    INTERVAL_S,
    end_returning,
    is_returning,
    wait_until_ended,
)
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata import heartbeats
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError
from tests.kit.env import SettableClock

LEASE_S, DELAY_S = 5.0, 20.0
CONFIG = BrokerConfig({"node.id": "1", "lease.ms": "5000", "cluster.return.delay.ms": "20000"})
Step = Callable[[float], Awaitable[object]]


class Steps:
    """An Env whose sleeps call a function with the seconds since the start, and pass at once."""

    def __init__(self, step: Step) -> None:
        self.clock = SettableClock()
        self._began = self.clock.monotonic()
        self._step = step

    @property
    def now_s(self) -> float:
        return self.clock.monotonic() - self._began

    async def sleep(self, delay_s: float) -> None:
        self.clock.ms += round(delay_s * 1000)
        assert self.now_s < 600, "it waits forever"
        await self._step(self.now_s)

    @property
    def env(self) -> Env:
        return cast(Env, self)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[SqlMetadata]]]:
    """Open stores that share one database, one per process."""
    made: list[SqlMetadata] = []

    async def new() -> SqlMetadata:
        made.append(SqlMetadata(f"sqlite:///{tmp_path}/metadata.db"))
        await made[-1].open()
        return made[-1]

    yield new
    for store in made:
        await store.close()


Start = Callable[[], Awaitable[SqlMetadata]]


async def guest(start: Start) -> SqlMetadata:
    """Another machine's process of broker 1."""
    store = await start()
    await store.register_broker(1, {}, None)
    return store


async def nothing(_: float) -> None:
    return


async def test_broker_without_heartbeat_has_ended(start: Start) -> None:
    metadata = await start()
    steps = Steps(nothing)
    assert await wait_until_ended(steps.env, metadata, CONFIG) == 0
    other = await guest(start)
    epoch = other._catalog.brokers[1].epoch
    await other.beat(1)
    assert await metadata.transact(lambda session: heartbeats.read(session, 1)) == (epoch, 1)
    await other.end_heartbeats(1)
    assert await wait_until_ended(steps.env, metadata, CONFIG) == epoch > 0
    assert steps.now_s == 0


async def test_broker_that_was_killed_has_ended_after_the_lease(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, other = await start(), await guest(start)
    await other.beat(1)
    steps = Steps(nothing)
    epoch = await wait_until_ended(steps.env, metadata, CONFIG)
    assert epoch == other._catalog.brokers[1].epoch
    assert steps.now_s == LEASE_S
    assert "runs on another machine" not in caplog.text


async def test_broker_that_runs_is_asked_to_end_after_the_delay(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, other = await start(), await guest(start)
    asked_s: list[float] = []

    async def step(now_s: float) -> None:
        catalog = await other.reload()
        if is_returning(catalog, 1):
            asked_s.append(now_s)
            await other.end_heartbeats(1)
        else:
            await other.beat(1)

    await other.beat(1)
    steps = Steps(step)
    with caplog.at_level(logging.WARNING):
        assert await wait_until_ended(steps.env, metadata, CONFIG) > 0
    assert asked_s == [DELAY_S + INTERVAL_S]
    assert [each for each in caplog.messages if "it is asked to in 20 s" in each] != []
    catalog = await metadata.reload()
    assert is_returning(catalog, 1)
    await end_returning(metadata, catalog, 1)
    assert not is_returning(await other.reload(), 1)
    await end_returning(metadata, await metadata.reload(), 1)


async def test_request_is_repeated_when_another_start_has_removed_it(start: Start) -> None:
    metadata, other = await start(), await guest(start)
    removed: list[float] = []

    async def step(now_s: float) -> None:
        catalog = await other.reload()
        if is_returning(catalog, 1):
            if removed:
                await other.end_heartbeats(1)
                return
            await end_returning(other, catalog, 1)
            removed.append(now_s)
        await other.beat(1)

    await other.beat(1)
    steps = Steps(step)
    await wait_until_ended(steps.env, metadata, CONFIG)
    assert len(removed) == 1
    assert steps.now_s <= DELAY_S + LEASE_S + 2 * INTERVAL_S


async def test_failures_of_sql_are_waited_for_once_the_broker_was_seen(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, other = await start(), await guest(start)
    fails = True
    transact, alter = metadata.transact, metadata.alter_configs

    async def broken(*arguments: Any) -> Any:
        if fails:
            raise MetadataError("gone")
        return await transact(*arguments)

    async def not_altered(*arguments: Any) -> Any:
        if fails:
            raise MetadataError("gone")
        await alter(*arguments)

    monkeypatch.setattr(metadata, "transact", broken)
    monkeypatch.setattr(metadata, "alter_configs", not_altered)
    with pytest.raises(MetadataError):
        await wait_until_ended(Steps(nothing).env, metadata, CONFIG)

    async def step(now_s: float) -> None:
        nonlocal fails
        fails = 2 <= now_s < 10 or DELAY_S <= now_s < DELAY_S + 1
        if now_s < 2:
            await other.beat(1)

    fails = False
    await other.beat(1)
    steps = Steps(step)
    await wait_until_ended(steps.env, metadata, CONFIG)
    assert 10 + LEASE_S <= steps.now_s <= 10 + LEASE_S + 2 * INTERVAL_S  # the lease begins again
