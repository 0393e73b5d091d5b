"""Heartbeats of a broker that reads its log at its start.

Covers: kafkawire.broker.liveness.starting.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.liveness.starting import BrokerReturns, StartingHeartbeats
from kafkawire.log.manager import Log
from kafkawire.metadata import heartbeats
from kafkawire.metadata.catalog import BrokerInfo, Catalog
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded, MetadataError
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem
from tests.kit.server import running


class Table:
    """The row of the broker: its numbers so far; `failure`: of the next calls."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.failure: Exception | None = None
        self.is_returning = False
        self.ended = 0

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        assert (node_id, starting) == (1, True)
        if self.failure is not None:
            raise self.failure
        self.numbers.append(-1 - len(self.numbers))
        return {1: self.numbers[-1]}

    async def end_heartbeats(self, node_id: int) -> None:
        assert self.is_returning, "another machine waits for the lease"
        self.ended += 1

    async def transact(self, _: Callable[[Any], Any]) -> bool:
        return self.is_returning


def run(
    work: Callable[[Table, StartingHeartbeats], Awaitable[None]], *, guest: bool = False
) -> Table:
    """Run `work` in virtual time; return the table."""
    loop = simloop.SimLoop()
    table = Table()
    env = sim_env(loop, random.Random(1), MemFileSystem())
    simloop.run(loop, work(table, StartingHeartbeats(env, table, guest=guest)))  # type: ignore[arg-type]
    return table


def catalog(*nodes: int) -> Catalog:
    made = Catalog("cluster")
    for node in nodes:
        made.add_broker(BrokerInfo(node, {}, None))
    return made


def test_they_are_stored_at_once_and_each_second_until_the_end() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        await starting.start(1, catalog(1, 2))
        assert table.numbers[0] == -1
        await asyncio.sleep(10.5)
        await starting.close()
        await starting.close()
        stored = len(table.numbers)
        assert 10 <= stored <= 12
        await asyncio.sleep(10)
        assert len(table.numbers) == stored

    run(work)


def test_single_broker_stores_none() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        await starting.start(1, catalog(1))
        await asyncio.sleep(10)
        await starting.close()

    assert run(work).numbers == []


def test_they_go_on_after_failures_of_sql() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        table.failure = MetadataError("gone")
        await starting.start(1, catalog(1, 2))
        await asyncio.sleep(5)
        table.failure = None
        await asyncio.sleep(5)
        await starting.close()

    assert len(run(work).numbers) >= 4


def test_superseded_start_stores_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        await starting.start(1, catalog(1, 2))
        table.failure = BrokerSuperseded(1, 7)
        await asyncio.sleep(5)
        table.failure = None
        await asyncio.sleep(5)
        await starting.close()

    assert len(run(work).numbers) == 1
    assert "stores no more heartbeats" in caplog.text


def covered(*, guest: bool) -> tuple[Table, str]:
    """A start that waits for 30 s, whose broker is asked to return after 10 s; return what it ends
    with."""
    ends: list[str] = []

    async def work(table: Table, starting: StartingHeartbeats) -> None:
        async def start() -> str:
            await starting.start(1, catalog(1, 2))
            await asyncio.sleep(30)
            return "started"

        asyncio.get_running_loop().call_later(10, setattr, table, "is_returning", True)
        try:
            ends.append(await starting.cover(start()))
        except BrokerReturns as why:
            ends.append(str(why))
            await asyncio.sleep(0)  # the cancellation was taken back
        stored = len(table.numbers)
        await asyncio.sleep(10)
        assert len(table.numbers) == stored

    return run(work, guest=guest), ends[0]


def test_start_elsewhere_ends_when_the_broker_is_asked_to_return() -> None:
    table, end = covered(guest=True)
    assert 10 <= len(table.numbers) <= 12
    assert end == "broker 1 is not started here: its own machine runs again"
    assert table.ended == 1


def test_start_on_its_own_machine_is_not_asked_to_return() -> None:
    table, end = covered(guest=False)
    assert (end, table.ended) == ("started", 0)
    assert len(table.numbers) >= 29


def test_start_that_is_cancelled_is_not_taken_for_a_return() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        async def start() -> None:
            await starting.start(1, catalog(1, 2))
            await asyncio.sleep(30)

        running = asyncio.create_task(starting.cover(start()))
        await asyncio.sleep(5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert run(work, guest=True).ended == 0


async def test_broker_stores_them_while_it_opens_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sql.db"
    store = SqlMetadata(url)
    await store.open()
    await store.register_broker(2, {}, None)
    seen: list[int | None] = []
    opened = Log.open

    async def number() -> int | None:
        return (await store.transact(lambda session: heartbeats.read(session, 1)))[1]

    async def opening(*args: Any, **named: Any) -> Log:
        seen.append(await number())
        return await opened(*args, **named)

    monkeypatch.setattr(Log, "open", opening)
    async with running(tmp_path / "data", metadata=url) as server:
        assert seen == [-1]
        await server.broker.liveness.beat()
        assert (await number() or 0) > 0
    assert await number() is None
    await store.close()
