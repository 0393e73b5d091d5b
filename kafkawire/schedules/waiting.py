"""The index of waiting records: their due times and keys, in an SQLite file of its own.

It holds what would be too much for memory: a record takes 50 to 90 bytes on disk. It is made from
the schedule topics and can be deleted: the records are then read again. What SQLite has not synced
at a crash is followed again, too.

SQLite has no checksums, so each row has one, which is compared when the row is read. The number of
rows of each partition and a sum over them are compared at the start and every minute; the pages are
checked when the file is opened. A damaged index is deleted, and made again.

Blocking; called through the offload pools, one call at a time. Raises sqlite3.Error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from kafkawire.crc32c import crc32c
from kafkawire.metadata.sqlite import SUFFIXES
from kafkawire.own_files import refuse_links
from kafkawire.schedules.progress import Corner, Due

FORMAT = 2
"""Of the tables, as SQLite's user_version; a file of another format is made again. Format 1 had no
checksums."""
CACHE_KIB = 16384
"""SQLite's page cache: due times and keys are inserted at random places. A million records take 75
MB with keys, and a quarter more time with an eighth of this."""

PAGE_BYTES = 16_384
"""Of SQLite: rows of up to half a kilobyte are in the tree itself if it has large pages."""
FILE_NAME = "schedules.db"
IN_MEMORY = ":memory:"
"""The path of an index without a file."""
PRIME = (1 << 31) - 1
"""A time or an offset with one other bit has another remainder, and sums of remainders stay within
64 bits."""
NOT_DAMAGED = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR,
     sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_INTERRUPT)
)  # fmt: skip
"""Errors of the disk, the folder or the moment: another file would not help. All others come from
the contents of the file, as "no such column" and "readonly" of a damaged header."""

logger = logging.getLogger(__name__)

_TERM = f"crc + due % {PRIME} + at % {PRIME}"
_TABLES = f"""
BEGIN;
DROP TABLE IF EXISTS waiting;
DROP TABLE IF EXISTS followed;
CREATE TABLE waiting (
    number INTEGER NOT NULL, due INTEGER NOT NULL, at INTEGER NOT NULL,
    repeats INTEGER NOT NULL, key BLOB, record BLOB, crc INTEGER NOT NULL,
    PRIMARY KEY (number, due, at)
) WITHOUT ROWID;
CREATE INDEX waiting_key ON waiting (number, key) WHERE key IS NOT NULL;
CREATE TABLE followed (
    number INTEGER PRIMARY KEY, until INTEGER NOT NULL,
    records INTEGER NOT NULL, total INTEGER NOT NULL, crc INTEGER NOT NULL
);
PRAGMA user_version={FORMAT};
COMMIT;
"""
_COLUMNS = (
    "due, at, repeats, key, record, crc, key IS NULL OR EXISTS (SELECT 1 FROM waiting AS other "
    "INDEXED BY waiting_key WHERE other.number = waiting.number AND other.key = waiting.key "
    "AND other.key IS NOT NULL AND other.due = waiting.due AND other.at = waiting.at)"
)
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
_ROW = struct.Struct(">qqqqqq")
_FOLLOWED = struct.Struct(">qqqq")


class Arrival(NamedTuple):
    """A record that waits. `repeats`: it will be due again after this time; `key`: the hash of its
    key, if a later record can replace it; `content`: the record itself, if it is small."""

    due_ms: int
    offset: int
    repeats: bool = False
    key: bytes | None = None
    content: bytes | None = None

    @property
    def due(self) -> Due:
        """Its place in the order of delivery."""
        return self.due_ms, self.offset


class Followed(NamedTuple):
    """The part of the index that belongs to a partition: its records up to an offset, how many of
    them wait, and the sum of `_TERM` of their rows."""

    until: int
    records: int
    total: int


class IndexReplaced(sqlite3.OperationalError):
    """The index was made again since it was opened: what it had must be read again."""


class DamagedIndex(sqlite3.DatabaseError):
    """A row, or a number of rows, that was not written like this."""


def is_damage(failure: sqlite3.Error) -> bool:
    """Return whether the file is damaged, so that only another one helps."""
    if isinstance(failure, IndexReplaced | sqlite3.ProgrammingError):
        return False
    code: int = getattr(failure, "sqlite_errorcode", 0)  # absent where a text is not UTF-8
    return isinstance(failure, sqlite3.DatabaseError) and code & 0xFF not in NOT_DAMAGED


def find_damage(path: str) -> str:
    """Return what is wrong with the index of a stopped broker, in words; empty if nothing is. Reads
    all of it and changes nothing. One of another format, or none, is made again at the start."""
    if not os.path.exists(path):
        return ""
    try:
        uri = f"file:{urllib.parse.quote(path)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            if _format(connection) != FORMAT:
                return ""
            _check_file(connection)
            for (number,) in connection.execute("SELECT DISTINCT number FROM waiting").fetchall():
                _check_partition(connection, number)
            for (number,) in connection.execute("SELECT number FROM followed").fetchall():
                _check_partition(connection, number)
            for number, *row in connection.execute(f"SELECT number, {_COLUMNS} FROM waiting"):
                _arrival(number, row)
    except (sqlite3.Error, UnicodeDecodeError) as failure:
        return str(failure)
    return ""


def remove_index(path: str) -> None:
    """Delete the files of an index, which the next start makes again."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            os.remove(path + suffix)


