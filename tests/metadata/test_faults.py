"""Metadata when its environment fails: a full disk, another writer, a lost connection."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.util import await_only

from kafkawire.codec.errors import ErrorCode, code_of
from kafkawire.metadata import engines, sqlite
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata, open_metadata
from kafkawire.metadata.store import DamagedMetadata, MetadataError, SqlStore
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from tests.kit.postgres import new_database, postgres, transaction_pooler
from tests.kit.proxy import Network


async def opened(folder: Path) -> SqlStore:
    store = open_metadata("", str(folder))
    await store.open()
    await store.register_broker(1, {}, None)
    return store


async def test_full_disk_refuses_changes_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(tmp_path)).close()
    whole = sqlite.PRAGMAS
    monkeypatch.setattr(sqlite, "PRAGMAS", (*whole, "PRAGMA max_page_count=70"))
    store = await opened(tmp_path)
    made = 0

    async def fill() -> None:
        nonlocal made
        while True:
            await store.create_topics([NewTopic(f"t{made}", [1] * 100)])
            made += 1

    with pytest.raises(MetadataError, match="full") as caught:
        await fill()
    assert code_of(caught.value) is ErrorCode.KAFKA_STORAGE_ERROR
    assert made > 0
    await store.lease_producer_ids(1)  # fits into the allocated pages
    await store.close()
    monkeypatch.setattr(sqlite, "PRAGMAS", whole)
    store = await opened(tmp_path)
    (info,) = await store.create_topics([NewTopic(f"t{made}", [1] * 100)])
    await store.close()
    catalog = await (again := open_metadata("", str(tmp_path))).open()
    assert sorted(catalog.by_name) == sorted(f"t{i}" for i in range(made + 1))
    assert catalog.by_id[info.id] == info
    await again.close()


async def test_file_locked_by_other_process_is_waited_for_then_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    store = await opened(tmp_path)
    (info,) = await store.create_topics([NewTopic("a", [1])])
    checkpoint = Checkpoint(1, 5, [PartitionCheckpoint(info.partitions[0].number, 1, 0)])
    storage = SqlStorage(store, 1, lambda: 0)
    other = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(MetadataError, match=r"metadata.db failed .*locked"):
        await storage.save_checkpoint(checkpoint)
    other.execute("ROLLBACK")
    other.close()
    await storage.save_checkpoint(checkpoint)
    assert await storage.load_log_position(1) == 5
    (row,) = await storage.load_partitions([info.partitions[0].number])
    assert row.checkpoint == checkpoint.partitions[0]
    await store.close()


async def test_unwritable_file_is_named(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.close()
    os.remove(tmp_path / "metadata.db")
    os.mkdir(tmp_path / "metadata.db")
    with pytest.raises(MetadataError, match=r"metadata.db cannot be opened"):
        await opened(tmp_path)


class SlowEnd(logging.Handler):
    """Delays aiosqlite's threads when they are to end, as a busy machine does."""

    def emit(self, record: logging.LogRecord) -> None:
        """Wait, on the thread that logs."""
        if "close_and_stop" in record.getMessage():
            time.sleep(0.1)


@pytest.mark.parametrize("content", [None, b"no database" * 1000], ids=["folder", "garbage"])
def test_a_refused_file_leaves_no_thread_to_a_closed_loop(
    tmp_path: Path, content: bytes | None
) -> None:
    """The thread ended with a traceback after the event loop was closed."""
    file = tmp_path / "metadata.db"
    file.mkdir() if content is None else file.write_bytes(content)
    log, slow = logging.getLogger("aiosqlite"), SlowEnd()
    log.addHandler(slow)
    level = log.level
    log.setLevel(logging.DEBUG)
    failures: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        with pytest.raises(MetadataError, match=r"metadata\.db"):
            asyncio.run(open_metadata("", str(tmp_path)).open())
        for thread in threading.enumerate():
            if "_connection_worker" in thread.name:
                thread.join(90)
    finally:
        threading.excepthook = hook
        log.setLevel(level)
        log.removeHandler(slow)
    assert failures == []


