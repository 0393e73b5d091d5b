"""Offsets stored in the metadata of a data folder, whether its broker runs or not.

SQLite only, read-only: nothing is created or migrated.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.data_folder import opened
from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Json, Wide
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.cli.shared.times import time_text
from kafkawire.cli.shared.units import size
from kafkawire.client.errors import ClientError
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.offsets.catalog.sql.statements import metrics, stats

StoredFolder = Annotated[str, typer.Option("--source", metavar="DIR", help="Data folder to read.")]
STORED = (
    "partition",
    "log_start",
    "checkpoint_offset",
    "records_in_segments",
    TableColumn("bytes_in_segments", show=size),
    "segments",
    TableColumn("last_activity_ms", "last activity", show=time_text),
    "number",
)
METRICS = (
    "checkpoints",
    "mappings",
    "segments_live",
    TableColumn("size_bytes", "size", show=size),
    TableColumn("live_bytes", "live", show=size),
    "segments_started",
    "segments_deleting",
)


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


def show_metrics(source: StoredFolder, as_json: Json = False, wide: Wide = False) -> None:
    """Show number and size of the stored checkpoints, mappings and segments.

    Examples:
      kafkawire offsets metrics --source kafkawire-data
    """
    if not os.path.isdir(source):
        fail(OptionError("--source", source, "a data folder"), 2)
    try:
        with opened(source) as session:
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
        print_table([row], METRICS, f"{source}, stored offsets", wide)


def _known(value: int) -> int | None:
    return None if value < 0 else value