class WaitingIndex:
    """The waiting records of all schedule partitions of a broker, by partition number. `path`: its
    file, or IN_MEMORY. `generation` rises when a damaged file is replaced by an empty one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.generation = 0
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, and check all of it. Make it again if it is new, of another format,
        damaged, or no SQLite file."""
        try:
            self._connection = self._connect()
        except sqlite3.Error as failure:
            if not is_damage(failure):
                raise
            self.recreate(str(failure), self.generation)

    def recreate(self, reason: str, generation: int) -> None:
        """Delete a damaged file, and begin with an empty one: the records are read again. Does
        nothing if that has happened since `generation`."""
        if generation != self.generation:
            return
        logger.warning(
            "the index of waiting records %s is damaged, it is made again from the schedule "
            "topics: %s", self._path, reason,
        )  # fmt: skip
        self.close()
        remove_index(self._path)
        self._connection = self._connect()
        self.generation += 1

    def _connect(self) -> sqlite3.Connection:
        refuse_links(self._path + suffix for suffix in SUFFIXES)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            # Without an fsync for each transaction: what a crash takes is followed again.
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            if _format(connection) != FORMAT:
                connection.executescript(_TABLES)
            _check_file(connection)
        except BaseException as failure:
            connection.close()
            # Of a message of SQLite with a damaged name in it.
            if isinstance(failure, UnicodeDecodeError):
                raise DamagedIndex("its tables cannot be read") from failure
            raise
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check(self, generation: int) -> None:
        if generation != self.generation:
            raise IndexReplaced("it was damaged, and is empty now")

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the index of waiting records is closed")
        return self._connection

    def read_followed(self, number: int) -> Followed | None:
        """Return what is in the index of a partition; None: it is not in it. Raises DamagedIndex
        if its rows are not all there."""
        found, _ = _check_partition(self._open, number)
        return found

    def save(
        self,
        generation: int,
        number: int,
        until: int,
        arrivals: Sequence[Arrival],
        replaced: Iterable[tuple[bytes, int]],
        gone: Sequence[Due],
        delivered: Sequence[Corner] = (),
    ) -> tuple[list[int], int]:
        """Save what has changed since the last call, up to offset `until`: records that are `gone`
        or below a corner of what is `delivered` wait no longer, the arrivals do, except those of a
        `replaced` key below an offset. Return the offsets that were removed by key, and the number
        of records that wait now. Raises IndexReplaced if the index is not the one of `generation`
        any more."""
        self._check(generation)
        connection = self._open
        connection.execute("BEGIN")
        try:
            _, records, total = _read_followed(connection, number) or Followed(0, 0, 0)
            less: list[tuple[int, int]] = []
            for entry in gone:
                less += _delete(connection, "due = ? AND at = ?", number, *entry)
            for corner in delivered:
                where = "(due, at) <= (?, ?) AND at < ?"
                less += _delete(connection, where, number, *corner.due, corner.end)
            # What is followed again after a crash may be there already. Only rows that are new
            # count.
            query = "INSERT INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
            for arrival in arrivals:
                crc = _crc(number, arrival)
                if connection.execute(query, (number, *arrival, crc)).rowcount:
                    records += 1
                    total += crc + _remainder(arrival.due_ms) + _remainder(arrival.offset)
            # After the arrivals, which may be replaced by a later one of the same save.
            by_key: list[tuple[int, int]] = []
            for key, below in replaced:
                by_key += _delete(connection, "key = ? AND at < ?", number, key, below)
            records -= len(less) + len(by_key)
            total -= sum(term for _, term in (*less, *by_key))
            crc = crc32c(_FOLLOWED.pack(number, until, records, total))
            query = "INSERT OR REPLACE INTO followed VALUES (?, ?, ?, ?, ?)"
            connection.execute(query, (number, until, records, total, crc))
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        return [at for at, _ in by_key], records

    def next_entries(self, generation: int, number: int, after: Due, count: int) -> list[Arrival]:
        """Return the next entries after `after`, in the order of delivery, at most `count`. Raises
        IndexReplaced as `save` does, DamagedIndex."""
        self._check(generation)
        query = (
            f"SELECT {_COLUMNS} FROM waiting "
            "WHERE number = ? AND (due, at) > (?, ?) ORDER BY due, at LIMIT ?"
        )
        return [_arrival(number, row) for row in self._open.execute(query, (number, *after, count))]

    def contents(
        self, generation: int, number: int, first: Due, last: Due, count: int
    ) -> list[tuple[int, bytes]]:
        """Return the small records from `first` to `last` in the order of delivery, (offset,
        record), at most `count`. Raises IndexReplaced as `save` does, DamagedIndex."""
        self._check(generation)
        query = (
            f"SELECT {_COLUMNS} FROM waiting WHERE number = ? "
            "AND (due, at) >= (?, ?) AND (due, at) <= (?, ?) AND record IS NOT NULL "
            "ORDER BY due, at LIMIT ?"
        )
        rows = self._open.execute(query, (number, *first, *last, count))
        found = (_arrival(number, row) for row in rows)
        return [(row.offset, row.content) for row in found if row.content is not None]

    def per_hour(self, number: int, limit: int) -> list[tuple[int, int]]:
        """Return (start of the hour in ms, waiting records due in it), the next hours first."""
        query = (
            "SELECT due / 3600000 * 3600000 AS hour, count(*) FROM waiting WHERE number = ? "
            "GROUP BY hour ORDER BY hour LIMIT ?"
        )
        return self._open.execute(query, (number, limit)).fetchall()

    def least_offset(self, number: int) -> int | None:
        """Return the lowest offset of a waiting record: those below it may be deleted. Raises
        DamagedIndex as `read_followed` does."""
        _, least = _check_partition(self._open, number)
        return least

    def delete_partition(self, number: int) -> None:
        connection = self._open
        connection.execute("BEGIN")
        try:
            connection.execute("DELETE FROM followed WHERE number = ?", (number,))
            connection.execute("DELETE FROM waiting WHERE number = ?", (number,))
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise


