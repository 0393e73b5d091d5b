"""Catalog frames: topics in the journals, so that these alone can rebuild the catalog.

A topic's frame contains what the catalog has of it: id, name, partition numbers, settings. It must
outlive its journal: before a journal is recycled, the topics whose newest frame is in it are
written again, many in a frame. Nothing iterates over all topics, with one exception: those of an
earlier start are written once, when the first journal from before it is recycled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafkawire.codec.types import uuid_text
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.journal.format import (
    KIND_CONFIGS,
    KIND_TOPIC_CREATED,
    KIND_TOPIC_DELETED,
    write_catalog,
)
from kafkawire.metadata.catalog import Catalog, TopicInfo

MAX_TOPICS = 100
"""Topics in one frame; writing them takes half a millisecond on the event loop."""
MAX_PARTITIONS = 1000
"""Partitions of all topics in one frame, which keeps it below a few tens of KB (except for a single
larger topic)."""


class CatalogFrames:
    """Writes catalog frames and knows which journal has the newest frame of each topic."""

    __slots__ = ("_catalog", "_commit_log", "_deleted", "_owed", "_topics_in", "_unknown_until")

    def __init__(self, commit_log: CommitLog, catalog: Catalog, unknown_until: int) -> None:
        self._catalog = catalog
        self._commit_log = commit_log
        # Topics that no journal describes are those of an earlier start: they count as contained in
        # every journal up to this one.
        self._unknown_until = unknown_until
        # Journal number -> topics with a frame in it, written in this run. Whether it is their
        # newest one, the catalog knows (Catalog.described_in).
        self._topics_in: dict[int, list[bytes]] = {}
        self._deleted: dict[bytes, tuple[str, int]] = {}  # id -> name, journal; -1: not written
        self._owed: dict[bytes, None] = {}  # topics whose last frame could not be written

    def write_topics(self, infos: Sequence[TopicInfo]) -> None:
        for part in _parts(infos):
            body = _topic(part[0]) if len(part) == 1 else {"topics": [_topic(t) for t in part]}
            self._append([info.id for info in part], KIND_TOPIC_CREATED, body)

    def write_configs(self, info: TopicInfo) -> None:
        # The whole topic, so that its newest frame always suffices to rebuild it.
        self._append([info.id], KIND_CONFIGS, _topic(info))

    def write_deletion(self, topic_id: bytes, name: str) -> None:
        # Noted before the write, so that a frame that fails is written again as a deletion.
        self._deleted[topic_id] = name, -1
        self._append([topic_id], KIND_TOPIC_DELETED, {"id": uuid_text(topic_id), "name": name})

    async def describe_all(self) -> None:
        """Write every topic whose frame is in no journal. Otherwise lost metadata could not be
        rebuilt from the journals alone."""
        ids = self._catalog.not_described()
        for start in range(0, len(ids), MAX_TOPICS):
            infos = map(self._catalog.by_id.get, ids[start : start + MAX_TOPICS])
            self.write_topics([info for info in infos if info is not None])
            # One frame at a time: a folder restored without its journals may have many topics.
            await self._commit_log.disk_sink.wait_until_durable()

    async def carry(self, number: int, oldest: int) -> bool:
        """Write again what only journal `number` contains, before it is recycled; `oldest` is the
        oldest journal that stays.

        Returns whether anything had to be written; it must be committed before the journal goes.
        """
        catalog = self._catalog
        self._write_owed()
        listed = self._topics_in.get(number, [])
        # A topic can be listed here and have a newer frame elsewhere: nothing to carry then.
        ids = [topic_id for topic_id in dict.fromkeys(listed)
               if catalog.described_in(topic_id) == number]  # fmt: skip
        # The first recycled journal of an earlier start carries all of its topics; described_in
        # then names the new journal, so this happens once.
        if number <= self._unknown_until:
            ids += catalog.not_described()
        for start in range(0, len(ids), MAX_TOPICS):
            infos = map(catalog.by_id.get, ids[start : start + MAX_TOPICS])
            self.write_topics([info for info in infos if info is not None])
            # A frame takes half a millisecond, and there may be thousands of them.
            await self._commit_log.env.slices.pause()
        gone = [i for i in dict.fromkeys(listed) if self._deleted.get(i, ("", -1))[1] == number]
        for topic_id in gone:
            # An older journal may still name the topic: without the deletion in a newer one a
            # rebuilt catalog would have it again.
            if oldest < number:
                self.write_deletion(topic_id, self._deleted[topic_id][0])
            else:
                del self._deleted[topic_id]
        return bool(ids) or (bool(gone) and oldest < number)

    def _write_owed(self) -> None:
        ids = list(self._owed)[:MAX_TOPICS]
        # Removed first: if this write fails too, its callback adds them again.
        for topic_id in ids:
            del self._owed[topic_id]
        infos = map(self._catalog.by_id.get, ids)
        self.write_topics([info for info in infos if info is not None])
        for topic_id in ids:
            # A deleted topic is not in the catalog: what is owed of it is the deletion.
            if topic_id in self._deleted:
                self.write_deletion(topic_id, self._deleted[topic_id][0])

    def needs(self, number: int) -> bool:
        """Return whether a journal still has the newest frame of a topic."""
        # Called after `carry`: if it does, writing it again has failed.
        listed = self._topics_in.get(number, ())
        return any(self._catalog.described_in(topic_id) == number for topic_id in listed)

    def remove_journal(self, number: int) -> None:
        self._topics_in.pop(number, None)

    def _append(self, ids: list[bytes], kind: int, body: dict[str, Any]) -> None:
        # The frame names its cluster, since a rebuilt catalog must have the same id.
        body = {**body, "cluster": self._catalog.cluster_id}
        frame = self._commit_log.append_catalog(kind, write_catalog(body))

        def on_written(failure: BaseException | None) -> None:
            if failure is not None:
                # The request may be answered already: other writes may come between its frames and
                # its commit. So the frame is written again after the next one that succeeds.
                self._owed.update(dict.fromkeys(ids))
                return
            # Known only now: laying out the write batch decides in which journal the frame is.
            journal = frame.log_position >> POSITION_BITS
            self._topics_in.setdefault(journal, []).extend(ids)
            for topic_id in ids:
                self._catalog.record_journal(topic_id, journal)
                if topic_id in self._deleted:
                    self._deleted[topic_id] = self._deleted[topic_id][0], journal
            if self._owed:
                for topic_id in ids:
                    self._owed.pop(topic_id, None)
                self._commit_log.env.call_soon(self._write_owed)

        self._commit_log.after_write(on_written)


def _parts(infos: Sequence[TopicInfo]) -> Iterator[list[TopicInfo]]:
    """Divide topics into those of one frame each."""
    part: list[TopicInfo] = []
    room = MAX_PARTITIONS
    for info in infos:
        room -= len(info.partitions)
        if part and (room < 0 or len(part) == MAX_TOPICS):
            yield part
            part, room = [], MAX_PARTITIONS - len(info.partitions)
        part.append(info)
    if part:
        yield part


def _topic(info: TopicInfo) -> dict[str, Any]:
    return {
        "id": uuid_text(info.id),
        "name": info.name,
        "internal": info.internal,
        "configs": info.configs,
        "partitions": [[row.number, row.index] for row in info.partitions],
    }
