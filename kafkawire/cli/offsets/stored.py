"""Offsets stored in the metadata of a data folder, whether its broker runs or not.

SQLite only, read-only: nothing is created or migrated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafkawire.cli.output import fail, print_json, print_table
from kafkawire.cli.parameters import Data, Json
from kafkawire.client.errors import ClientError
from kafkawire.metadata import schema
from kafkawire.metadata.database import revision_of, sqlite_transaction
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.offsets.catalog.sql.statements import metrics, stats


@contextmanager
def opened(data: str) -> Iterator[Session]:
    """Open the metadata file of a data folder for reading. ClientError if that fails."""
    path = os.path.join(os.path.abspath(data), "metadata.db")
    if not os.path.isfile(path):
        raise ClientError(
            f"{path} does not exist: {data} is not a data folder with SQLite metadata"
        )
    try:
        with sqlite_transaction(path, "ro") as connection:
            found = revision_of(connection)
            if found != schema.REVISION:
                raise ClientError(
                    f"{path} has schema revision {found or 'none'}, this version needs "
                    f"{schema.REVISION}: start a broker of this version once to migrate it"
                )
            yield Session(connection)
    except MetadataError as error:
        raise ClientError(str(error)) from None


def stored_stats(data: str, topic: str, indexes: list[int] | None = None) -> list[dict[str, Any]]:
    """Rows with the stored state of each partition of a topic, or of some; times in ms since
    1970."""
    with opened(data) as session:
        found = session.rows(
            "SELECT p.idx, p.number FROM partitions p JOIN topics t ON t.id = p.topic_id"
            " WHERE t.name = ? AND t.deleted_ms IS NULL ORDER BY p.idx",
            (topic,),
        )
        if not found:
            raise ClientError(f"{data} has no topic {topic}")
        absent = set(indexes or ()) - {index for index, _ in found}
        if absent:
            raise ClientError(f"topic {topic} has no partition {min(absent)}")
        if indexes is not None:
            found = [row for row in found if row[0] in indexes]
        rows = stats(session, [number for _, number in found])
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


def show_metrics(data: Data, as_json: Json = False) -> None:
    """Show number and size of the stored checkpoints, mappings and segments."""
    try:
        with opened(data) as session:
            found = metrics(session)
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
