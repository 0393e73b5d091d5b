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

from kafkawire.broker.liveness.starting import StartingHeartbeats
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

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        assert (node_id, starting) == (1, True)
        if self.failure is not None:
            raise self.failure
        self.numbers.append(-1 - len(self.numbers))
        return {1: self.numbers[-1]}

    async def end_heartbeats(self, node_id: int) -> None:
        raise AssertionError("a start does not end them")


def run(work: Callable[[Table, StartingHeartbeats], Awaitable[None]]) -> Table:
    """Run `work` in virtual time; return the table."""
    loop = simloop.SimLoop()
    table = Table()
    env = sim_env(loop, random.Random(1), MemFileSystem())
    simloop.run(loop, work(table, StartingHeartbeats(env, table)))  # type: ignore[arg-type]
    return table


def catalog(*nodes: int) -> Catalog:
    made = Catalog("cluster")
    for node in nodes:
        made.add_broker(BrokerInfo(node, {}, None))
    return made


def test_they_are_stored_at_once_and_each_second_until_the_end() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        await starting.begin(1, catalog(1, 2))
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
        await starting.begin(1, catalog(1))
        await asyncio.sleep(10)
        await starting.close()

    assert run(work).numbers == []


def test_they_go_on_after_failures_of_sql() -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        table.failure = MetadataError("gone")
        await starting.begin(1, catalog(1, 2))
        await asyncio.sleep(5)
        table.failure = None
        await asyncio.sleep(5)
        await starting.close()

    assert len(run(work).numbers) >= 4


def test_superseded_start_stores_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def work(table: Table, starting: StartingHeartbeats) -> None:
        await starting.begin(1, catalog(1, 2))
        table.failure = BrokerSuperseded(1, 7)
        await asyncio.sleep(5)
        table.failure = None
        await asyncio.sleep(5)
        await starting.close()

    assert len(run(work).numbers) == 1
    assert "stores no more heartbeats" in caplog.text


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
