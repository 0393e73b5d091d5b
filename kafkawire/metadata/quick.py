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

from kafkawire.metadata import engine, pairing, plain
from kafkawire.metadata.catalog import (
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.checkpoint import FormatError
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
        """See `Metadata.name`."""
        return self._path

    def absent(self) -> bool:
        """See `Metadata.absent`."""
        return engine.is_absent(self._path)

    async def open(self) -> Catalog:
        """See `Metadata.open`."""
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
        """See `Metadata.register_broker`. Writes only what has changed."""
        info = BrokerInfo(node_id, dict(listeners), rack)
        async with self._turn:
            if self._whole is not None:
                await self._whole.register_broker(node_id, listeners, rack)
            elif self._opened().brokers.get(node_id) != info:
                await self._write(lambda connection: plain.register_broker(connection, info))
                self._opened().add_broker(info)
            self._node_id = node_id

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        """See `Metadata.known_partitions`."""
        return await self.transact(lambda session: pairing.known_partitions(session, numbers))

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        """See `Metadata.bump_leader_epochs`."""
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
        """See `Metadata.raise_leader_epochs`."""
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
        """See `Transactions.transact`."""
        async with self._turn:
            if self._whole is not None:
                return await self._whole.transact(work)
            return await self._write(lambda connection: work(SqliteSession(connection)))

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

    async def close(self) -> None:
        """See `Metadata.close`."""
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
