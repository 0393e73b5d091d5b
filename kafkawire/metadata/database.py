"""A database reached through SQLAlchemy's async engine: SQLite (aiosqlite), PostgreSQL (asyncpg).

One connection, one transaction at a time. It also makes, checks and migrates the tables when it
is opened, and turns SQL errors into MetadataError. The statements are in `sql.py` and
`statements.py`, the machine (time, folders) in `engine.py`. Importing this imports SQLAlchemy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event, inspect, text
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from kafkawire.metadata import engine as device
from kafkawire.metadata import schema, tables
from kafkawire.metadata.session import Row
from kafkawire.metadata.store import MetadataError, failure_of

CONNECT_TIMEOUT_S = 10  # asyncpg would try for a minute, and the admin request with it
_CREATE_LOCK = 0x6B61666B  # "kafk": PostgreSQL's advisory lock while the tables are made

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class Database:
    """One database. `open` first; then transactions, one at a time; `close` last."""

    def __init__(self, url: str | URL) -> None:
        try:
            self._url = make_url(url)
        except ArgumentError as error:
            shown = str(url).rpartition("@")[2]  # what precedes an @ may be a password
            raise MetadataError(f"metadata URL {shown!r} cannot be read as an SQL URL") from error
        self._url = self._url.set(
            drivername=_DRIVERS.get(self._url.drivername, self._url.drivername)
        )
        if self._url.drivername not in _DRIVERS.values():
            raise MetadataError(
                f"metadata URL {self.name!r} names a database that is not served: "
                "it must begin with sqlite:// or postgresql://"
            )
        self._engine: AsyncEngine | None = None
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        """How messages call it: the file, or the URL without its password."""
        if self.is_sqlite:
            return self._url.database or "the metadata in memory"
        return self._url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is SQLite (otherwise PostgreSQL)."""
        return self._url.drivername.startswith("sqlite")

    def absent(self) -> bool:
        """Whether there is no file, or an empty one, so that `open` would create the metadata."""
        return bool(self.is_sqlite and self._url.database) and device.is_absent(
            self._url.database or ""
        )

    async def open(self) -> None:
        """Connects; makes the tables of a new database, migrates an old one. MetadataError."""
        if self.is_sqlite and self._url.database:
            device.make_folder_of(self._url.database)
            device.refuse_foreign(self._url.database)
        self._engine = _engine(self._url)
        try:
            async with self.transaction() as connection:
                await connection.run_sync(_prepare, self.name)
        except BaseException:
            await self.close()
            raise

    async def stored_revision(self) -> str | None:
        """The revision of the tables, which stay as they are; None: there are none of ours.
        Instead of `open`. MetadataError."""
        self._engine = _engine(self._url)
        try:
            async with self.transaction() as connection:
                return await connection.run_sync(_revision)
        finally:
            await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed when the block ends, undone when it raises."""
        async with self._turn:
            if self._engine is None:
                raise MetadataError(f"{self.name} is closed")
            try:
                async with self._engine.begin() as connection:
                    yield connection
            except (SQLAlchemyError, OSError) as error:
                if isinstance(error, MetadataError):
                    raise
                raise _failure(self.name, error) from error

    async def close(self) -> None:
        """Wait for the transaction that runs and disconnects."""
        async with self._turn:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.dispose()


class EngineSession:
    """`session.Session` over a connection of SQLAlchemy, whose Row objects and parameter styles
    would take longer than the statements: text goes to the driver, tuples come from its cursor."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect.name

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """All rows of a query."""
        result = self._connection.exec_driver_sql(self._text(sql), values)
        found: list[Row] = list(result.cursor.fetchall())
        result.close()
        return found if self.dialect == "sqlite" else [tuple(row) for row in found]

    def run(self, sql: str, values: Row = ()) -> int:
        """Run one statement; how many rows it has changed."""
        return self._connection.exec_driver_sql(self._text(sql), values).rowcount

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values; none is fine."""
        if values:
            self._connection.exec_driver_sql(self._text(sql), list(values))

    def _text(self, sql: str) -> str:
        return sql if self.dialect == "sqlite" else _numbered(sql)


def _numbered(sql: str) -> str:
    """`?` as asyncpg wants it: $1, $2, ..."""
    first, *others = sql.split("?")
    return first + "".join(f"${at}{part}" for at, part in enumerate(others, 1))


def _engine(url: URL) -> AsyncEngine:
    if not url.drivername.startswith("sqlite"):
        return create_async_engine(
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,  # a server that was restarted is met with a new connection
            connect_args={"timeout": CONNECT_TIMEOUT_S},
        )
    engine = create_async_engine(
        url,
        pool_size=1,
        max_overflow=0,
        connect_args={
            "timeout": device.BUSY_TIMEOUT_S,
            # Statements with numbers in them (session.PART) come once: few are worth keeping.
            "cached_statements": 16,
            # SQLAlchemy closes the connection of a cancelled statement: that must end all of it.
            "factory": device.SqliteConnection,
        },
    )
    event.listen(engine.sync_engine, "connect", _on_connect)
    event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: _on_begin does
    cursor = connection.cursor()
    device.set_pragmas(cursor)
    cursor.close()


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql(device.BEGIN)


def _prepare(connection: Connection, name: str) -> None:
    """Make or migrates the tables, inside the transaction that `open` began."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})"))
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        tables.metadata.create_all(connection)
        connection.execute(tables.revision.insert().values(version_num=schema.REVISION))
        return
    stored = connection.execute(tables.revision.select()).scalar()
    if stored == schema.REVISION:
        return
    if not isinstance(stored, str) or not stored.isdigit():
        raise MetadataError(f"{name} has no revision this kafkawire knows: {stored!r}")
    if int(stored) > int(schema.REVISION):
        raise MetadataError(
            f"{name} was written by a newer kafkawire (revision {stored}, this one knows "
            f"{schema.REVISION}): use that version or another data folder"
        )
    from kafkawire.metadata.migrate import upgrade  # Alembic: 0.2 s that few starts need

    upgrade(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    stored = connection.execute(tables.revision.select()).scalar()
    return None if stored is None else str(stored)


def _failure(name: str, error: BaseException) -> MetadataError:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(error, (OSError, InterfaceError)) or "unable to open" in str(cause):
        detail = str(cause).partition("\n")[0].rstrip(".")
        return MetadataError(f"{name} cannot be opened ({detail})")
    return failure_of(name, cause)
