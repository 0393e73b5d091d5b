"""Catalog frames: topics in the journals, so that these alone can rebuild the catalog.

A topic's frame says what the catalog says: id, name, partition numbers, settings. It must outlive
the journal it was written to: before a journal is recycled, the topics whose newest frame lies in
it are written again, and so are deletions as long as an older journal may name the topic. SQL
stays the truth; this is for the day it is lost. Called by log.manager and log.retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkawire.codec.types import uuid_text
from kafkawire.metadata.catalog import Catalog, TopicInfo
from log.commitlog import CommitLog
from log.frame import KIND_CONFIGS, KIND_TOPIC_CREATED, KIND_TOPIC_DELETED, write_catalog
from log.journal import PLACE_BITS


class CatalogFrames:
    """Where the newest frame of each topic is.

    `_where`: topic id -> number of the journal with its newest frame; topics of an earlier start
    are not in it and count as lying in every journal up to `_unknown_until`.
    """

    __slots__ = ("_catalog", "_commit_log", "_deleted", "_unknown_until", "_where")

    def __init__(self, commit_log: CommitLog, catalog: Catalog, unknown_until: int) -> None:
        self._commit_log = commit_log
        self._catalog = catalog
        self._unknown_until = unknown_until
        self._where: dict[bytes, int] = {}
        self._deleted: dict[bytes, str] = {}

    def created(self, infos: Sequence[TopicInfo]) -> None:
        """Write topics, or topics again."""
        for info in infos:
            self._append(info.id, KIND_TOPIC_CREATED, _topic(info))

    def configured(self, info: TopicInfo) -> None:
        """Write a topic's settings.

        As the whole topic: the newest frame of a topic then always suffices to rebuild it.
        """
        self._append(info.id, KIND_CONFIGS, _topic(info))

    def deleted(self, topic_id: bytes, name: str) -> None:
        """Write that a topic is gone."""
        self._deleted[topic_id] = name
        self._append(topic_id, KIND_TOPIC_DELETED, {"id": uuid_text(topic_id), "name": name})

    def carry(self, number: int, oldest: int) -> bool:
        """Journal `number` goes, `oldest` is the oldest that stays: write what it alone says.

        Returns whether anything had to be written; it must be committed before the journal goes.
        """
        moved = False
        for info in self._catalog.by_id.values():
            where = self._where.get(info.id)
            if where == number or (where is None and number <= self._unknown_until):
                self.created([info])
                moved = True
        for topic_id, name in list(self._deleted.items()):
            if self._where.get(topic_id) == number:
                if oldest < number:
                    self.deleted(topic_id, name)
                    moved = True
                else:
                    del self._deleted[topic_id]
                    del self._where[topic_id]
        return moved

    def _append(self, topic_id: bytes, kind: int, body: dict[str, Any]) -> None:
        frame = self._commit_log.append_catalog(kind, write_catalog(body))

        def written(failure: BaseException | None) -> None:
            if failure is None:
                self._where[topic_id] = frame.place >> PLACE_BITS

        self._commit_log.after_write(written)


def _topic(info: TopicInfo) -> dict[str, Any]:
    return {
        "id": uuid_text(info.id),
        "name": info.name,
        "internal": info.internal,
        "configs": info.configs,
        "partitions": [[row.number, row.index] for row in info.partitions],
    }
