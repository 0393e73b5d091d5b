"""Three plug-ins of kafkawire: a hook, an object store and an offset storage. docs/plugins.md

    pip install ./examples/plugins
    kafkawire serve --tier 'shelf://books/tier?root=/srv' --set plugin.hooks=log \
        --set offset.storage=sqlite
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence

from kafkawire.hooks import (
    BrokerHooks,
    GroupRebalanced,
    SegmentCut,
    SegmentRemoved,
    SegmentUploaded,
    TopicCreated,
    TopicDeleted,
)
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Opening, Provider
from kafkawire.objectstore.staging import OwnStaging
from kafkawire.objectstore.url import TierUrl
from kafkawire.offsets.catalog.kv.store import Writes

logger = logging.getLogger("example_plugins")


class LogHook(BrokerHooks):
    """Writes events to the log of the broker."""

    def topic_created(self, event: TopicCreated) -> None:
        logger.info("created %s with %d partitions", event.name, event.partitions)

    def topic_deleted(self, event: TopicDeleted) -> None:
        logger.info("deleted %s", event.name)

    def segment_cut(self, event: SegmentCut) -> None:
        for each in event.ranges:
            logger.info("cut %s-%d: offsets %d to %d", each.topic, each.partition,
                        each.base_offset, each.end_offset - 1)  # fmt: skip

    def segment_uploaded(self, event: SegmentUploaded) -> None:
        logger.info("uploaded %d bytes of segment %s", event.size_bytes, event.segment)

    def segment_removed(self, event: SegmentRemoved) -> None:
        logger.info("removed segment %s", event.segment)

    def group_rebalanced(self, event: GroupRebalanced) -> None:
        logger.info("rebalanced %s: %d members", event.group, event.members)


class ShelfStores:
    """Folders as buckets: `shelf://BUCKET/PREFIX?root=FOLDER`."""

    def check(self, tier: TierUrl) -> None:
        options = dict(tier.options)
        if set(options) != {"root"} or not options["root"].startswith("/"):
            raise ValueError("one option is needed, root=/FOLDER")

    def open(self, tier: TierUrl, opening: Opening) -> Provider:
        folder = os.path.join(dict(tier.options)["root"], tier.bucket, tier.prefix)
        staging = OwnStaging(folder, tier.create, opening.seen)
        return FolderProvider(folder, staging, opening.max_get_bytes)


SHELF = ShelfStores()


class SqliteStore:
    """An ordered key-value store in a file of SQLite."""

    def __init__(self, folder: str, node_id: int) -> None:
        # The broker calls it in threads, but never concurrently.
        self._file = sqlite3.connect(f"{folder}/pairs.db", check_same_thread=False)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=FULL")
        self._file.execute("CREATE TABLE IF NOT EXISTS pairs (key BLOB PRIMARY KEY, value BLOB)")

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        query = "SELECT value FROM pairs WHERE key = ?"
        rows = [self._file.execute(query, (key,)).fetchone() for key in keys]
        return [None if row is None else row[0] for row in rows]

    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        query = "SELECT key, value FROM pairs WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return self._file.execute(query, (low, high, limit)).fetchall()

    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        query = "SELECT key, value FROM pairs WHERE key >= ? AND key <= ? ORDER BY key DESC LIMIT 1"
        found: tuple[bytes, bytes] | None = self._file.execute(query, (low, key)).fetchone()
        return found

    def write(self, writes: Writes) -> None:
        with self._file:  # one transaction
            for key, value in writes.changes.items():
                if value is None:
                    self._file.execute("DELETE FROM pairs WHERE key = ?", (key,))
                else:
                    self._file.execute("REPLACE INTO pairs VALUES (?, ?)", (key, value))

    def close(self) -> None:
        self._file.close()
