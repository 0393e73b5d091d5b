"""A database in an SQLite file, through the standard library: a connection with a thread for the
broker, a blocking transaction for commands.

The work of a transaction runs on the event loop, in a greenlet that waits while the thread runs a
statement. Imports no SQLAlchemy, which would take a third of a start and of an idle broker's
memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

from kafkawire.metadata import sqlite_device
from kafkawire.metadata.completion import completed, in_greenlet, wait
from kafkawire.metadata.schema.created import SQLITE
from kafkawire.metadata.session import PORTION, DamagedRow, Row, Session
from kafkawire.metadata.store import MetadataError, failure_of

T = TypeVar("T")


class Runner(Protocol):
    """Runs a call of a connection, where calls of it may block."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Return what `call` returns."""


def _here(call: Callable[[], T]) -> T:
    return call()


class SqliteSession(Session):
    """A transaction of a connection, whose calls block. `run_call`: runs them on its thread."""

    dialect = "sqlite"
    conflict = sqlite3.IntegrityError

    def __init__(self, connection: sqlite3.Connection, run_call: Runner = _here) -> None:
        self._connection = connection
        self._run_call = run_call

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        return self._run_call(lambda: self._connection.execute(sql, values).fetchall())

    def run(self, sql: str, values: Row = ()) -> int:
        return self._run_call(lambda: self._connection.execute(sql, values)).rowcount

    def _read(self, sql: str, values: Row) -> Generator[list[Row], None, None]:
        cursor = self._run_call(lambda: self._connection.execute(sql, values))
        try:
            while portion := self._run_call(lambda: cursor.fetchmany(PORTION)):
                yield portion
        finally:
            self._run_call(cursor.close)

    def _run_each(self, sql: str, values: Sequence[Row]) -> None:
        self._run_call(lambda: self._connection.executemany(sql, values))


class SqliteDriver:
    """Connects to an SQLite file when a transaction needs it; see `database.Driver`. `path`: empty
    for a database in memory. `quick`: see `database.Database`."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: str, *, quick: bool = False) -> None:
        self._path = path
        self._pragmas = sqlite_device.QUICK_PRAGMAS if quick else sqlite_device.PRAGMAS
        self._timeout_s = sqlite_device.QUICK_TIMEOUT_S if quick else sqlite_device.BUSY_TIMEOUT_S
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run one transaction. A caller that is cancelled while the thread runs a statement
        continues after it, and the transaction is rolled back."""
        return await in_greenlet(partial(self._transaction, work))

    def _transaction(self, work: Callable[[Session], T]) -> T:
        if self._connection is None:
            self._thread = ThreadPoolExecutor(1, "sqlite")
            self._connection = self._on_thread(self._connect)
        connection = self._connection
        try:
            self._on_thread(lambda: connection.execute(sqlite_device.BEGIN))
            result = work(SqliteSession(connection, self._on_thread))
            self._on_thread(connection.commit)
        except BaseException:
            try:
                self._on_thread(connection.rollback)
            except sqlite3.Error:  # its state is unknown: the next transaction makes a new one
                self._connection = None
                self._on_thread(connection.close)
            raise
        return result

    def _on_thread(self, call: Callable[[], T]) -> T:
        # Also if the caller is cancelled the call runs to its end: a thread cannot be cancelled.
        return wait(self._completed(call))

    async def _completed(self, call: Callable[[], T]) -> T:
        return await completed(asyncio.get_running_loop().run_in_executor(self._thread, call))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path or ":memory:",
            timeout=self._timeout_s,
            isolation_level=None,  # the driver begins no transactions
            # Statements with literal numbers (session.PART) are not repeated: cache few.
            cached_statements=16,
            uri=self._path.startswith("file:"),
            check_same_thread=False,
        )
        try:
            sqlite_device.set_pragmas(connection, self._pragmas)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close the connection and end its thread. The next transaction makes new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._completed(connection.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def create_tables(self, session: Session) -> None:
        """Create all tables; see `database.Driver`."""
        create_tables(session)

    def failure(self, name: str, error: BaseException) -> MetadataError:
        """Convert an error; see `database.Driver`."""
        return failure_of(name, error)


def create_tables(session: Session, names: Iterable[str] = SQLITE) -> None:
    """Create tables in an SQLite file."""
    for statement in chain.from_iterable(SQLITE[name] for name in names):
        session.run(statement)


@contextmanager
def sqlite_transaction(path: str, mode: str = "rw") -> Iterator[Session]:
    """Run one blocking transaction on an SQLite file, for commands; tables and journal mode are not
    changed. `mode`: SQLite's, `ro`, `rw`, or `rwc` to create the file. Raises MetadataError."""
    uri, wait_s = sqlite_device.uri_of(path, mode), sqlite_device.BUSY_TIMEOUT_S
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)) as link,
            link,  # commits, or rolls back
        ):
            link.execute("BEGIN")
            yield SqliteSession(link)
    except (DamagedRow, sqlite3.Error) as error:
        raise failure_of(path, error) from error
