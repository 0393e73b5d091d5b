"""Databases reached through SQLAlchemy: PostgreSQL, and SQLite files for migrations and copies.

Imported only for these. A transaction of PostgreSQL runs in a greenlet, which SQLAlchemy suspends
while the driver (asyncpg) works. `sqlalchemy.ext.asyncio` does the same, but also imports the ORM.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import urlencode

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    SQLAlchemyError,
)
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool
from sqlalchemy.util import greenlet_spawn

from kafkawire.log_lines import reason_of
from kafkawire.metadata import sqlite, tables
from kafkawire.metadata.completion import run_on_thread
from kafkawire.metadata.session import PORTION, Row, Session
from kafkawire.metadata.sqlite import QUICK_TIMEOUT_S
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
UPGRADE_TIMEOUT_S = 3600.0
"""The last two limits while tables of an older version are changed: one statement may rewrite a
table of a hundred million rows."""

CACHE_OPTIONS = ("statement_cache_size", "prepared_statement_cache_size")
"""Options of URLs that others need for a pooler. They change nothing: no statement is cached."""


class EngineSession(Session):
    """A transaction on a connection of SQLAlchemy.

    Statements are passed to the driver as text, and tuples come from its cursor: SQLAlchemy's rows
    and parameters would take longer than the statements.
    """

    conflict = IntegrityError

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        result = self.connection.exec_driver_sql(self._text(sql), values)
        found: list[Row] = list(result.cursor.fetchall())
        result.close()
        return found if self.dialect == "sqlite" else [tuple(row) for row in found]

    def run(self, sql: str, values: Row = ()) -> int:
        return self.connection.exec_driver_sql(self._text(sql), values).rowcount

    def _read(self, sql: str, values: Row) -> Generator[list[Row], None, None]:
        options = {"stream_results": True, "max_row_buffer": PORTION}
        result = self.connection.exec_driver_sql(self._text(sql), values, options)
        while portion := result.fetchmany(PORTION):
            yield list(map(tuple, portion))

    def _run_each(self, sql: str, values: Sequence[Row]) -> None:
        self.connection.exec_driver_sql(self._text(sql), list(values))

    def _text(self, sql: str) -> str:
        return sql if self.dialect == "sqlite" else _number_parameters(sql)


def connection_of(session: Session) -> Connection:
    """Return the connection of a session of this module. Raises TypeError for another one."""
    if isinstance(session, EngineSession):
        return session.connection
    raise TypeError(f"{type(session).__name__} has no connection of SQLAlchemy")


def _number_parameters(sql: str) -> str:
    """Replace each `?` by asyncpg's $1, $2, ..."""
    first, *others = sql.split("?")
    return first + "".join(f"${at}{part}" for at, part in enumerate(others, 1))


class EngineDriver:
    """Connects by an engine of SQLAlchemy; see `database.Driver`."""

    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run one transaction."""
        return await greenlet_spawn(_transaction, self._engine, work)

    async def close(self) -> None:
        """Disconnect."""
        await greenlet_spawn(self._engine.dispose)

    def create_tables(self, session: Session) -> None:
        """Create all tables; see `database.Driver`."""
        tables.metadata.create_all(connection_of(session))

    def failure(self, name: str, error: BaseException) -> MetadataError:
        """Convert an error; see `database.Driver`."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(error, OSError | InterfaceError):
            detail = reason_of(cause).partition("\n")[0].rstrip(".")
            return MetadataError(f"{name} cannot be opened ({detail})")
        return failure_of(name, cause)


class UpgradeDriver(EngineDriver):
    """Runs transactions that migrate an SQLite file, on a thread: they block. Without foreign
    keys."""

    def __init__(self, path: str) -> None:
        super().__init__(file_engine(path, "rw", sqlite.UPGRADE_PRAGMAS))

    async def run(self, work: Callable[[Session], T]) -> T:
        return await run_on_thread(partial(_transaction, self._engine, work))


def _transaction(engine: Engine, work: Callable[[Session], T]) -> T:
    with engine.begin() as connection:
        return work(EngineSession(connection))


def file_engine(path: str, mode: str, pragmas: Sequence[str] = ()) -> Engine:
    """Return an engine for an SQLite file. `mode`: SQLite's, `ro`, `rw`, or `rwc` to create the
    file."""
    engine = create_engine(
        "sqlite://",
        hide_parameters=True,
        creator=partial(_connect, sqlite.uri_of(path, mode), pragmas),
        poolclass=NullPool,
    )
    begin = "BEGIN" if mode == "ro" else sqlite.BEGIN
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _connect(uri: str, pragmas: Sequence[str]) -> sqlite3.Connection:
    # The driver begins no transactions: file_engine does.
    connection = sqlite3.connect(uri, uri=True, timeout=sqlite.BUSY_TIMEOUT_S, isolation_level=None)
    sqlite.set_pragmas(connection, pragmas)
    return connection


