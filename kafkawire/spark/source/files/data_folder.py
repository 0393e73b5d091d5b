"""Facts of a data folder from its metadata: its tiers, which have the records whose local files
were deleted, and the next offsets of partitions, below which some records may be in journals only.

Reads the folder's SQLite file (kafkawire.metadata.tables) without writing. A folder whose metadata
is in PostgreSQL does not have one: name the tier as the source then.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import quote

from kafkawire.spark.source.files.locations import FolderPlace

METADATA = "metadata.db"
BUSY_WITHIN_S = 10.0
_IN_USE = (0, 1)  # states: the target of uploads, and one that objects are moved away from
_QUERY = "SELECT url FROM tiers WHERE state IN (?, ?) ORDER BY state, id"
_NEXT = "SELECT partition_number, checkpoint_offset FROM partition_offset_checkpoints"

logger = logging.getLogger(__name__)


def tiers_of(place: FolderPlace) -> list[str]:
    """Return the URLs of the tiers of a data folder, or of the one that a broker's folder is in;
    the target of uploads is first."""
    path = _metadata_of(place)
    return [] if path is None else _recorded(path)


def next_offsets(place: FolderPlace) -> dict[int, int]:
    """Return the next offset of each partition by its number, as the last checkpoint has it, which
    is exact once the broker was stopped; empty if the metadata is elsewhere or cannot be read."""
    path = _metadata_of(place)
    try:
        return {} if path is None else dict(_rows(path, _NEXT, ()))
    except sqlite3.Error:
        return {}


def _metadata_of(place: FolderPlace) -> str | None:
    """Return the SQLite file of a data folder, or of the one that a broker's folder is in."""
    folder = place.tier.folder
    parent = os.path.dirname(folder)
    homes = [folder, os.path.dirname(parent)] if os.path.basename(parent) == "brokers" else [folder]
    paths = [os.path.join(home, METADATA) for home in homes]
    return next((path for path in paths if os.path.isfile(path)), None)


def _rows(path: str, query: str, values: tuple[int, ...]) -> list[Any]:
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_WITHIN_S)) as connection:
        return connection.execute(query, values).fetchall()


def _recorded(path: str) -> list[str]:
    try:
        return [str(url) for (url,) in _rows(path, _QUERY, _IN_USE)]
    except sqlite3.Error as failure:
        logger.warning(
            "%s cannot be read (%s): records that are only in a remote tier are missing; name the "
            "tier as the source to read them",
            path,
            failure,
        )
        return []
