"""Search for damaged rows: those that do not match their checksum (`checksums`), and those that are
gone although other rows refer to them, which no statement can delete.

A damaged row may not be found by the statement that should read it: its key may be damaged, or the
deletion time of its topic. So each start reads all rows of the tables it depends on, before it
believes any of them; `kafkawire fsck`, copies, and the daily check of an SQLite file read all rows
of all tables. Statements check what they read later on (`Session.read_checked`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kafkawire.codec.types import uuid_parse, uuid_text
from kafkawire.metadata.catalog import TOPIC_RESOURCE
from kafkawire.metadata.schema import UNCHECKED
from kafkawire.metadata.schema.created import KEYS, REFERENCES
from kafkawire.metadata.session import Row
from kafkawire.metadata.sqlite import connect_to_check
from kafkawire.metadata.store import DamagedMetadata, failure_of
from kafkawire.plural import count

Query = Callable[[str, Row], Sequence[Row]]
"""Runs a query with values, and returns the rows."""

NAMED = 10
"""Damaged rows of one table that are named: enough to see what is affected."""

CHECKED = [name for name in KEYS if name not in UNCHECKED]
LARGE = frozenset({"offset_mappings", "partition_metadata", "remote_objects", "segments"})
"""Tables that grow with the records: one database of many brokers may have a hundred million rows,
of which a start reads few. A partition notices when it is loaded that a mapping is missing."""
AT_START = [name for name in CHECKED if name not in LARGE]

_PARTITION = (
    "SELECT t.name, p.idx FROM partitions p JOIN topics t ON t.id = p.topic_id WHERE p.number = ?"
)
_IN_SEGMENT = (
    "SELECT DISTINCT t.name FROM offset_mappings m JOIN partitions p ON p.number ="
    " m.partition_number JOIN topics t ON t.id = p.topic_id WHERE m.segment_id = ?"
    f" ORDER BY 1 LIMIT {NAMED:d}"
)


def find(query: Query, names: Sequence[str] = CHECKED) -> str:
    """Return which rows of these tables are damaged, and which they refer to are gone, for a
    message; empty: none."""
    return "; ".join(filter(None, (_find_changed(query, names), *_find_missing(query, names))))


def _find_missing(query: Query, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for column, parent, key in REFERENCES.get(name, ()):
            rows = query(
                f"SELECT DISTINCT c.{column} FROM {name} c LEFT JOIN {parent} t"
                f" ON t.{key} = c.{column} WHERE t.{key} IS NULL LIMIT {NAMED:d}",
                (),
            )
            if rows:
                texts = ", ".join(
                    uuid_text(value) if isinstance(value, bytes) else str(value)
                    for (value,) in rows
                )
                yield f"{parent} has no row of {key} {texts}, which {name} refers to"


def _find_changed(query: Query, names: Iterable[str]) -> str:
    found: list[str] = []
    for name in names:
        shown = ("name",) if name == "topics" else KEYS[name]
        rows = query(
            f"SELECT {', '.join(shown)} FROM {name} WHERE NOT {name}.intact LIMIT {NAMED + 1:d}", ()
        )
        found += [f"{name} of {_owner(query, name, shown, row)}" for row in rows[:NAMED]]
        if len(rows) > NAMED:
            found.append(f"more of {name}")
    if not found:
        return ""
    verb = "does not match its checksum" if len(found) == 1 else "do not match their checksums"
    return f"{count(len(found), 'row')} {verb}: {', '.join(found)}"


def check_file(path: str) -> None:
    """Check all rows of an SQLite file, which is only read. Raises DamagedMetadata, and
    MetadataError if it cannot be read."""
    try:
        with contextlib.closing(connect_to_check(path)) as connection:
            check(path, connection)
    except sqlite3.Error as failure:
        raise failure_of(path, failure) from failure


def check(path: str, connection: sqlite3.Connection) -> None:
    """Check all rows of an SQLite file. Raises DamagedMetadata."""
    if found := find(lambda sql, values: connection.execute(sql, values).fetchall()):
        raise DamagedMetadata(path, found, ours=True)


def _owner(query: Query, table: str, keys: Sequence[str], row: Row) -> str:
    """Return the topic or partition that a row is about, where that is known; otherwise its key."""
    key: dict[str, Any] = dict(zip(keys, row, strict=True))
    number = key.get("partition_number", key.get("number"))
    topics: list[str] = []
    if number is not None:
        topics = [f"{name}-{index}" for name, index in query(_PARTITION, (number,))]
    elif table == "segments":
        topics = [name for (name,) in query(_IN_SEGMENT, (key["id"],))]
    elif key.get("resource_type") == TOPIC_RESOURCE:
        with contextlib.suppress(ValueError):
            topic_id = uuid_parse(key["resource"])
            topics = [
                name for (name,) in query("SELECT name FROM topics WHERE id = ?", (topic_id,))
            ]
    texts = [value.hex() if isinstance(value, bytes) else str(value) for value in row]
    if table == "topics":
        return texts[0]
    named = ", ".join(f"{name} {text}" for name, text in zip(keys, texts, strict=True))
    return f"{', '.join(topics)} ({named})" if topics else named


STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's virtual machine, some tenths of a millisecond, between checks for
`stop`, in case `interrupt` was called before the statement began."""


class PageCheck:
    """One check of every page and every row of an SQLite file while the broker serves, on a
    separate read-only connection, which in WAL mode blocks no writer.

    SQLite verifies a page when a statement reads it, so damage to pages that no statement reads
    goes unnoticed until the next start or a rare request needs them. `PRAGMA quick_check` reads all
    of them, but not whether indexes agree with tables: `kafkawire fsck` checks that too. Then each
    row is compared with its checksum. Used by kafkawire.server.metadata_check, on a thread.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._stopped = False

    def run(self) -> bool:
        """Read every page and row; return False if it was stopped. Blocking.

        Raises DamagedMetadata, and MetadataError if the file cannot be read (disk error, busy).
        """
        try:
            with contextlib.closing(connect_to_check(self._path)) as connection:
                connection.set_progress_handler(lambda: self._stopped, STEPS_BETWEEN_CHECKS)
                self._connection = connection
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found == "ok" and not self._stopped:
                    check(self._path, connection)
        except sqlite3.Error as failure:
            if self._stopped:
                return False
            raise failure_of(self._path, failure) from failure
        if self._stopped:  # an interrupted check has no result
            return False
        if found != "ok":
            raise DamagedMetadata(self._path, " ".join(found.split()))
        return True

    def stop(self) -> None:
        """Make `run` return soon. Thread-safe; no effect before and after it."""
        self._stopped = True
        if self._connection is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # already closed
                self._connection.interrupt()
