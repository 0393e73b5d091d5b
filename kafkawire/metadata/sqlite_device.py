"""SQLite files: pragmas, connections, what is refused before a connection changes a file."""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from kafkawire.metadata import schema
from kafkawire.metadata.completion import aside
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
            self._connection = await aside(connect)
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
