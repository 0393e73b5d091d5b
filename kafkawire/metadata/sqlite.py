"""A database in an SQLite file, through the standard library: a connection with a thread for the
broker, a blocking transaction for commands, and what is refused before a connection changes a file.

The work of a transaction runs on the event loop, in a greenlet that waits while the thread runs a
statement. Imports no SQLAlchemy, which would take a third of a start and of an idle broker's
memory.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import urllib.parse
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

from kafkawire.metadata import schema
from kafkawire.metadata.completion import in_greenlet, run_on_thread, run_to_end, wait
from kafkawire.metadata.schema.created import SQLITE
from kafkawire.metadata.session import PORTION, DamagedRow, Row, Session
from kafkawire.metadata.store import MetadataError, OlderMetadata, failure_of
from kafkawire.own_files import refuse_links

# How long to wait for another process that writes. Transactions take milliseconds.
BUSY_TIMEOUT_S = 10
QUICK_TIMEOUT_S = 1.0
"""All limits of both databases in a quick session (`database.Database`): an answer that comes later
than the next heartbeat is of no use."""

# Of every connection. FULL: a commit is on the disk when it returns (with NORMAL only the next
# checkpoint of the write-ahead log syncs).
PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=ON")
# Of the connection for heartbeats, whose commits sync nothing. Every thousandth finds a long
# write-ahead log and brings it into the file, with two syncs: otherwise that log would only grow.
QUICK_PRAGMAS = (PRAGMAS[0], "PRAGMA synchronous=NORMAL", PRAGMAS[2])
# Without foreign keys: a migration replaces tables that others refer to by copies of them.
UPGRADE_PRAGMAS = PRAGMAS[:2]
# IMMEDIATE: the write lock is taken at the start, so no transaction can fail half way because
# another process has written since it began to read.
BEGIN = "BEGIN IMMEDIATE"

SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of the files of a database."""


# Of everything that a broker follows: the catalog, and the tables of security. A few rows.
_VERSIONS = "SELECT version FROM cluster UNION ALL SELECT version FROM security_versions"


class CommitCounter:
    """A connection that only notices commits of other connections, also of other processes: in some
    microseconds, without a lock, a thread or a write. Call `open` before `value`.

    A commit counts if it changed one of the versions in _VERSIONS: brokers store heartbeats each
    second, after which there is nothing else to read."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._commits = -1
        self._versions: list[tuple[int]] = []
        self._changes = 0

    async def open(self) -> None:
        """Open the connection. The file must exist. Raises MetadataError."""

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(
                uri_of(self._file, "rw"),
                timeout=0.0,  # `value` is called on the event loop
                uri=True,
                check_same_thread=False,
                isolation_level=None,
            )

        try:
            self._connection = await run_on_thread(connect)
        except sqlite3.Error as failure:
            raise failure_of(self._file, failure) from failure

    def value(self) -> int | None:
        """Return a number that differs after each commit of another connection that counts; None if
        it cannot be read."""
        if self._connection is None:
            return None
        try:
            commits = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            if commits != self._commits:
                versions = self._connection.execute(_VERSIONS).fetchall()
                if versions != self._versions:
                    self._versions = versions
                    self._changes += 1
                self._commits = commits
        except sqlite3.Error:
            return None
        return self._changes

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class OpenedFile:
    """An SQLite file that connections have open. They use it until the process ends, also if it was
    removed or replaced by a copy: then no other process ever reads what they commit."""

    def __init__(self, file: str) -> None:
        """Raises MetadataError."""
        self._file = file
        self._number = self._read()

    def check(self) -> None:
        """Raise OlderMetadata if another file, or none, has its name."""
        if self._read() != self._number:
            raise OlderMetadata(f"another file has the name {self._file}, or none")

    def _read(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return None
        except OSError as failure:
            raise MetadataError(f"{self._file} cannot be read ({failure.strerror})") from failure
        return found.st_dev, found.st_ino


class Cursor(Protocol):
    """The part of a database cursor that every driver has."""

    def execute(self, sql: str, /) -> object:
        """Run one statement."""


def set_pragmas(cursor: Cursor, pragmas: Sequence[str] = PRAGMAS) -> None:
    """Set the pragmas of a new connection to an SQLite file."""
    for pragma in pragmas:
        cursor.execute(pragma)


def is_absent(file: str) -> bool:
    """Whether there is no file of this name, or an empty one."""
    try:
        return os.path.getsize(file) == 0
    except FileNotFoundError:
        return True


def uri_of(file: str, mode: str) -> str:
    """Return the URI of a file for `sqlite3.connect`. `mode`: `ro`, `rw`, or `rwc` to create it."""
    return f"file:{urllib.parse.quote(os.path.abspath(file))}?mode={mode}"


def connect_to_check(file: str) -> sqlite3.Connection:
    """Return a connection that only reads, blocks no writer in WAL mode, can be interrupted from
    another thread, and reads texts that are damaged."""
    connection = sqlite3.connect(
        uri_of(file, "ro"), uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
    )
    connection.text_factory = lambda text: text.decode(errors="backslashreplace")
    return connection


def integrity_check(file: str) -> str:
    """Return "ok", or the first problem of a file, also when it cannot be opened. Reads all of it,
    writes nothing."""
    try:
        with closing(sqlite3.connect(uri_of(file, "ro"), uri=True)) as connection:
            return str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.Error as failure:
        return str(failure)


def end_wal(file: str) -> None:
    """Bring everything of a database into its one file, which needs no others after it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def refuse_foreign(file: str) -> None:
    """MetadataError for a symbolic link, and for an SQLite file with tables of another program. To
    be called before a connection is opened that changes the journal mode, which is written into
    the file."""
    try:
        refuse_links(file + suffix for suffix in SUFFIXES)
    except OSError as link:
        raise MetadataError(str(link)) from None
    try:
        if not os.path.getsize(file):
            return
        with closing(sqlite3.connect(uri_of(file, "ro"), uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = {name for (name,) in tables}
    except (OSError, sqlite3.Error):
        return  # absent, or damaged: opening it for good finds the words
    if names and schema.VERSION_TABLE not in names:
        raise MetadataError(
            f"{file} is a database of another program (it has the table {min(names)}): "
            "give --metadata a file of its own"
        )


def make_folder_of(file: str) -> None:
    """Make the folder of a file and those above it, durable: SQLite itself syncs only the one
    folder it writes in. MetadataError."""
    _make_folder(os.path.dirname(os.path.abspath(file)))


def _make_folder(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_folder(parent)
    try:
        os.mkdir(path)
        handle = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except FileExistsError:
        return
    except OSError as error:
        raise MetadataError(f"{path} cannot be made ({error.strerror})") from error


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
        self._pragmas = QUICK_PRAGMAS if quick else PRAGMAS
        self._timeout_s = QUICK_TIMEOUT_S if quick else BUSY_TIMEOUT_S
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
            self._on_thread(lambda: connection.execute(BEGIN))
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
        return wait(self._run_to_end(call))

    async def _run_to_end(self, call: Callable[[], T]) -> T:
        return await run_to_end(asyncio.get_running_loop().run_in_executor(self._thread, call))

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
            set_pragmas(connection, self._pragmas)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close the connection and end its thread. The next transaction makes new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._run_to_end(connection.close)
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
    uri, wait_s = uri_of(path, mode), BUSY_TIMEOUT_S
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)) as link,
            link,  # commits, or rolls back
        ):
            link.execute("BEGIN")
            yield SqliteSession(link)
    except (DamagedRow, sqlite3.Error) as error:
        raise failure_of(path, error) from error
