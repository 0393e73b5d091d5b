"""Offsets stored in the metadata of a data folder, whether its broker runs or not.

SQLite only, read-only: nothing is created or migrated. Called by kafkawire.cli.offsets.report and
kafkawire.cli.offsets.app.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from kafkawire.cli.output import fail, print_json, print_table
from kafkawire.client.errors import ClientError
from kafkawire.metadata import schema
from kafkawire.metadata.session import SqliteSession
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.offsets.catalog.sql.statements import metrics, stats

TIMEOUT_S = 10.0


@contextmanager
def opened(data: str) -> Iterator[sqlite3.Connection]:
    """Open the metadata file of a data folder for reading. ClientError if that fails."""
    path = os.path.join(os.path.abspath(data), "metadata.db")
    if not os.path.isfile(path):
        raise ClientError(
            f"{path} does not exist: {data} is not a data folder with SQLite metadata"
        )
    try:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=TIMEOUT_S)
        try:
            check_revision(connection, path)
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ClientError(f"{path} cannot be read: {error}") from None


def check_revision(connection: sqlite3.Connection, path: str) -> None:
    """Raise ClientError unless the schema revision is that of this version."""
    known = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = ?", (schema.VERSION_TABLE,)
    ).fetchone()
    found = (
        known and connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchone()
    )
    if not found or found[0] != schema.REVISION:
        stored = found[0] if found else "none"
        raise ClientError(
            f"{path} has schema revision {stored}, this version needs {schema.REVISION}: "
            "start a broker of this version once to migrate it"
        )


def stored_stats(data: str, topic: str, indexes: list[int] | None = None) -> list[dict[str, Any]]:
    """Rows with the stored state of each partition of a topic, or of some; times in ms since
    1970."""
    with opened(data) as connection:
        found = connection.execute(
            "SELECT p.idx, p.number FROM partitions p JOIN topics t ON t.id = p.topic_id"
            " WHERE t.name = ? AND t.deleted_ms IS NULL ORDER BY p.idx",
            (topic,),
        ).fetchall()
        if not found:
            raise ClientError(f"{data} has no topic {topic}")
        absent = set(indexes or ()) - {index for index, _ in found}
        if absent:
            raise ClientError(f"topic {topic} has no partition {min(absent)}")
        if indexes is not None:
            found = [row for row in found if row[0] in indexes]
        rows = stats(SqliteSession(connection), [number for _, number in found])
    return [
        {
            "partition": index,
            "number": number,
            "checkpoint_offset": _known(rows[number].checkpoint_offset),
            "log_start": rows[number].log_start,
            "segments": rows[number].mappings,
            "records_in_segments": rows[number].records,
            "bytes_in_segments": rows[number].size_bytes,
            "last_activity_ms": _known(rows[number].last_activity_ms),
        }
        for index, number in found
    ]


def show_metrics(data: str, as_json: bool) -> None:
    """Show the number and size of everything stored in a data folder."""
    try:
        with opened(data) as connection:
            found = metrics(SqliteSession(connection))
    except ClientError as error:
        fail(error)
    names = {STARTED: "started", LIVE: "live", DELETING: "deleting"}
    row: dict[str, Any] = {"checkpoints": found.checkpoints, "mappings": found.mappings}
    row |= {f"segments_{name}": found.segments.get(state, 0) for state, name in names.items()}
    row |= {"size_bytes": found.size_bytes, "live_bytes": found.live_bytes}
    if as_json:
        print_json(row)
    else:
        print_table([row], tuple(row), f"{data}, stored offsets")


def _known(value: int) -> int | None:
    return None if value < 0 else value
