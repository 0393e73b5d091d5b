"""Metadata in an SQLite file, opened without SQLAlchemy.

What a broker asks of the file without being asked by an admin (catalog, its own row, offsets,
leader epochs) is done with the standard library (`plain.py`) in milliseconds. Importing SQLAlchemy
takes half a second and waits for the first other write, or for `prepare`; it runs on a thread, so
that the loop goes on. Everything that is not plain (an old, newer or damaged file) is left to
`sql.SqlMetadata` at once, which also finds the words for it. Made by `store.open_metadata`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kafkawire.codec.format_errors import FormatError
from kafkawire.metadata import engine, pairing, plain
from kafkawire.metadata.catalog import (
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.session import Session, SqliteSession
from kafkawire.metadata.store import NOT_REGISTERED, MetadataError, failure_of

if TYPE_CHECKING:
    from kafkawire.metadata.sql import SqlMetadata

T = TypeVar("T")

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

    @property
    def name(self) -> str:
        """How messages call it: the file, or the URL without its password."""
        return self._path

    def absent(self) -> bool:
        """Whether there is no file, or an empty one, so that `open` would create the metadata."""
        return engine.is_absent(self._path)

    async def open(self) -> Catalog:
        """Make or migrates the database if need be, and loads the catalog."""
        engine.make_folder_of(self._path)
        engine.refuse_foreign(self._path)
        async with self._turn:
            try:
                self._catalog = await self._run(plain.load)
            except _UNREADABLE:
                self._catalog = None
            if self._catalog is None:
                self._whole = await self._import()
                self._catalog = await self._whole.open()
            return self._catalog

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        """Insert or update this broker; writes only what has changed."""
        info = BrokerInfo(node_id, dict(listeners), rack)
        async with self._turn:
            if self._whole is not None:
                await self._whole.register_broker(node_id, listeners, rack)
            elif self._opened().brokers.get(node_id) != info:
                await self._write(lambda connection: plain.register_broker(connection, info))
                self._opened().add_broker(info)
            self._node_id = node_id

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        """Those of the partition numbers that were ever assigned, deleted ones included."""
        return await self.transact(lambda session: pairing.known_partitions(session, numbers))

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        """Raise the leader epochs of partitions this broker leads, all or none; the new ones."""
        async with self._turn:
            if self._whole is not None:
                return await self._whole.bump_leader_epochs(numbers)
            node_id = self._node_id
            if node_id is None:
                raise MetadataError(NOT_REGISTERED)
            if not numbers:
                return {}
            epochs = await self._write(lambda c: plain.bump_leader_epochs(c, numbers, node_id))
            self._opened().set_leader_epochs(epochs)
            return epochs

    async def raise_leader_epochs(self) -> None:
        """Raise the leader epochs of all partitions this broker leads, in one statement."""
        async with self._turn:
            node_id = self._node_id
            if node_id is None:
                raise MetadataError(NOT_REGISTERED)
            if self._whole is not None:
                await self._whole.raise_leader_epochs()
            else:
                await self._write(lambda c: plain.raise_leader_epochs(c, node_id))
                self._opened().raise_leader_epochs(node_id)

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction, in turn with all other writes; what it raises undoes
        it."""
        async with self._turn:
            if self._whole is not None:
                return await self._whole.transact(work)
            return await self._write(lambda connection: work(SqliteSession(connection)))

    async def prepare(self) -> None:
        """Do in advance what the first write would otherwise wait for (half a second of imports),
        without keeping the loop."""
        await (await self._sql()).prepare()

    async def create_topics(self, topics: list[NewTopic]) -> list[TopicInfo]:
        """Make all or none."""
        return await (await self._sql()).create_topics(topics)

    async def delete_topics(self, ids: list[bytes]) -> None:
        """Delete all or none."""
        await (await self._sql()).delete_topics(ids)

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
    ) -> list[PartitionInfo]:
        """Add partitions up to `new_total`; `leaders` of those, otherwise this broker."""
        return await (await self._sql()).create_partitions(topic_id, new_total, leaders)

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        """Change all or none, in order."""
        await (await self._sql()).alter_configs(changes)

    async def lease_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids that nobody else gets."""
        return await (await self._sql()).lease_producer_ids(count)

    async def close(self) -> None:
        """Close the database."""
        async with self._turn:
            self._closed = True
            if self._whole is not None:
                await self._whole.close()

    async def _run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction on a thread. When the caller is cancelled it goes on there, and the
        file's own lock makes the next one wait."""

        def transaction() -> T:
            with engine.sqlite_transaction(self._path) as connection:
                return call(connection)

        return await engine.aside(transaction)

    async def _write(self, call: Callable[[sqlite3.Connection], T]) -> T:
        self._opened()
        try:
            return await self._run(call)
        except sqlite3.Error as error:
            raise failure_of(self._path, error) from error
        except FormatError as error:
            raise MetadataError(f"{self._path}: {error}") from error

    def _opened(self) -> Catalog:
        if self._closed or self._catalog is None:
            raise MetadataError(f"{self._path} is closed")
        return self._catalog

    async def _sql(self) -> SqlMetadata:
        """The whole store, imported and connected at the first call."""
        async with self._turn:
            if self._whole is None:
                catalog = self._opened()
                whole = await self._import()
                await whole.attach(catalog, self._node_id)
                self._whole = whole
            return self._whole

    async def _import(self) -> SqlMetadata:
        return await engine.aside(lambda: _sql_metadata(self._path))


def _sql_metadata(path: str) -> SqlMetadata:
    from sqlalchemy import URL

    from kafkawire.metadata.sql import SqlMetadata

    return SqlMetadata(URL.create("sqlite", database=path))  # text would cut it at a `?`