def shown_url(url: str) -> str:
    """Return a URL without its password. Raises MetadataError if it is none."""
    return _show_url(_parse_url(url))


def _show_url(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=True)


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        shown = url.rpartition("@")[2]  # a password may precede an @
        raise MetadataError(f"metadata URL {shown!r} cannot be read as an SQL URL") from error
    return parsed.set(drivername="postgresql+asyncpg")


def postgresql_driver(
    url: str, upgrade_s: float | None = None, *, quick: bool = False
) -> EngineDriver:
    """Return the driver of a PostgreSQL database. `upgrade_s`: the limit of statements instead of
    the usual ones; `quick`: see `database.Database`. Raises MetadataError."""
    limits = _quick_limits() if quick else _session_limits(upgrade_s or STATEMENT_TIMEOUT_S)
    answer_s = QUICK_TIMEOUT_S if quick else upgrade_s or ANSWER_TIMEOUT_S
    connect_s = QUICK_TIMEOUT_S if quick else CONNECT_TIMEOUT_S
    return EngineDriver(_postgresql_engine(_parse_url(url), limits, answer_s, connect_s))


def _postgresql_engine(
    url: URL, limits: Mapping[str, int | str], answer_s: float, connect_s: float
) -> Engine:
    """Return an engine whose transactions have these settings, and which works through a pooler
    that gives each transaction another session of the server (PgBouncer's mode `transaction`)."""
    import asyncpg  # type: ignore[import-untyped]

    settings = "".join(f" SET LOCAL {name} = '{value}';" for name, value in limits.items())

    class Connection(asyncpg.Connection):  # type: ignore[misc]
        async def execute(self, query: str, *args: object, **options: object) -> str:
            """Execute; the driver begins each transaction by this, and gets the settings with the
            same message."""
            if query.startswith("BEGIN"):
                query += settings
            return str(await super().execute(query, *args, **options))

        async def set_type_codec(self, *_: object, **__: object) -> None:
            """Do nothing: SQLAlchemy asks for codecs of JSON, which no column has, and the queries
            for them are outside of a transaction."""

    # The driver reads these as libpq does; it gets others as settings that the server refuses.
    options = {"sslmode" if name == "ssl" else name: value for name, value in url.query.items()}
    hosts: dict[str, str | Sequence[str]] = {
        name: options.pop(name) for name in ("host", "port") if name in options
    }
    for name in CACHE_OPTIONS:
        options.pop(name, None)
    try:
        engine = create_engine(
            url.set(query=hosts),
            hide_parameters=True,  # keys of users would be in texts of errors
            poolclass=AsyncAdaptedQueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,  # reconnect after a restart of the server
            connect_args={
                "dsn": f"postgresql://?{urlencode(options, doseq=True)}",
                "connection_class": Connection,
                "timeout": connect_s,
                "command_timeout": answer_s,
                # Statements have no name: named ones stay in a session, where another client of
                # the pooler uses the same name for its own. It costs a round trip for each.
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": str,
            },
        )
    except ArgumentError as error:
        raise MetadataError(f"metadata URL {_show_url(url)!r} cannot be used: {error}") from error
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
    """Return the settings of each transaction in PostgreSQL. The last four let it notice that the
    machine of a broker is gone. They are no settings of the session, which a pooler gives to other
    programs, nor of the connection, as poolers refuse unknown ones."""
    return {
        "statement_timeout": int(statement_s * 1000),
        "lock_timeout": int(LOCK_TIMEOUT_S * 1000),
        "idle_in_transaction_session_timeout": int(IDLE_TIMEOUT_S * 1000),
        "tcp_user_timeout": int(IDLE_TIMEOUT_S * 1000),
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 2,
    }


def upgrade(session: Session, name: str, stored: str) -> None:
    """Migrate the tables from the revision `stored`. Raises DamagedMetadata if they have
    another."""
    from kafkawire.metadata import migrate  # importing Alembic takes 0.2 s

    try:
        migrate.upgrade(connection_of(session))
    except DBAPIError as error:
        detail = str(error.orig)
        if "already exists" not in detail and "duplicate column" not in detail:
            raise
        # No step adds what is there: the revision is another one than that of the tables.
        raise DamagedMetadata(name, f"it is not of revision {stored}: {detail}", True) from error
