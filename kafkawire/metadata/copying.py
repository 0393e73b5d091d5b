"""Copies of the metadata: an SQLite file that holds all tables, whatever database they are in.

The format of a backup is an SQLite file with the tables of `schema.py`: any tool reads it. From
SQLite it is a copy by SQLite's own online backup, from PostgreSQL one transaction that sees one
moment. Blocking, for commands; SQLAlchemy is imported for PostgreSQL only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from kafkawire.metadata import schema
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.metadata.store import MetadataError

PAGES = 1_000
"""Copied at a time: 4 MB, between which the broker may write."""
ROWS = 5_000
"""Rows read and written at a time."""

_OF_RECORDS = (
    "offset_mappings", "segments", "partition_metadata", "checkpoints",
    "remote_objects", "tiering_offsets", "tiers", "data_folders",
)  # fmt: skip

End = tuple[int, int, int]
"""Partition number, log start, end of the log."""


def copy_sqlite(source: str, target: str) -> None:
    """Copy a living SQLite file; MetadataError when it is no metadata, newer, or damaged."""
    try:
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other, pages=PAGES)
            other.execute("PRAGMA journal_mode=DELETE")  # one file, also while it is read
        check(target, source)
    except sqlite3.Error as error:
        raise MetadataError(f"{source} cannot be copied to {target} ({error})") from error


def check(path: str, name: str = "") -> None:
    """MetadataError unless the file is sound metadata of this program's revision."""
    name = name or path
    try:
        with closing(sqlite3.connect(path)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise MetadataError(f"{name} is damaged: {found}")
            query = f"SELECT version_num FROM {schema.VERSION_TABLE}"
            (stored,) = connection.execute(query).fetchone() or ("none",)
    except sqlite3.Error as error:
        raise MetadataError(f"{name} is damaged or no metadata of kafkawire ({error})") from error
    if stored != schema.REVISION:
        raise MetadataError(
            f"{name} has revision {stored}, this kafkawire knows {schema.REVISION}: "
            "use the version that wrote it"
        )


def new_sqlite(path: str) -> None:
    """A file with empty tables and no revision row, which the copy brings."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema.SQLITE_TABLES)


def counts(path: str) -> dict[str, int]:
    """Rows of each table."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in tables(connection)
        }


def tables(connection: sqlite3.Connection) -> list[str]:
    """The names of our tables, parents before children: the order they were made in."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    )
    order = [
        line.split()[2] for line in schema.SQLITE_TABLES.splitlines() if "CREATE TABLE" in line
    ]
    return sorted((name for (name,) in found if name in order), key=order.index)


def enter_ends(path: str, ends: Iterable[End]) -> None:
    """Insert where logs end, where that is further than the checkpoints say."""
    rows = [
        (number, end, start, pack_epochs([]), pack_producers([])) for number, start, end in ends
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO partition_offset_checkpoints VALUES (?, ?, ?, ?, ?, 0)"
            " ON CONFLICT (partition_number) DO UPDATE SET"
            " checkpoint_offset = max(checkpoint_offset, excluded.checkpoint_offset),"
            " log_start = max(log_start, excluded.log_start)",
            rows,
        )


def begin_anew(path: str) -> None:
    """Make the tables those of brokers without records: logs begin where they ended, in the next
    leader epoch, so no offset is given again and readers are told; there are no segments. What is
    in a remote tier is forgotten, not deleted: the broker that was copied may still need it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in _OF_RECORDS:
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE partitions SET leader_epoch = leader_epoch + 1")
        found = connection.execute(
            "SELECT p.leader_epoch, c.checkpoint_offset, p.number FROM partitions p"
            " JOIN partition_offset_checkpoints c ON c.partition_number = p.number"
        ).fetchall()
        connection.executemany(
            "UPDATE partition_offset_checkpoints SET log_start = checkpoint_offset,"
            " leader_epochs = ?, producers = ? WHERE partition_number = ?",
            [
                (pack_epochs([(epoch, end)]), pack_producers([]), number)
                for epoch, end, number in found
            ],
        )


def export(url: str, target: str) -> None:
    """All tables of a PostgreSQL database, as of one moment, into a new SQLite file."""
    import asyncio

    from kafkawire.metadata.exchange import read_all

    new_sqlite(target)
    with closing(sqlite3.connect(target)) as connection, connection:

        def put(table: str, columns: Sequence[str], rows: list[Sequence[Any]]) -> None:
            _insert(connection, table, columns, rows)

        asyncio.run(read_all(url, tables(connection), put, ROWS))
    check(target, url)


def fill(url: str, source: str) -> None:
    """All rows of an SQLite file into a PostgreSQL database without any of ours."""
    import asyncio

    from kafkawire.metadata.exchange import write_all

    with closing(sqlite3.connect(source)) as connection:

        def rows_of(table: str) -> Iterable[list[Any]]:
            cursor = connection.execute(f"SELECT * FROM {table}")
            while part := cursor.fetchmany(ROWS):
                yield part

        asyncio.run(write_all(url, tables(connection), rows_of))


def _insert(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: list[Sequence[Any]]
) -> None:
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", list(map(tuple, rows))
    )
