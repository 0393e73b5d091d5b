"""A database reached through SQLAlchemy Core: SQLite (aiosqlite) or PostgreSQL (asyncpg).

One connection, one transaction at a time. `Database.open` creates, checks or migrates the tables,
and SQL errors become MetadataError. A transaction is a function of a Connection that runs in a
greenlet: SQLAlchemy suspends it while the driver works, so the event loop continues.
`sqlalchemy.ext.asyncio` does the same, but also imports the ORM, which takes a tenth of a second of
each start. The statements are in `sql.py` and `statements.py`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, SQLAlchemyError
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool
from sqlalchemy.util import greenlet_spawn

from kafkawire.codec.format_errors import NewerFormatError
from kafkawire.metadata import completion, schema, sqlite_device, tables
from kafkawire.metadata.store import DamagedMetadata, MetadataError, failure_of

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10  # asyncpg's default of a minute would block admin requests
IDLE_TIMEOUT_S = 10.0
"""When PostgreSQL rolls back the transaction of a broker that sends no statements, because it is
stopped or its machine is gone: all changes of topics wait for one row that it may have locked."""
LOCK_TIMEOUT_S = 15.0
"""How long a statement waits for a lock of another broker: longer than IDLE_TIMEOUT_S, so that a
stopped broker does not make others fail."""
STATEMENT_TIMEOUT_S = 25.0
"""How long PostgreSQL works on one statement: ten times the slowest one with a million topics."""
ANSWER_TIMEOUT_S = 30.0
"""How long the answer to a statement may take: a server that does not answer at all has not ended
the statement by its own limit. TCP alone would wait for 15 minutes."""
QUICK_TIMEOUT_S = 1.0
"""All of these limits, and how long SQLite waits for its lock, in a quick session: an answer that
comes later than the next heartbeat is of no use."""
UPGRADE_TIMEOUT_S = 3600.0
"""The last two limits while tables of an older version are changed: one statement may rewrite a
table of a hundred million rows."""
CANCEL_PATIENCE_S = sqlite_device.BUSY_TIMEOUT_S
"""How long a cancelled caller waits for its transaction: as long as SQLite may wait for a lock."""
_CREATE_LOCK = 0x6B61666B  # "kafk": PostgreSQL's advisory lock while the tables are made

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class Database:
    """One database. Call `open` first, then transactions one at a time, then `close`.

    `quick`: for heartbeats, with short limits, and with commits that do not wait for the disk: a
    crash may take them. Call `connect` instead of `open`."""

    def __init__(self, url: str | URL, quick: bool = False) -> None:
        self._quick = quick
        try:
            self._url = make_url(url)
        except ArgumentError as error:
            shown = str(url).rpartition("@")[2]  # a password may precede an @
            raise MetadataError(f"metadata URL {shown!r} cannot be read as an SQL URL") from error
        self._url = self._url.set(
            drivername=_DRIVERS.get(self._url.drivername, self._url.drivername)
        )
        if self._url.drivername not in _DRIVERS.values():
            raise MetadataError(
                f"metadata URL {self.name!r} names a database that is not served: "
                "it must begin with sqlite:// or postgresql://"
            )
        self._engine: Engine | None = None
        self._counter: sqlite_device.CommitCounter | None = None
        self._lock = asyncio.Lock()

    @property
    def name(self) -> str:
        if self.is_sqlite:
            return self._url.database or "the metadata in memory"
        return self._url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is SQLite (otherwise PostgreSQL)."""
        return self._url.drivername.startswith("sqlite")

    def absent(self) -> bool:
        return bool(self.is_sqlite and self._url.database) and sqlite_device.is_absent(
            self._url.database or ""
        )

    async def open(self) -> None:
        """Connect; create the tables of a new database, migrate an old one. Raises
        MetadataError."""
        if self.is_sqlite and self._url.database:
            sqlite_device.make_folder_of(self._url.database)
            sqlite_device.refuse_foreign(self._url.database)
        self._engine = _engine(self._url)
        try:
            if not await self.run(lambda connection: _prepare(connection, self.name)):
                await self._upgrade()
        except BaseException:
            await self.close()
            raise

    def connect(self) -> None:
        """Let transactions run on tables that exist, through a connection that the first one
        opens. Calling it again does nothing."""
        if self._engine is None:
            self._engine = _engine(self._url, quick=self._quick)

    async def count_commits(self) -> None:
        """Begin to notice changes by other processes, in an SQLite file. Raises MetadataError."""
        if self.is_sqlite and self._url.database:
            self._counter = sqlite_device.CommitCounter(self._url.database)
            await self._counter.open()

    def commits(self) -> int | None:
        """Return a number that differs after every change; see `Transactions.commits`."""
        return None if self._counter is None else self._counter.value()

    async def _upgrade(self) -> None:
        """Migrate the tables, without the usual limit for a statement."""
        await self.close()
        self._engine = _engine(self._url, UPGRADE_TIMEOUT_S)
        await self.run(lambda connection: _prepare(connection, self.name, migrate=True))
        await self.close()
        self._engine = _engine(self._url)

    async def stored_revision(self) -> str | None:
        """Return the revision of the tables without changing them; None if there are none of
        kafkawire. Called instead of `open`. Raises MetadataError."""
        self._engine = _engine(self._url)
        try:
            return await self.run(revision_of)
        finally:
            await self.close()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction: committed when it returns, rolled back when it raises.
        Raises MetadataError for errors of SQL, DamagedMetadata for rows that cannot be read. A
        cancelled caller gets the CancelledError after the transaction has ended, either way."""
        async with self._lock:
            if self._engine is None:
                raise MetadataError(f"{self.name} is closed")
            try:
                transaction = greenlet_spawn(_transaction, self._engine, work)
                return await completion.completed(transaction, CANCEL_PATIENCE_S)
            except (SQLAlchemyError, OSError) as error:
                if isinstance(error, MetadataError):
                    raise
                raise _failure(self.name, error) from error
            except NewerFormatError as error:
                raise MetadataError(f"{self.name}: {error}") from error
            except ValueError as error:  # a row that no version has written: a damaged page
                raise DamagedMetadata(self.name, str(error)[:200]) from error

    async def close(self) -> None:
        """Wait for the running transaction, and disconnect."""
        async with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                await greenlet_spawn(engine.dispose)
            if self._counter is not None:
                self._counter.close()


@contextmanager
def sqlite_transaction(path: str, mode: str = "rw") -> Iterator[Connection]:
    """Run one blocking transaction on an SQLite file, for commands; tables and journal mode are not
    changed. `mode`: SQLite's, `ro`, `rw`, or `rwc` to create the file. Raises MetadataError."""
    uri = sqlite_device.uri_of(path, mode)
    engine = create_engine(
        "sqlite://",
        hide_parameters=True,
        creator=lambda: sqlite3.connect(uri, uri=True, timeout=sqlite_device.BUSY_TIMEOUT_S),
        poolclass=NullPool,
    )
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise _failure(path, error) from error
    finally:
        engine.dispose()