def _roll_back(connection: sqlite3.Connection) -> None:
    # A full disk, for one, has already ended it.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _delete(
    connection: sqlite3.Connection, where: str, number: int, *values: int | bytes
) -> list[tuple[int, int]]:
    """Delete rows of a partition; return (offset, term of the sum) of each."""
    query = f"DELETE FROM waiting WHERE number = ? AND {where} RETURNING at, {_TERM}"
    return connection.execute(query, (number, *values)).fetchall()


def _remainder(value: int) -> int:
    """Return the remainder as SQLite does, whose sign is that of the value."""
    return value % PRIME if value >= 0 else -(-value % PRIME)


def _format(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def _check_file(connection: sqlite3.Connection) -> None:
    """Raise DamagedIndex unless the tables are those of the format, and the pages are whole."""
    # Half a second for a million records, without the interpreter lock.
    with closing(sqlite3.connect(IN_MEMORY)) as fresh:
        fresh.executescript(_TABLES)
        expected = fresh.execute(_SCHEMA).fetchall()
    if connection.execute(_SCHEMA).fetchall() != expected:
        raise DamagedIndex("its tables are not those of its format")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedIndex(" ".join(found.split()))


def _check_partition(
    connection: sqlite3.Connection, number: int
) -> tuple[Followed | None, int | None]:
    """Return what is in the index of a partition, and the lowest offset of a record. Raises
    DamagedIndex if its rows are not all there, or are not those that were written."""
    found = _read_followed(connection, number)
    query = f"SELECT count(*), coalesce(sum({_TERM}), 0), min(at) FROM waiting WHERE number = ?"
    records, total, least = connection.execute(query, (number,)).fetchone()
    # A row that is lost would never be delivered, and no checksum of a row says so.
    if (records, total) != ((found.records, found.total) if found else (0, 0)):
        raise DamagedIndex(f"the rows of partition {number} are not those that were written")
    return found, least


def _read_followed(connection: sqlite3.Connection, number: int) -> Followed | None:
    query = "SELECT until, records, total, crc FROM followed WHERE number = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        return None
    *numbers, crc = row
    # Damage can make a number a text, which cannot be packed.
    with suppress(struct.error):
        if crc32c(_FOLLOWED.pack(number, *numbers)) == crc:
            return Followed(*numbers)
    raise DamagedIndex(f"the row of what is followed of partition {number} has another checksum")


def _crc(number: int, arrival: Arrival) -> int:
    """Return the checksum of a row. Its blobs are None, or have a length."""
    key, content = arrival.key, arrival.content
    sizes = (-1 if key is None else len(key), -1 if content is None else len(content))
    head = _ROW.pack(number, arrival.due_ms, arrival.offset, arrival.repeats, *sizes)
    return crc32c(content or b"", crc32c(key or b"", crc32c(head)))


def _arrival(number: int, row: Sequence[Any]) -> Arrival:
    """Return a row as `_COLUMNS` selects it. Raises DamagedIndex if its checksum is another one, or
    it is not found by its key."""
    *columns, crc, found_by_key = row
    found = Arrival(*columns)
    # Damage can make a number a text, which cannot be packed.
    with suppress(struct.error, TypeError, ValueError):
        if _crc(number, found) == crc and found_by_key:
            return found
    raise DamagedIndex(f"a row of partition {number} has another checksum or is not in its index")
