"""Offsets stored in the metadata of a data folder, whether its broker runs or not.

SQLite only, read-only: nothing is created or migrated.
"""

from __future__ import annotations

from typing import Any

from kafkawire.cli.shared.data_folder import opened
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Data, Json
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.errors import ClientError
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.offsets.catalog.sql.statements import metrics, stats


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
