"""Time, random ids, folders, calls on threads, and how SQLite files are opened.

Used by `database.py`, `statements.py` and RocksDB's storage. Imports no SQLAlchemy."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import urllib.parse
import weakref
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Protocol, TypeVar

from kafkawire.metadata import schema
from kafkawire.metadata.store import MetadataError

T = TypeVar("T")

# How long to wait for another process that writes. Transactions take milliseconds.
BUSY_TIMEOUT_S = 10

# Of every connection. FULL: a commit is on the disk when it returns (with NORMAL only the next
# checkpoint of the write-ahead log syncs).
PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=ON")
# IMMEDIATE: the write lock is taken at the start, so no transaction can fail half way because
# another process has written since it began to read.
BEGIN = "BEGIN IMMEDIATE"


def now_ms() -> int:
    """Milliseconds since 1970, for the time columns; nothing is decided by it."""
    return time.time_ns() // 1_000_000


def random_id() -> bytes:
    """16 random bytes with the marks of a version 4 UUID, as Kafka's Uuid.randomUuid: none that
    begins with a dash as text, which command lines would take for an option."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 62:  # the 62nd letter of url-safe base64 is the dash
            return bytes(raw)


async def aside(call: Callable[[], T]) -> T:
    """Run `call` on a thread; see `completed` for a caller that is cancelled."""
    return await completed(asyncio.get_running_loop().run_in_executor(None, call))


async def completed(work: Awaitable[T], patience_s: float | None = None) -> T:
    """Run a transaction to its end, also when the caller is cancelled, who then gets the
    CancelledError after it.

    Without that the next transaction could commit first, and an older checkpoint would then
    replace a newer one; and a driver that is cancelled while it rolls back leaves its connection
    in an unknown state. `patience_s`: how long after a cancellation the work is cancelled too, for
    a server that does not answer; None for work on a thread, which cannot be cancelled.
    """
    running: asyncio.Future[T] = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            done, _ = await asyncio.wait([running], timeout=patience_s if cancelled else None)
            if not done:
                running.cancel()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # retrieved, or asyncio would log it
    raise cancelled


async def connect_sqlite(*arguments: Any, **options: Any) -> Any:
    """Return a connection of aiosqlite; see `aiosqlite.connect`.

    Where the file cannot be opened, the connection's thread has ended before the error is raised:
    aiosqlite only asks it to end, and it reports to the event loop. If the loop was closed by then
    (a refused start), the thread died with a traceback."""
    import aiosqlite  # only here: PostgreSQL and RocksDB need none

    connection: Any = aiosqlite.connect(*arguments, **options)
    thread: threading.Thread = getattr(connection, "_thread", connection)  # before 0.22: itself
    thread.daemon = True  # as SQLAlchemy sets it: no exit waits for a connection
    try:
        return await connection
    except BaseException:
        await aside(thread.join)
        raise


class SqliteConnection(sqlite3.Connection):
    """A connection to an SQLite file whose `close` ends its transaction, whatever it is doing.

    The standard library closes with sqlite3_close_v2, which leaves the connection open, with its
    locks, while a statement has rows left. So the cursor of a cancelled query, in a reference cycle
    with its exception, kept the write lock until the next garbage collection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors: set[weakref.ref[sqlite3.Cursor]] = set()

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Return a cursor; see sqlite3."""
        cursor = super().cursor(factory)
        self._cursors.add(weakref.ref(cursor, self._cursors.discard))
        return cursor

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        """Execute statements; see sqlite3, whose own method does not call `cursor`."""
        cursor: sqlite3.Cursor = self.cursor().execute(sql, values)
        return cursor

    def executemany(self, sql: str, values: Any, /) -> sqlite3.Cursor:
        """Execute statements; see sqlite3, whose own method does not call `cursor`."""
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, values)
        return cursor

    def close(self) -> None:
        """Close the cursors, roll back, release the locks."""
        for reference in self._cursors.copy():  # other threads may drop cursors meanwhile
            cursor = reference()
            if cursor is not None:
                cursor.close()
        super().close()


class Cursor(Protocol):
    """The part of a database cursor that every driver has."""

    def execute(self, sql: str, /) -> object:
        """Run one statement."""


def set_pragmas(cursor: Cursor) -> None:
    """Set the pragmas of a new connection to an SQLite file."""
    for pragma in PRAGMAS:
        cursor.execute(pragma)


def is_absent(file: str) -> bool:
    """Whether there is no file of this name, or an empty one."""
    try:
        return os.path.getsize(file) == 0
    except FileNotFoundError:
        return True


def refuse_foreign(file: str) -> None:
    """MetadataError for an SQLite file with tables of another program. To be called before a
    connection is opened that changes the journal mode, which is written into the file."""
    try:
        if not os.path.getsize(file):
            return
        path = urllib.parse.quote(os.path.abspath(file))
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
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
