"""Metadata in an SQLite file, opened without SQLAlchemy.

A start needs three things of the file: the catalog, this broker's row, the checkpoint. They are
read here with the standard library in milliseconds; importing SQLAlchemy takes half a second and
waits for the first write (or for `prepare`), on a thread, so that the loop goes on. Everything
that is not plain (an old, newer or damaged file) is left to `sql.SqlMetadata` at once, which also
finds the words for it. Made by `store.open_metadata`; the statements here only read, but for a
new file and a changed broker.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkawire.codec.types import uuid_text
from kafkawire.metadata import engine, rows, schema
from kafkawire.metadata.catalog import (
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.checkpoint import Checkpoint, FormatError
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.metadata.sql import SqlMetadata

_UNREADABLE = (sqlite3.Error, FormatError, ValueError, KeyError, TypeError)  # a damaged file


class SqliteMetadata:
    """`Metadata` in an SQLite file; a stand-in for SqlMetadata until that is needed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._catalog: Catalog | None = None
        self._node_id: int | None = None
        self._whole: SqlMetadata | None = None
        self._closed = False
        self._turn = asyncio.Lock()

    async def open(self) -> Catalog:
        """See `Metadata.open`."""
        engine.make_folder_of(self._path)
        try:
            with engine.sqlite_transaction(self._path) as connection:
                self._catalog = _load(connection)
        except _UNREADABLE:
            self._catalog = None
        if self._catalog is None:
            self._whole = await self._import()
            self._catalog = await self._whole.open()
        return self._catalog

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        """See `Metadata.register_broker`. Writes only what has changed."""
        if self._whole is not None or self._catalog is None:
            await (await self._sql()).register_broker(node_id, listeners, rack)
            return
        info = BrokerInfo(node_id, dict(listeners), rack)
        if self._catalog.brokers.get(node_id) != info:
            row = rows.broker_row(info, engine.now_ms())
            try:
                with engine.sqlite_transaction(self._path) as connection:
                    connection.execute("UPDATE cluster SET version = version + 1")
                    _insert(connection, "brokers", row)
            except sqlite3.Error as error:
                raise MetadataError(f"{self._path} failed ({error})") from error
            self._catalog.add_broker(info)
        self._node_id = node_id

    async def load_checkpoint(self, node_id: int) -> Checkpoint:
        """See `Metadata.load_checkpoint`."""
        if self._whole is None and not self._closed:
            try:
                with engine.sqlite_transaction(self._path) as connection:
                    return _checkpoint(connection, node_id)
            except _UNREADABLE:
                pass  # SqlMetadata meets the same and says what it is
        return await (await self._sql()).load_checkpoint(node_id)

    async def prepare(self) -> None:
        """See `Metadata.prepare`."""
        await (await self._sql()).prepare()

    async def create_topics(self, topics: list[NewTopic]) -> list[TopicInfo]:
        """See `Metadata.create_topics`."""
        return await (await self._sql()).create_topics(topics)

    async def delete_topics(self, ids: list[bytes]) -> None:
        """See `Metadata.delete_topics`."""
        await (await self._sql()).delete_topics(ids)

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
    ) -> list[PartitionInfo]:
        """See `Metadata.create_partitions`."""
        return await (await self._sql()).create_partitions(topic_id, new_total, leaders)

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        """See `Metadata.alter_configs`."""
        await (await self._sql()).alter_configs(changes)

    async def lease_producer_ids(self, count: int) -> int:
        """See `Metadata.lease_producer_ids`."""
        return await (await self._sql()).lease_producer_ids(count)

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        """See `Metadata.bump_leader_epochs`."""
        return await (await self._sql()).bump_leader_epochs(numbers)

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """See `Metadata.save_checkpoint`."""
        await (await self._sql()).save_checkpoint(checkpoint)

    async def close(self) -> None:
        """See `Metadata.close`."""
        async with self._turn:
            self._closed = True
            if self._whole is not None:
                await self._whole.close()

    async def _sql(self) -> SqlMetadata:
        """The whole store, imported and connected at the first call."""
        if self._whole is not None:
            return self._whole
        async with self._turn:
            if self._closed or self._catalog is None:
                raise MetadataError(f"{self._path} is closed")
            if self._whole is None:
                whole = await self._import()
                await whole.attach(self._catalog, self._node_id)
                self._whole = whole
            return self._whole

    async def _import(self) -> SqlMetadata:
        return await engine.aside(lambda: _sql_metadata(self._path))


def _sql_metadata(path: str) -> SqlMetadata:
    from sqlalchemy import URL

    from kafkawire.metadata.sql import SqlMetadata

    return SqlMetadata(URL.create("sqlite", database=path))  # text would cut it at a `?`


def _load(connection: sqlite3.Connection) -> Catalog | None:
    """The catalog of a file with our revision, or of a file that is made just now; else None."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return _create(connection)
    if schema.VERSION_TABLE not in names:
        return None
    stored = connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchone()
    found = connection.execute("SELECT cluster_id, version FROM cluster").fetchone()
    if stored != (schema.REVISION,) or found is None:
        return None
    return rows.catalog(
        found[0],
        found[1],
        brokers=connection.execute("SELECT node_id, listeners, rack FROM brokers"),
        topics=connection.execute("SELECT id, name, internal FROM topics WHERE deleted_ms IS NULL"),
        partitions=connection.execute(
            "SELECT p.topic_id, p.number, p.idx, p.leader, p.leader_epoch FROM partitions p"
            " JOIN topics t ON t.id = p.topic_id WHERE t.deleted_ms IS NULL"
            " ORDER BY p.topic_id, p.idx"
        ),
        configs=connection.execute("SELECT resource_type, resource, name, value FROM configs"),
    )


def _create(connection: sqlite3.Connection) -> Catalog:
    for statement in schema.SQLITE_TABLES.split(";\n"):  # executescript would commit
        connection.execute(statement)
    connection.execute(f"INSERT INTO {schema.VERSION_TABLE} VALUES (?)", (schema.REVISION,))
    cluster_id = uuid_text(engine.random_id())
    _insert(connection, "cluster", rows.cluster_row(cluster_id, engine.now_ms()))
    return Catalog(cluster_id)


def _insert(connection: sqlite3.Connection, table: str, row: rows.Row) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
    )


def _checkpoint(connection: sqlite3.Connection, node_id: int) -> Checkpoint:
    place = connection.execute(
        "SELECT place FROM checkpoints WHERE node_id = ?", (node_id,)
    ).fetchone()
    states = connection.execute(
        "SELECT c.number, c.next_offset, c.log_start, c.leader_epochs, c.producers"
        " FROM partition_checkpoints c JOIN partitions p ON p.number = c.number"
        " WHERE p.leader = ? ORDER BY c.number",
        (node_id,),
    )
    return Checkpoint(node_id, place[0] if place else 0, rows.states(states))