def _transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def _engine(url: URL, upgrade_s: float | None = None, *, quick: bool = False) -> Engine:
    """`upgrade_s`: for PostgreSQL, the limit of statements instead of the usual ones; `quick`: see
    `Database`."""
    if not url.drivername.startswith("sqlite"):
        answer_s = QUICK_TIMEOUT_S if quick else upgrade_s or ANSWER_TIMEOUT_S
        connect_s = QUICK_TIMEOUT_S if quick else CONNECT_TIMEOUT_S
        engine = create_engine(
            url,
            hide_parameters=True,  # keys of users would be in texts of errors
            poolclass=AsyncAdaptedQueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,  # reconnect after a restart of the server
            connect_args={"timeout": connect_s, "command_timeout": answer_s},
        )
        limits = _quick_limits() if quick else _session_limits(upgrade_s or STATEMENT_TIMEOUT_S)
        event.listen(engine, "connect", partial(_set_limits, limits))
        return engine
    engine = create_engine(
        url,
        hide_parameters=True,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=1,
        max_overflow=0,
        connect_args={
            "async_creator_fn": sqlite_device.connect_sqlite,
            "timeout": QUICK_TIMEOUT_S if quick else sqlite_device.BUSY_TIMEOUT_S,
            # Statements with literal numbers (session.PART) are not repeated: cache few.
            "cached_statements": 16,
            # SQLAlchemy closes the connection of a cancelled statement: that must end its
            # transaction.
            "factory": sqlite_device.SqliteConnection,
        },
    )
    pragmas = sqlite_device.QUICK_PRAGMAS if quick else sqlite_device.PRAGMAS
    event.listen(engine, "connect", partial(_on_connect, pragmas))
    event.listen(engine, "begin", _on_begin)
    return engine


def _quick_limits() -> dict[str, int | str]:
    """Return the settings of a quick session of PostgreSQL."""
    limit_ms = int(QUICK_TIMEOUT_S * 1000)
    short = dict.fromkeys(
        ("lock_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout"), limit_ms
    )
    usual = _session_limits(QUICK_TIMEOUT_S)
    return {**usual, **short, "synchronous_commit": "off"}


def _session_limits(statement_s: float) -> dict[str, int | str]:
    """Return the settings of a session of PostgreSQL. The last four let it notice that the machine
    of a broker is gone."""
    return {
        "statement_timeout": int(statement_s * 1000),
        "lock_timeout": int(LOCK_TIMEOUT_S * 1000),
        "idle_in_transaction_session_timeout": int(IDLE_TIMEOUT_S * 1000),
        "tcp_user_timeout": int(IDLE_TIMEOUT_S * 1000),
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 2,
    }


def _set_limits(limits: Mapping[str, int | str], connection: Any, _record: object) -> None:
    """Set them by a statement: connection poolers refuse unknown parameters of the connection."""
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in limits.items())
    cursor = connection.cursor()
    cursor.execute(f"SELECT {calls}")
    cursor.close()
    connection.commit()  # settings of a transaction that is rolled back are, too


def _on_connect(pragmas: Sequence[str], connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions: _on_begin does
    cursor = connection.cursor()
    sqlite_device.set_pragmas(cursor, pragmas)
    cursor.close()


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql(sqlite_device.BEGIN)


def _prepare(connection: Connection, name: str, *, migrate: bool = False) -> bool:
    """Create the tables, or check their revision; `migrate`: and bring them to the current one.
    Return whether they have it."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})"))
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        tables.metadata.create_all(connection)
        connection.execute(tables.revision.insert().values(version_num=schema.REVISION))
        return True
    stored = connection.execute(tables.revision.select()).scalar()
    if stored == schema.REVISION:
        return True
    if not isinstance(stored, str) or not stored.isdigit():
        raise MetadataError(f"{name} has no revision this kafkawire knows: {stored!r}")
    if int(stored) > int(schema.REVISION):
        raise MetadataError(
            f"{name} was written by a newer kafkawire (revision {stored}, this one knows "
            f"{schema.REVISION}): use that version or another data folder"
        )
    if migrate:
        from kafkawire.metadata.migrate import upgrade  # importing Alembic takes 0.2 s

        upgrade(connection)
    return migrate


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables; None if there are none of kafkawire."""
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
