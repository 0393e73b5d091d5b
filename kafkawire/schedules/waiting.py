"""The index of waiting records: their due times and keys, in an SQLite file of its own.

It holds what would be too much for memory: a record takes 40 to 80 bytes on disk. Small records are
in it as a whole: records that are due at the same time come from everywhere in the topic, and each
would cost the read of a batch. It is made from the schedule topics and can be deleted: the records
are then read again. What SQLite has not synced
at a crash is followed again, too.

Blocking; called through the offload pools, one call at a time. Raises sqlite3.Error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kafkawire.schedules.progress import Corner, Due

FORMAT = 1
"""Of the tables, as SQLite's user_version; a file of another format is made again."""
CACHE_KIB = 16384
"""SQLite's page cache: due times and keys are inserted at random places. A million records take 75
MB with keys, and a quarter more time with an eighth of this."""

PAGE_BYTES = 16_384
"""Of SQLite: rows of up to half a kilobyte are in the tree itself if it has large pages."""
IN_MEMORY = ":memory:"
"""The path of an index without a file."""

logger = logging.getLogger(__name__)

_TABLES = f"""
BEGIN;
DROP TABLE IF EXISTS waiting;
DROP TABLE IF EXISTS followed;
CREATE TABLE waiting (
    number INTEGER NOT NULL, due INTEGER NOT NULL, at INTEGER NOT NULL,
    repeats INTEGER NOT NULL, key BLOB, record BLOB,
    PRIMARY KEY (number, due, at)
) WITHOUT ROWID;
CREATE INDEX waiting_key ON waiting (number, key) WHERE key IS NOT NULL;
CREATE TABLE followed (number INTEGER PRIMARY KEY, until INTEGER NOT NULL);
PRAGMA user_version={FORMAT};
COMMIT;
"""


class Arrival(NamedTuple):
    """A record that waits. `repeats`: it will be due again after this time; `key`: the hash of its
    key, if a later record can replace it; `content`: the record itself, if it is small."""

    due_ms: int
    offset: int
    repeats: bool = False
    key: bytes | None = None
    content: bytes | None = None


class StoredDue(NamedTuple):
    """A row of the index, without its key."""

    due_ms: int
    offset: int
    repeats: int

    @property
    def due(self) -> Due:
        """Its place in the order of delivery."""
        return self.due_ms, self.offset


class IndexReplaced(sqlite3.OperationalError):
    """The index was made again since it was opened: what it had must be read again."""


class WaitingIndex:
    """The waiting records of all schedule partitions of a broker, by partition number. `path`: its
    file, or IN_MEMORY. `generation` rises when a damaged file is replaced by an empty one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.generation = 0
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file. Make it again if it is new, of another format, or no SQLite file."""
        try:
            self._connection = self._connect()
        except sqlite3.OperationalError:  # the folder, the disk: another file would not help
            raise
        except sqlite3.DatabaseError as damage:
            self.recreate(str(damage))

    def recreate(self, reason: str) -> None:
        """Delete a damaged file, and begin with an empty one: the records are read again."""
        logger.warning(
            "the index of waiting records %s is damaged, it is made again from the schedule "
            "topics: %s", self._path, reason,
        )  # fmt: skip
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.remove(self._path + suffix)
        self._connection = self._connect()
        self.generation += 1

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found != FORMAT:
                connection.executescript(_TABLES)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the file."""
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

    def followed(self, number: int) -> int | None:
        """Return the offset up to which a partition is in the index; None: it is not."""
        row = self._open.execute("SELECT until FROM followed WHERE number = ?", (number,))
        found = row.fetchone()
        return None if found is None else int(found[0])

    def count(self, number: int) -> int:
        """Return the number of waiting records of a partition."""
        query = "SELECT count(*) FROM waiting WHERE number = ?"
        return int(self._open.execute(query, (number,)).fetchone()[0])

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
        `replaced` key below an offset. Return the offsets that were removed by key, and by how much
        the number of waiting records grew. Raises IndexReplaced if the index is not the one of
        `generation` any more."""
        self._check(generation)
        connection = self._open
        removed: list[int] = []
        connection.execute("BEGIN")
        try:
            grown = -connection.executemany(
                "DELETE FROM waiting WHERE number = ? AND due = ? AND at = ?",
                [(number, *entry) for entry in gone],
            ).rowcount
            for corner in delivered:
                query = "DELETE FROM waiting WHERE number = ? AND (due, at) <= (?, ?) AND at < ?"
                grown -= connection.execute(query, (number, *corner.due, corner.end)).rowcount
            grown += connection.executemany(
                "INSERT INTO waiting VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [(number, *arrival) for arrival in arrivals],
            ).rowcount
            for key, below in replaced:
                query = "DELETE FROM waiting WHERE number = ? AND key = ? AND at < ? RETURNING at"
                rows = connection.execute(query, (number, key, below)).fetchall()
                removed += [at for (at,) in rows]
            connection.execute("INSERT OR REPLACE INTO followed VALUES (?, ?)", (number, until))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        return removed, grown - len(removed)

    def next(self, generation: int, number: int, after: Due, count: int) -> list[StoredDue]:
        """Return the next entries after `after`, in the order of delivery, at most `count`. Raises
        IndexReplaced as `save` does."""
        self._check(generation)
        query = (
            "SELECT due, at, repeats FROM waiting WHERE number = ? AND (due, at) > (?, ?) "
            "ORDER BY due, at LIMIT ?"
        )
        rows = self._open.execute(query, (number, *after, count)).fetchall()
        return [StoredDue(*row) for row in rows]

    def contents(
        self, generation: int, number: int, first: Due, last: Due, count: int
    ) -> list[tuple[int, bytes]]:
        """Return the small records from `first` to `last` in the order of delivery, (offset,
        record), at most `count`. Raises IndexReplaced as `save` does."""
        self._check(generation)
        query = (
            "SELECT at, record FROM waiting WHERE number = ? AND (due, at) >= (?, ?) "
            "AND (due, at) <= (?, ?) AND record IS NOT NULL ORDER BY due, at LIMIT ?"
        )
        return self._open.execute(query, (number, *first, *last, count)).fetchall()

    def per_hour(self, number: int, limit: int) -> list[tuple[int, int]]:
        """Return (start of the hour in ms, waiting records that are due in it), the next hours
        first."""
        query = (
            "SELECT due / 3600000 * 3600000 AS hour, count(*) FROM waiting WHERE number = ? "
            "GROUP BY hour ORDER BY hour LIMIT ?"
        )
        return self._open.execute(query, (number, limit)).fetchall()

    def least_offset(self, number: int) -> int | None:
        """Return the lowest offset of a waiting record: those below it may be deleted."""
        query = "SELECT min(at) FROM waiting WHERE number = ?"
        found: int | None = self._open.execute(query, (number,)).fetchone()[0]
        return found

    def drop(self, number: int) -> None:
        """Remove a partition."""
        connection = self._open
        connection.execute("BEGIN")
        try:
            connection.execute("DELETE FROM waiting WHERE number = ?", (number,))
            connection.execute("DELETE FROM followed WHERE number = ?", (number,))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
