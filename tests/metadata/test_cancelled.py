"""Transactions whose caller is cancelled, at each await: the next transaction starts at once.

A broker that stops cancels its background tasks in the middle of transactions, and then stores its
last checkpoint. The exceptions are kept, like reference cycles keep them until the next collection.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import types
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from kafkawire.metadata import completion, pairing
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage
from tests.kit.postgres import new_database

MAX_STEPS = 300
Write = Callable[[SqlMetadata], Awaitable[Any]]


class Cancelling:
    """A call that is cancelled at its n-th await."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._work, self._left = work, at
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> bool:
        """Whether it was cancelled: False if it ended before."""
        self._task = asyncio.ensure_future(self._run())
        await asyncio.wait([self._task])
        return self.failure is not None

    async def _run(self) -> None:
        try:
            await self._steps()
        except asyncio.CancelledError as failure:
            self.failure = failure

    @types.coroutine
    def _steps(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        resume: Callable[[], Any] = lambda: steps.send(None)  # noqa: E731
        while True:
            try:
                waited_for = resume()
            except StopIteration:
                return
            if self._left == 0:
                assert self._task is not None
                self._task.cancel()
            self._left -= 1
            try:
                yield waited_for
                resume = lambda: steps.send(None)  # noqa: E731
            except BaseException as failure:
                raised = failure
                resume = lambda: steps.throw(raised)  # noqa: B023, E731


def change_and_read(session: Session) -> None:
    """Statements that change rows, then one with rows, then one of each."""
    pairing.pair(session, 1, bytes(16), 1)
    pairing.SeenInSql(metadata_id=bytes(16)).raise_generation(session, 1)
    session.rows("SELECT name FROM topics")
    session.run("UPDATE cluster SET version = version + 1")
    session.rows("SELECT version FROM cluster")


WRITES: dict[str, Write] = {
    "transact": lambda store: store.transact(change_and_read),
    "create": lambda store: store.create_topics([NewTopic("new", [1, 1])]),
    "bump": lambda store: store.bump_leader_epochs([0]),
    "features": lambda store: store.finalize_features({"transaction.version": 1}),
    "lease": lambda store: store.lease_producer_ids(1000),
}


async def opened(url: str) -> SqlMetadata:
    """Metadata with a broker and a topic."""
    store = SqlMetadata(url)
    catalog = await store.open()
    await store.register_broker(1, {}, None)
    if "a" not in catalog.by_name:
        await store.create_topics([NewTopic("a", [1])])
    return store


async def at_once(work: Awaitable[Any], patience_s: float | None = None) -> Any:
    """Make `completion.completed` wait no longer: the driver itself is cancelled."""
    return await work


def is_free(path: Path) -> bool:
    """Whether no connection holds the write lock or a read transaction."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        return bool(other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()


@pytest.mark.slow
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("write", WRITES)
async def test_cancelled_transaction_releases_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, connected: bool
) -> None:
    monkeypatch.setattr(completion, "run_to_end", at_once)
    url = f"sqlite:///{tmp_path}/metadata.db"
    kept = []
    for step in range(MAX_STEPS):
        store = await opened(url)
        if not connected and store._database._driver is not None:
            # The transaction makes a new connection.
            await store._database._driver.close()
        call = Cancelling(WRITES[write](store), step)
        kept.append(call)
        cancelled = await call.run()
        assert await asyncio.to_thread(is_free, tmp_path / "metadata.db"), step
        await store.transact(change_and_read)  # the store itself is still usable
        await store.close()
        if not cancelled:
            break
    assert 2 < step < MAX_STEPS - 1


@pytest.mark.real
async def test_cancelled_transaction_releases_its_lock_in_postgresql(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "run_to_end", at_once)
    url = await new_database(postgres_url)
    other = await asyncpg.connect(url)
    await (await opened(url)).close()
    await other.execute("SET lock_timeout = '10s'")
    kept = []
    for step in range(MAX_STEPS):
        store = SqlMetadata(url)
        await store.open()
        call = Cancelling(store.transact(change_and_read), step)
        kept.append(call)
        cancelled = await call.run()
        await other.execute("UPDATE cluster SET version = version + 1")
        await store.transact(change_and_read)
        await store.close()
        if not cancelled:
            break
    await other.close()
    assert 5 < step < MAX_STEPS - 1


async def _cancel_while_it_runs(
    started: threading.Event, go_on: threading.Event, task: asyncio.Task[Any]
) -> None:
    """Cancel a task whose thread runs: it must not end before the thread does."""
    await asyncio.to_thread(started.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_cancelled_write_completes_before_next(tmp_path: Path) -> None:
    started, go_on, order = threading.Event(), threading.Event(), []

    def first(*_: Any) -> None:
        started.set()
        go_on.wait(90)
        order.append("first")

    pytest.importorskip("rocksdict")
    storage = RocksStorage(str(tmp_path / "offsets"), 1, lambda: 0)
    writing = asyncio.ensure_future(storage._read(first))
    await _cancel_while_it_runs(started, go_on, writing)
    await storage._read(lambda *_: order.append("second"))
    assert order == ["first", "second"]
    await storage.close()


async def test_call_on_thread_returns_result_or_raises() -> None:
    assert await completion.run_on_thread(lambda: 1) == 1
    with pytest.raises(KeyError):
        await completion.run_on_thread(lambda: dict[str, int]()["a"])


@pytest.mark.slow
async def test_connection_is_usable_after_transaction_cancelled_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that was cancelled in its rollback was reported by SQLAlchemy, with a traceback."""
    gc.collect()  # reports of tasks that earlier tests left
    caplog.clear()
    store = await opened(f"sqlite:///{tmp_path}/metadata.db")
    for step in range(80):
        running = asyncio.ensure_future(store.transact(change_and_read))
        for _ in range(step):
            await asyncio.sleep(0)
        for _ in range(2):
            running.cancel()
            for _ in range(step % 5):
                await asyncio.sleep(0)
        await asyncio.wait([running])
        assert await asyncio.to_thread(is_free, tmp_path / "metadata.db"), step
    await store.transact(change_and_read)
    await store.close()
    assert [record.getMessage() for record in caplog.records] == []


async def test_transaction_of_unresponsive_server_is_cancelled() -> None:
    ended: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    running = asyncio.ensure_future(completion.run_to_end(never(), 0.05))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["cancelled"]
