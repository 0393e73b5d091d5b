"""Retention: log starts move when data is too old or too much, and dead journals are recycled.

What Kafka does with segments is done with portions (a partition's share of a rolled journal); the
active journal's part goes only when everything in the partition is past `retention.ms`. Deciding
is pure (`due`); the log start moves in SQL before it moves here. A journal in which nothing lives
any more becomes a spare, when nobody reads it and a checkpoint covers it.

Topics whose policy is `compact` alone are not expired (the cleaner is another issue's).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkawire.codec.configs import TopicConfig
from log.catalogframes import CatalogFrames
from log.checkpoints import Checkpoints
from log.commitlog import CommitLog
from log.journal import Journal
from log.partition import Partition

logger = logging.getLogger(__name__)

SLICE = 256
"""Partitions looked at between two turns of the loop: a fraction of a millisecond."""
NEVER = 1 << 62

Settings = tuple[int, int, bool]


def settings_of(config: TopicConfig) -> Settings:
    """What retention depends on."""
    return config.retention_ms, config.retention_bytes, config.cleanup_delete


def due(partition: Partition, now_ms: int) -> int:
    """The log start `partition` should have by its topic's settings."""
    config = partition.config
    start = partition.log_start
    if not config.cleanup_delete:
        return start
    portions = partition.portions
    too_old = now_ms - config.retention_ms if config.retention_ms >= 0 else -1
    size = partition.size_bytes
    for at in range(len(portions)):
        expired = 0 <= portions.newest[at] < too_old
        too_much = 0 <= config.retention_bytes <= size - portions.size[at]
        if portions.end[at] > partition.high_watermark or not (expired or too_much):
            return start
        start = portions.end[at]
        size -= portions.size[at]
    rows = partition.rows
    if 0 <= rows.latest() < too_old:
        start = partition.high_watermark
    return start


def due_at(partition: Partition) -> int:
    """Before this moment (ms) nothing more of the partition can expire by time."""
    config = partition.config
    if config.retention_ms < 0 or not config.cleanup_delete:
        return NEVER
    portions, rows = partition.portions, partition.rows
    if len(portions):
        return portions.newest[0] + config.retention_ms
    return rows.latest() + config.retention_ms if len(rows) else NEVER


class Retention:
    """Runs now and then; `rolled` says that a journal was rolled since the last run."""

    __slots__ = (
        "_catalog_frames",
        "_checkpoints",
        "_commit_log",
        "_known",
        "_partitions",
        "rolled",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        checkpoints: Checkpoints,
        catalog_frames: CatalogFrames,
    ) -> None:
        self._commit_log = commit_log
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._catalog_frames = catalog_frames
        self._known: dict[bytes, tuple[Settings, int]] = {}
        self.rolled = True

    async def run(self) -> None:
        """Move log starts that are due, then recycle what died.

        Topics are skipped while their settings are the same, nothing can have expired since the
        last look and no journal was rolled.
        """
        env = self._commit_log.env
        now_ms = env.clock.now_ms()
        look_at_all, self.rolled = self.rolled, False
        by_topic: dict[bytes, list[Partition]] = {}
        for partition in self._partitions.values():
            by_topic.setdefault(partition.topic_id, []).append(partition)
        self._known = {key: known for key, known in self._known.items() if key in by_topic}
        starts: dict[int, int] = {}
        looked = 0
        for topic_id, partitions in by_topic.items():
            settings = settings_of(partitions[0].config)
            known = self._known.get(topic_id)
            if not look_at_all and known is not None and known[0] == settings and known[1] > now_ms:
                continue
            for partition in partitions:
                start = due(partition, now_ms)
                if start > partition.log_start:
                    starts[partition.number] = start
                looked += 1
                if looked % SLICE == 0:
                    await env.sleep(0)
            # Empty partitions may be written to right after this look.
            soonest = now_ms + max(settings[0], 0)
            next_due = min(soonest, *(due_at(partition) for partition in partitions))
            self._known[topic_id] = settings, next_due
        if starts:
            logger.info("retention moves the log start of %d partitions", len(starts))
            await self._checkpoints.move_log_starts(starts)
        await self.reclaim()

    async def reclaim(self) -> None:
        """Recycle the journals in which nothing lives."""
        journals = self._commit_log.journals
        dead = [journal for journal in journals if self._is_dead(journal)]
        if not dead or self._commit_log.failed is not None:
            return
        staying = [journal.number for journal in journals if journal not in dead]
        moved = [self._catalog_frames.carry(journal.number, min(staying)) for journal in dead]
        if any(moved):
            await self._commit_log.commits.durable()
        for journal in dead:
            if self._is_dead(journal):  # somebody may have begun to read it meanwhile
                self._commit_log.reader.indexes.forget(journal.number)
                journals.remove(journal)
                logger.info("recycled journal %d", journal.number)

    def _is_dead(self, journal: Journal) -> bool:
        return (
            journal.rolled
            and journal.live == 0
            and not journal.pins
            and not journal.dirty
            and self._checkpoints.place >= journal.end_place
        )
