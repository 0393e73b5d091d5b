"""Facts of a data folder from its metadata: its tiers, which have the records whose local files
were deleted, and the partitions of which some records may be in journals only.

Reads the folder's SQLite file (kafkawire.metadata.tables) without writing. A folder whose metadata
is in PostgreSQL does not have one: name the tier as the source then.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote

from kafkawire.reading.files.locations import FolderPlace

METADATA = "metadata.db"
BUSY_WITHIN_S = 10.0
_IN_USE = (0, 1)  # states: the target of uploads, and one that objects are moved away from
_QUERY = "SELECT url FROM tiers WHERE state IN (?, ?) ORDER BY state, id"
_TOPICS = (
    "SELECT name, count(*) FROM topics JOIN partitions ON topic_id = id "
    "WHERE deleted_ms IS NULL GROUP BY id"
)
_PARTITIONS = (
    "SELECT idx, number, leader, t.id, coalesce(log_start, 0), coalesce(checkpoint_offset, 0) "
    "FROM topics t JOIN partitions ON topic_id = t.id {}"
    "LEFT JOIN partition_offset_checkpoints ON partition_number = number "
    "WHERE name = ? AND deleted_ms IS NULL ORDER BY idx"
)
_LED = _PARTITIONS.format("JOIN lead_groups g ON g.id = lead_group ")
_LED_BEFORE_0008 = _PARTITIONS.format("")
"""The query for a folder that no broker of this version has migrated."""
_CHECKPOINT = "SELECT place FROM checkpoints WHERE node_id = ?"

logger = logging.getLogger(__name__)


def tiers_of(place: FolderPlace) -> list[str]:
    """Return the URLs of the tiers of a data folder, or of the one that a broker's folder is in;
    the target of uploads is first."""
    path = _metadata_of(place)
    return [] if path is None else _read_recorded_tiers(path)


class StoredPartition(NamedTuple):
    """A partition in the metadata. `node`: the broker that leads it; `next_offset`: as of the last
    checkpoint, exact once the broker was stopped."""

    partition: int
    number: int
    node: int
    topic_id: bytes
    log_start: int
    next_offset: int


def is_data_folder(place: FolderPlace) -> bool:
    """Return whether a folder, or the one that a broker's folder is in, has metadata."""
    return _metadata_of(place) is not None


def stored_topics(place: FolderPlace) -> dict[str, int]:
    """Return the topics of the metadata with their number of partitions; none if it is elsewhere or
    cannot be read, as for the functions below."""
    return dict(_query_or_nothing(place, _TOPICS))


def stored_partitions(place: FolderPlace, topic: str) -> list[StoredPartition]:
    """Return the partitions of a topic, ascending."""
    return [StoredPartition(*row) for row in _read_led_partitions(place, topic)]


def checkpoint_of(place: FolderPlace, node: int) -> int:
    """Return the log position of a broker's last checkpoint; 0 if it is not known."""
    found = _query_or_nothing(place, _CHECKPOINT, node)
    return int(found[0][0]) if found else 0


def _read_led_partitions(place: FolderPlace, topic: str) -> list[Any]:
    return _query_or_nothing(place, _LED, topic) or _query_or_nothing(
        place, _LED_BEFORE_0008, topic
    )


def homes(place: FolderPlace) -> dict[int, str]:
    """Return the folders of the brokers in a data folder, or a broker's folder itself, by node
    id."""
    folder = os.path.abspath(place.tier.folder)
    parent, name = os.path.split(folder)
    if os.path.basename(parent) == "brokers" and name.isdigit():
        return {int(name): folder}
    brokers = os.path.join(folder, "brokers")
    names = sorted(os.listdir(brokers)) if os.path.isdir(brokers) else []
    return {int(each): os.path.join(brokers, each) for each in names if each.isdigit()}


def _metadata_of(place: FolderPlace) -> str | None:
    """Return the SQLite file of a data folder, or of the one that a broker's folder is in."""
    folder = place.tier.folder
    parent = os.path.dirname(folder)
    homes = [folder, os.path.dirname(parent)] if os.path.basename(parent) == "brokers" else [folder]
    paths = [os.path.join(home, METADATA) for home in homes]
    return next((path for path in paths if os.path.isfile(path)), None)


def _query_or_nothing(place: FolderPlace, query: str, *values: int | str) -> list[Any]:
    path = _metadata_of(place)
    try:
        return [] if path is None else _rows(path, query, values)
    except sqlite3.Error:
        return []


def _rows(path: str, query: str, values: tuple[int | str, ...]) -> list[Any]:
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_WITHIN_S)) as connection:
        return connection.execute(query, values).fetchall()


def _read_recorded_tiers(path: str) -> list[str]:
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
