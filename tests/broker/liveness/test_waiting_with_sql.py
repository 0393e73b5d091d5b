"""Waiting until a broker that runs on another machine has ended there, with real SQL.

Covers: kafkawire.broker.liveness.takeover, kafkawire.metadata.heartbeats,
kafkawire.server.worker.ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kafkawire.broker.liveness.takeover import (
    INTERVAL_S,
    RETURNING,
    end_returning,
    is_returning,
    read_returning,
    wait_until_ended,
)
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata import heartbeats
from kafkawire.metadata.catalog import BROKER_RESOURCE, ConfigChange
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
        return cast("Env", self)


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


async def no_step() -> None:
    return


class Found:
    """A copy that is there; `when`: a function of whether it is known that there is none."""

    def __init__(self, when: Callable[[bool], bool] = lambda _: True) -> None:
        self._when = when

    async def finds(self, *, lost: bool) -> bool:
        return self._when(lost)


async def test_broker_without_heartbeat_has_ended(start: Start) -> None:
    metadata = await start()
    steps = Steps(nothing)
    assert await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found()) == 0
    other = await guest(start)
    epoch = other._catalog.brokers[1].epoch
    await other.beat(1)
    assert await metadata.transact(lambda session: heartbeats.read(session, 1)) == (epoch, 1)
    await other.end_heartbeats(1)
    assert await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found()) == epoch > 0
    assert steps.now_s == 0


async def test_broker_that_was_killed_has_ended_after_the_lease(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, other = await start(), await guest(start)
    await other.beat(1)
    steps = Steps(nothing)
    epoch = await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found())
    assert epoch == other._catalog.brokers[1].epoch
    assert steps.now_s == LEASE_S
    assert "runs already" not in caplog.text


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
        assert await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found()) > 0
    assert asked_s == [DELAY_S + INTERVAL_S]
    assert [each for each in caplog.messages if "it is asked to in 20 s" in each] != []
    catalog = await metadata.reload()
    assert is_returning(catalog, 1)
    await end_returning(metadata, catalog, 1)
    assert not is_returning(await other.reload(), 1)
    await end_returning(metadata, await metadata.reload(), 1)


async def test_broker_that_does_not_end_is_named_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started with the same node.id, and takes no notice."""
    metadata, other = await start(), await guest(start)

    async def step(now_s: float) -> None:
        if now_s < DELAY_S + 4 * LEASE_S:
            await other.beat(1)

    await other.beat(1)
    with caplog.at_level(logging.WARNING):
        await wait_until_ended(Steps(step).env, metadata, CONFIG, no_step, Found())
    assert len([each for each in caplog.messages if "node.id of its own" in each]) == 1


async def test_request_is_removed_when_the_start_is_stopped(start: Start) -> None:
    metadata, other = await start(), await guest(start)
    asked: list[bool] = []

    async def step(_: float) -> None:
        asked.append(is_returning(await other.reload(), 1))
        await other.beat(1)
        if asked[-1]:
            waiting.cancel()

    await other.beat(1)
    waiting = asyncio.ensure_future(
        wait_until_ended(Steps(step).env, metadata, CONFIG, no_step, Found())
    )
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked[-1]
    assert not is_returning(await other.reload(), 1)


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
    await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found())
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
        await wait_until_ended(Steps(nothing).env, metadata, CONFIG, no_step, Found())

    async def step(now_s: float) -> None:
        nonlocal fails
        fails = 2 <= now_s < 10 or DELAY_S <= now_s < DELAY_S + 1
        if now_s < 2:
            await other.beat(1)

    fails = False
    await other.beat(1)
    steps = Steps(step)
    await wait_until_ended(steps.env, metadata, CONFIG, no_step, Found())
    assert 10 + LEASE_S <= steps.now_s <= 10 + LEASE_S + 2 * INTERVAL_S  # the lease begins again


async def test_what_others_need_is_done_while_it_waits(start: Start) -> None:
    """Not before the broker was seen to run elsewhere, and again if SQL fails."""
    metadata, other = await start(), await guest(start)
    done_s: list[float] = []
    failures = 2

    async def meanwhile() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise MetadataError("gone")
        done_s.append(steps.now_s)

    async def step(now_s: float) -> None:
        if now_s < 10:
            await other.beat(1)

    steps = Steps(step)
    await wait_until_ended(steps.env, metadata, CONFIG, meanwhile, Found())
    assert done_s == []  # it runs nowhere
    await other.beat(1)
    steps = Steps(step)
    await wait_until_ended(steps.env, metadata, CONFIG, meanwhile, Found())
    assert len(done_s) == 1
    assert done_s[0] <= 4 * INTERVAL_S


async def test_request_to_return_is_read_from_sql(start: Start) -> None:
    metadata, other = await start(), await guest(start)

    async def reads() -> bool:
        return await other.transact(lambda session: read_returning(session, 1))

    assert not await reads()
    await metadata.alter_configs([ConfigChange(BROKER_RESOURCE, "1", RETURNING, "true")])
    assert await reads()
    await end_returning(metadata, await metadata.reload(), 1)
    assert not await reads()


async def test_broker_is_left_to_others_until_its_log_can_be_copied(start: Start) -> None:
    """It is neither started here, when it runs nowhere, nor asked to return."""
    metadata, other = await start(), await guest(start)
    asked_s: list[float] = []

    async def step(now_s: float) -> None:
        if now_s < 200:
            asked_s.extend([now_s] * is_returning(await other.reload(), 1))
            await other.beat(1)

    await other.beat(1)
    steps = Steps(step)
    copies = Found(lambda lost: steps.now_s > (300 if lost else 100))
    assert await wait_until_ended(steps.env, metadata, CONFIG, no_step, copies) > 0
    assert 100 < asked_s[0] < 103
    assert 300 < steps.now_s < 303
