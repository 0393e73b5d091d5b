"""Logs of brokers in SQL: opened, ended once, released and forgotten by the newest process only."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.util import await_only

from kafkawire.metadata.database import Database
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.offsets.catalog import object_logs
from kafkawire.offsets.catalog.object_logs import ObjectLog
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.postgres import new_database

NODE = 1
OTHER = 2
NOW_MS = 1_700_000_000_000
URL = "s3://bucket/prefix/nodes/1"
Process = Callable[[], SqlStore]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def process(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Process]:
    """Start stores that share one database, one per process."""
    made: list[SqlStore] = []
    durable = MemoryDatabase()
    url = f"sqlite:///{tmp_path}/metadata.db"
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))

    def new() -> SqlStore:
        memory = request.param == "memory"
        made.append(MemoryMetadata(durable) if memory else SqlMetadata(url))
        return made[-1]

    yield new
    for store in made:
        await store.close()


class Life:
    """One life of a broker, and the functions with its broker epoch."""

    def __init__(self, store: SqlStore, node_id: int, epoch: int) -> None:
        self.store = store
        self.node_id = node_id
        self.epoch = epoch

    async def open(self) -> bool:
        return await self.store.transact(
            lambda session: object_logs.open_log(session, self.node_id, self.epoch, URL, NOW_MS)
        )

    async def end(self, log: int, sequence: int) -> int | None:
        return await self.store.transact(
            lambda session: object_logs.end(
                session, self.node_id, log, sequence, self.epoch, NOW_MS + 1
            )
        )

    async def release(self, log: int, sequence: int) -> bool:
        return await self.store.transact(
            lambda session: object_logs.release(
                session, self.node_id, log, sequence, self.epoch, NOW_MS + 2
            )
        )

    async def forget(self, log: int) -> bool:
        return await self.store.transact(
            lambda session: object_logs.forget(session, self.node_id, log, self.epoch)
        )

    async def logs(self) -> list[tuple[int, int, int | None]]:
        """Epoch, `released` and `ended` of the logs of this broker."""
        found = await self.store.transact(lambda session: object_logs.load(session, self.node_id))
        assert {log.node_id for log in found} <= {self.node_id}
        return [(log.broker_epoch, log.released, log.ended) for log in found]


async def born(process: Process, node_id: int = NODE) -> Life:
    """Start a broker; its epoch is that of this start."""
    store = process()
    catalog = await store.open()
    await store.register_broker(node_id, {}, None)
    return Life(store, node_id, catalog.brokers[node_id].epoch)


async def test_log_is_opened_once_for_each_life(process: Process) -> None:
    one = await born(process)
    assert await one.logs() == []
    assert await one.open()
    assert await one.open()
    assert await one.logs() == [(1, 0, None)]
    await one.store.register_broker(NODE, {"P": ("h", 1)}, None)  # its ports are known now
    assert await one.open(), "a second registration of a process is no other life"
    assert await one.logs() == [(1, 0, None)]
    two = await born(process)
    assert two.epoch == 2
    assert await two.open()
    assert await two.logs() == [(1, 0, None), (2, 0, None)]


async def test_logs_of_all_brokers_are_loaded_in_order(process: Process) -> None:
    lives = [await born(process, node) for node in (OTHER, NODE, NODE)]
    assert await lives[0].open()
    assert await lives[2].open()
    assert await lives[2].end(lives[1].epoch, 0) is None, "that life has not opened a log"
    later = await born(process, NODE)
    assert await later.open()
    assert await later.end(lives[2].epoch, 7) == 7
    assert await later.store.transact(object_logs.load_all) == [
        ObjectLog(NODE, lives[2].epoch, URL, 0, 7, NOW_MS + 1),
        ObjectLog(NODE, later.epoch, URL, 0, None, NOW_MS),
        ObjectLog(OTHER, lives[0].epoch, URL, 0, None, NOW_MS),
    ]
    assert await lives[0].logs() == [(lives[0].epoch, 0, None)]


async def test_superseded_life_changes_nothing(process: Process) -> None:
    one = await born(process)
    assert await one.open()
    assert await one.release(1, 3)
    two = await born(process)
    three = await born(process)
    assert await three.open()
    before = await three.logs()
    for life in (one, two):
        assert not await life.open()
        assert not await life.release(1, 5)
        assert not await life.release(3, 5)
        assert await life.end(1, 5) is None
        assert not await life.forget(1)
    assert await three.logs() == before == [(1, 3, None), (3, 0, None)]
    assert await three.end(1, 5) == 5
    assert await two.end(1, 6) is None, "a superseded life does not learn the end"
    assert await three.release(1, 5)
    assert not await one.forget(1)
    assert not await two.forget(1)
    assert await three.logs() == [(1, 5, 5), (3, 0, None)]


async def test_epoch_of_another_broker_does_not_count(process: Process) -> None:
    one = await born(process)
    assert await one.open()
    await born(process)
    other = await born(process, OTHER)
    assert not await Life(other.store, NODE, other.epoch).release(one.epoch, 5)
    assert await one.logs() == [(one.epoch, 0, None)]
    assert await other.open()
    assert not await Life(other.store, 7, 1).open(), "node 7 was never registered"


async def test_end_of_a_log_is_written_once(process: Process) -> None:
    one = await born(process)
    assert await one.open()
    assert await one.end(1, 4) is None, "a life does not end its own log"
    two = await born(process)
    assert await two.open()
    assert await two.end(1, 4) == 4
    assert await two.end(1, 9) == 4
    three = await born(process)
    assert await three.end(1, 5) == 4
    assert await three.end(3, 5) is None
    assert await three.end(8, 5) is None
    assert await three.end(2, 0) == 0
    assert await three.logs() == [(1, 0, 4), (2, 0, 0)]


async def test_released_rises_up_to_the_end(process: Process) -> None:
    one = await born(process)
    assert not await one.release(1, 0), "the log is not open"
    assert await one.open()
    assert await one.release(1, 0)
    assert await one.release(1, 6)
    assert await one.release(1, 2)
    assert await one.logs() == [(1, 6, None)]
    two = await born(process)
    assert await two.open()
    assert await two.logs() == [(1, 6, None), (2, 0, None)]
    assert await two.end(1, 8) == 8
    assert not await two.release(1, 9), "this would release the fence"
    assert await two.release(1, 7)
    assert await two.logs() == [(1, 7, 8), (2, 0, None)]
    assert await two.release(1, 8)
    assert await two.release(1, 8)
    assert await two.logs() == [(1, 8, 8), (2, 0, None)]


async def test_only_logs_that_are_released_to_their_end_are_forgotten(process: Process) -> None:
    one = await born(process)
    assert await one.open()
    assert await one.release(1, 3)
    assert not await one.forget(1)
    two = await born(process)
    assert await two.open()
    assert not await two.forget(1)
    assert await two.end(1, 5) == 5
    assert not await two.forget(1)
    assert await two.release(1, 5)
    assert await two.forget(1)
    assert not await two.forget(1)
    assert not await two.forget(2)
    assert await two.logs() == [(2, 0, None)]
    three = await born(process)
    assert await three.end(2, 0) == 0
    assert await three.forget(2), "an empty log"
    assert await three.logs() == []


async def test_entered_logs_are_of_earlier_lives(tmp_path: Path) -> None:
    stores: list[SqlStore] = []

    def process() -> SqlStore:
        stores.append(SqlMetadata(f"sqlite:///{tmp_path}/metadata.db"))
        return stores[-1]

    store = process()
    catalog = await store.open()
    await store.register_broker(NODE, {}, None)
    epoch = catalog.brokers[NODE].epoch
    found = [ObjectLog(NODE, at, URL, 4, None, NOW_MS) for at in (epoch + 40, epoch + 30)]
    await store.transact(lambda session: object_logs.enter(session, found))
    later = await born(process)
    assert later.epoch == epoch + 41, "its log is another one"
    assert await later.logs() == [(epoch + 30, 4, None), (epoch + 40, 4, None)]
    assert await later.end(epoch + 40, 6) == 6
    assert not any(log.done for log in found)
    assert await later.release(epoch + 40, 6)
    logs = await later.store.transact(lambda session: object_logs.load(session, NODE))
    assert [log.done for log in logs] == [False, True]
    for each in stores:
        await each.close()


async def test_changes_have_a_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metadata.db"
    stores: list[SqlStore] = []

    def process() -> SqlStore:
        stores.append(SqlMetadata(url))
        return stores[-1]

    async def changed_ms() -> list[int]:
        query = "SELECT changed_ms FROM object_logs ORDER BY broker_epoch"

        def read(session: Session) -> list[Row]:
            return session.rows(query)

        return [row[0] for row in await stores[-1].transact(read)]

    one = await born(process)
    await one.open()
    assert await changed_ms() == [NOW_MS]
    two = await born(process)
    await two.end(1, 2)
    assert await changed_ms() == [NOW_MS + 1]
    await two.release(1, 2)
    assert await changed_ms() == [NOW_MS + 2]
    await two.end(1, 3)
    assert await changed_ms() == [NOW_MS + 2], "nothing was changed"
    for store in stores:
        await store.close()


@pytest.mark.real
async def test_registration_waits_for_a_transaction_of_the_life_before(postgres_url: str) -> None:
    """The next life finds what is committed then: it would not end a log that it does not know."""
    url = await new_database(postgres_url)
    one = await born(lambda: SqlMetadata(url))
    opened, finish = asyncio.Event(), asyncio.Event()

    def open_slowly(session: Session) -> bool:
        done = object_logs.open_log(session, NODE, one.epoch, URL, NOW_MS)
        opened.set()
        await_only(finish.wait())
        return done

    opening = asyncio.ensure_future(one.store.transact(open_slowly))
    await opened.wait()
    starting = asyncio.ensure_future(born(lambda: SqlMetadata(url)))
    await lock_waited_for(url, starting)
    finish.set()
    assert await opening
    two = await starting
    assert await two.logs() == [(1, 0, None)]
    await one.store.close()
    await two.store.close()


@pytest.mark.real
async def test_change_waits_for_a_registration(postgres_url: str) -> None:
    url = await new_database(postgres_url)
    one = await born(lambda: SqlMetadata(url))
    other = Database(url)
    await other.open()
    registered, finish = asyncio.Event(), asyncio.Event()

    def register_slowly(session: Session) -> None:
        session.run("UPDATE brokers SET epoch = epoch + 1")
        registered.set()
        await_only(finish.wait())

    registering = asyncio.ensure_future(other.run(register_slowly))
    await registered.wait()
    opening = asyncio.ensure_future(one.open())
    await lock_waited_for(url, opening)
    finish.set()
    await registering
    assert not await opening
    assert await one.logs() == []
    await other.close()
    await one.store.close()


async def lock_waited_for(url: str, waiting: asyncio.Future[Any]) -> None:
    """Return when a statement in the database waits for a lock. Fails if `waiting` ends first."""
    watching = Database(url)
    await watching.open()
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while await watching.run(lambda session: session.rows(query)) == [(0,)]:
        assert not waiting.done(), "it did not wait"
        await asyncio.sleep(0.01)
    await watching.close()


async def test_crash_in_memory_keeps_what_was_committed() -> None:
    durable = MemoryDatabase()
    stores = [MemoryMetadata(durable) for _ in range(2)]
    left = iter(stores)
    one = await born(lambda: next(left))
    assert await one.open()
    earlier = copy.deepcopy(durable)
    assert await one.release(1, 4)
    stores[0].crash()
    with pytest.raises(MetadataError):
        await one.release(1, 5)
    two = await born(lambda: next(left))
    assert await two.logs() == [(1, 4, None)]
    restored = MemoryMetadata(earlier)
    await restored.open()
    assert await Life(restored, NODE, 1).logs() == [(1, 0, None)]


async def test_transaction_in_memory_that_fails_changes_nothing() -> None:
    store = MemoryMetadata(MemoryDatabase())
    life = await born(lambda: store)

    def fail(session: Session) -> None:
        assert object_logs.open_log(session, NODE, life.epoch, URL, NOW_MS)
        raise MetadataError("the disk is full")

    with pytest.raises(MetadataError, match="full"):
        await store.transact(fail)
    assert await life.logs() == []
    assert await life.open()
