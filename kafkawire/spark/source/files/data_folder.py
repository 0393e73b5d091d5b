"""The tiers of a data folder, from its metadata: records whose local files were deleted are there.

Reads the table `tiers` of the folder's SQLite file (kafkawire.metadata.tables) without writing. A
folder whose metadata is in PostgreSQL does not have one: name the tier as the source then.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from kafkawire.spark.source.files.locations import FolderPlace

METADATA = "metadata.db"
BUSY_WITHIN_S = 10.0
_IN_USE = (0, 1)  # states: the target of uploads, and one that objects are moved away from
_QUERY = "SELECT url FROM tiers WHERE state IN (?, ?) ORDER BY state, id"

logger = logging.getLogger(__name__)


def tiers_of(place: FolderPlace) -> list[str]:
    """Return the URLs of the tiers of a data folder, or of the one that a broker's folder is in;
    the target of uploads is first."""
    folder = place.tier.folder
    parent = os.path.dirname(folder)
    homes = [folder, os.path.dirname(parent)] if os.path.basename(parent) == "brokers" else [folder]
    for home in homes:
        path = os.path.join(home, METADATA)
        if os.path.isfile(path):
            return _recorded(path)
    return []


def _recorded(path: str) -> list[str]:
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_WITHIN_S)) as connection:
            return [str(url) for (url,) in connection.execute(_QUERY, _IN_USE)]
    except sqlite3.Error as failure:
        logger.warning(
            "%s cannot be read (%s): records that are only in a remote tier are missing; name the "
            "tier as the source to read them",
            path,
            failure,
        )
        return []
