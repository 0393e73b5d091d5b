"""Heartbeats in SQL: seen by other processes, quick, and not delayed by other transactions.

Covers: kafkawire.metadata.heartbeats.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from kafkawire.metadata.database import Database
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded, Metadata, MetadataError, OlderMetadata
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.postgres import new_database

POSTGRES = pytest.param("postgresql", marks=pytest.mark.real)


async def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder}/metadata.db"
    return await new_database(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
async def start(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Metadata]]:
    """Start stores that share one database, one per process."""
    made: list[Metadata] = []
    durable = MemoryDatabase()
    url = "" if request.param == "memory" else await url_of(request.param, request, tmp_path)

    def new() -> Metadata:
        made.append(SqlMetadata(url) if url else MemoryMetadata(durable))
        return made[-1]

    yield new
    for store in made:
        await store.close()


async def test_brokers_see_the_heartbeats_of_each_other(start: Callable[[], Metadata]) -> None:
    one, two = start(), start()
    await one.open()
    await two.open()
    assert await one.beat(1) == {1: 1}
    assert await one.beat(1) == {1: 2}
    assert await two.beat(2) == {1: 2, 2: 1}
    assert await one.beat(1) == {1: 3, 2: 1}
    await two.end_heartbeats(2)
    await two.end_heartbeats(2)
    assert await one.beat(1) == {1: 4}
    assert await two.beat(2) == {1: 4, 2: 1}


async def test_heartbeats_of_a_start_are_negative(start: Callable[[], Metadata]) -> None:
    store = start()
    await store.open()
    await store.register_broker(1, {}, None)
    starts = (True, True, False, False, True, False)
    found = [(await store.beat(1, starting=each))[1] for each in starts]
    assert found == [-1, -2, 1, 2, -1, 1]


async def test_process_that_was_superseded_stores_no_heartbeat(
    start: Callable[[], Metadata],
) -> None:
    one, two = start(), start()
    await one.open()
    await one.register_broker(1, {}, None)
    assert await one.beat(1) == {1: 1}
    await two.open()
    await two.register_broker(1, {}, None)
    with pytest.raises(BrokerSuperseded):
        await one.beat(1)
    assert await two.beat(1) == {1: 2}
    await one.end_heartbeats(1)
    assert await two.beat(1) == {1: 3}


async def test_closed_store_stores_no_heartbeat(start: Callable[[], Metadata]) -> None:
    store = start()
    await store.open()
    await store.beat(1)
    await store.close()
    other = start()
    await other.open()
    assert await other.beat(2) == {1: 1, 2: 1}


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_quick_session_does_not_wait_for_the_disk(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = await url_of(kind, request, tmp_path)
    usual, quick = Database(url), Database(url, quick=True)
    await usual.open()
    quick.connect()
    quick.connect()
    asked = "PRAGMA synchronous" if kind == "sqlite" else "SHOW synchronous_commit"

    def read(session: Session) -> object:
        return session.rows(asked)[0][0]

    found = await usual.run(read), await quick.run(read)
    assert found == ((2, 1) if kind == "sqlite" else ("on", "off"))
    await usual.close()
    await quick.close()


async def test_heartbeat_fails_soon_while_sqlite_is_locked(tmp_path: Path) -> None:
    store = SqlMetadata(await url_of("sqlite", None, tmp_path))  # type: ignore[arg-type]
    await store.open()
    await store.beat(1)
    with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataError, match="locked"):  # the other limit is 10 s
            await store.beat(1)
        other.execute("ROLLBACK")
    assert await store.beat(1) == {1: 2}
    await store.close()


@pytest.mark.real
async def test_heartbeat_passes_a_long_transaction_of_postgresql(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    import asyncpg  # type: ignore[import-untyped]

    url = await url_of("postgresql", request, tmp_path)
    store = SqlMetadata(url)
    await store.open()
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE cluster SET version = version + 1")
    assert await store.beat(1) == {1: 1}
    await transaction.rollback()
    await other.close()
    await store.close()


async def test_broker_of_an_older_copy_is_not_taken_for_superseded(tmp_path: Path) -> None:
    store = SqlMetadata(f"sqlite:///{tmp_path}/metadata.db")
    await store.open()
    for _ in range(2):
        await store.register_broker(1, {}, None)
    await store.transact(lambda session: session.run("UPDATE brokers SET epoch = epoch - 1"))
    with pytest.raises(OlderMetadata, match="broker epoch"):
        await store.beat(1)
    await store.close()


async def test_file_that_is_replaced_is_not_used_any_more(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqlMetadata(f"sqlite:///{path}")
    await store.open()
    await store.lease_producer_ids(1)
    path.rename(tmp_path / "moved.db")
    with pytest.raises(OlderMetadata, match=r"another file has the name .*, or none"):
        await store.lease_producer_ids(1)
    path.write_bytes((tmp_path / "moved.db").read_bytes())
    with pytest.raises(OlderMetadata):
        await store.lease_producer_ids(1)
    await store.close()