@pytest.mark.real
async def test_lost_connection_is_reopened() -> None:
    with postgres() as url:
        admin = await asyncpg.connect(f"{url}/postgres")
        store = SqlMetadata(f"{url}/postgres")
        await store.open()
        await store.create_topics([NewTopic("a", [1])])
        cut = await admin.fetch(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        assert [list(row) for row in cut] == [[True]]
        (info,) = await store.create_topics([NewTopic("b", [1])])
        await store.close()
        again = SqlMetadata(f"{url}/postgres")
        catalog = await again.open()
        assert catalog.by_name["b"] == info
        await again.close()
        await admin.close()


@pytest.fixture
async def database(postgres_url: str) -> str:
    """The URL of an empty PostgreSQL database."""
    return await new_database(postgres_url)


@pytest.mark.real
async def test_a_stopped_broker_does_not_block_the_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks of a process that was stopped in a transaction were never released."""
    monkeypatch.setattr(engines, "IDLE_TIMEOUT_S", 0.2)
    stopped, other = SqlMetadata(database), SqlMetadata(database)
    await stopped.open()
    await other.open()
    locked, resumed = asyncio.Event(), asyncio.Event()

    def stop(session: Session) -> None:
        session.run("UPDATE cluster SET version = version + 1")
        locked.set()
        await_only(resumed.wait())
        session.run("UPDATE cluster SET version = version + 1")

    transaction = asyncio.ensure_future(stopped.transact(stop))
    await locked.wait()
    (info,) = await other.create_topics([NewTopic("a", [1])])
    resumed.set()
    # Which error asyncpg raises depends on how much of the server's notice it has read.
    with pytest.raises(MetadataError):
        await transaction
    (second,) = await stopped.create_topics([NewTopic("b", [1])])
    assert second.partitions[0].number == info.partitions[0].number + 1
    await stopped.close()
    await other.close()


@pytest.mark.real
async def test_a_server_that_does_not_answer_is_not_waited_for_without_limit(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the start: TCP itself gives up after fifteen minutes."""
    monkeypatch.setattr(engines, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 0.5)
    url = make_url(database)
    with Network() as network:
        port = network.link("broker", "postgresql", (url.host or "", url.port or 0))
        through = url.set(port=port).render_as_string()
        store = SqlMetadata(through)
        await store.open()
        with network.silent():
            with pytest.raises(MetadataError):
                await store.create_topics([NewTopic("a", [1])])
            with pytest.raises(MetadataError, match="cannot be opened"):
                await SqlMetadata(through).open()
        await store.create_topics([NewTopic("b", [1])])
        await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE configs SET resource = substr(resource, 1, 2) || char(0)",
        "UPDATE topics SET name = CAST(x'ff00' AS TEXT)",
        "UPDATE brokers SET listeners = 'none'",
    ],
)
async def test_invalid_rows_are_reported_as_damage(tmp_path: Path, damage: str) -> None:
    """SQLite has no checksums: a page that is zeroed in part is found by what its rows say."""
    store = await opened(tmp_path)
    await store.create_topics([NewTopic("t", [1], configs={"retention.ms": "5"})])
    await store.close()
    with sqlite3.connect(tmp_path / "metadata.db") as connection:
        assert connection.execute(damage).rowcount == 1
    connection.close()
    store = open_metadata("", str(tmp_path))
    with pytest.raises(DamagedMetadata, match="rebuild it with `kafkawire restore --from-log`"):
        await store.open()
    await store.close()


@pytest.mark.real
async def test_pooler_of_transactions(database: str) -> None:
    """Several stores and another program share one session of the server: no statement of one
    meets another's, and no setting stays in the session."""
    with transaction_pooler(database) as url:
        stores = [SqlMetadata(f"{url}?statement_cache_size=0") for _ in range(2)]
        for node_id, store in enumerate(stores):
            await store.open()
            await store.register_broker(node_id, {}, None)
        for _ in range(3):
            await asyncio.gather(*[store.beat(node_id) for node_id, store in enumerate(stores)])
        other = await asyncpg.connect(url, statement_cache_size=0)
        limits = [
            await other.fetchval(f"SHOW {name}")
            for name in ("statement_timeout", "lock_timeout", "synchronous_commit")
        ]
        assert limits == ["0", "0", "on"]
        assert await other.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
        await other.close()
        for store in stores:
            await store.close()


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("sslmode=bogus", "`sslmode` parameter must be one of"),
        ("port=abc", "Received non-integer port"),
    ],
)
async def test_wrong_option_of_url_is_named(query: str, sentence: str) -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/none"
    with pytest.raises(MetadataError, match=sentence) as raised:
        await SqlMetadata(f"{url}?{query}").open()
    assert "secret" not in str(raised.value)


@pytest.mark.real
async def test_unknown_option_of_url_is_named(database: str) -> None:
    with pytest.raises(MetadataError, match='unrecognized configuration parameter "foo"'):
        await SqlMetadata(f"{database}?foo=1").open()
