"""Retention: log starts move when data is too old or too much, and dead journals are recycled.

What Kafka does with segments is done with a partition's extent in each segment and in each rolled
journal; the extent in the active journal is deleted only when everything in the partition is older
than `retention.ms`. The decision is pure (`due`); where it is about journals, the times of the
records are computed first (kafkawire.log.partition.time_lookup).

It checks partitions with batches in the journals and those that were `touched`: loaded, cut, or
given other settings. For all others a query of SQL finds extents in segments that are due
(kafkawire.log.segments.deletion). Topics whose only policy is `compact` are not expired.

A journal with records of topics with durability=replicated is held until they are uploaded: another
process of the broker may start from the copy of a follower, which has journals and no segments.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator, Mapping

from kafkawire.log.append.catalog_frames import CatalogFrames
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.journal.file import Journal, index_name
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.maintenance.upload_check import UploadCheck
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.time_lookup import correct_times
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.plural import count

logger = logging.getLogger(__name__)

SLICE = 256
"""Partitions checked per event-loop iteration: a fraction of a millisecond."""


def _pieces(partition: Partition) -> Iterator[tuple[int, int, int]]:
    """Yield (end offset, bytes, newest timestamp) of each extent in a segment or rolled journal."""
    segments, extents = partition.segments, partition.journal_extents
    yield from zip(segments.end, segments.length, segments.newest, strict=True)
    yield from zip(extents.end, extents.size, extents.newest, strict=True)


def due(partition: Partition, now_ms: int) -> int:
    """Return the log start that `partition` should have by its topic's settings."""
    config = partition.config
    start = partition.log_start
    if not config.cleanup_delete:
        return start
    too_old = now_ms - config.retention_ms if config.retention_ms >= 0 else -1
    size = partition.size_bytes
    limit = partition.high_watermark
    if config.schedules:
        limit = min(limit, partition.kept_from)
    for end, length, newest in _pieces(partition):
        # Without bytes (compaction removed all) there is nothing to keep.
        expired = not length or 0 <= newest < too_old
        too_much = 0 <= config.retention_bytes <= size - length
        # In order: what follows an extent that stays, stays too.
        if end > limit or not (expired or too_much):
            return start
        start = max(start, end)
        size -= length
    rows = partition.rows
    if 0 <= rows.latest() < too_old:
        start = max(start, limit)
    return start


class Retention:
    """Moves log starts and recycles journals, periodically. `touched`: partition numbers to check,
    also without batches in the journals. `damaged`: journals with records that were given up; they
    are moved to the quarantine and not recycled. `held`: journals without live batches whose
    records are not uploaded yet, with the end offsets of what is in them by partition number."""

    __slots__ = (
        "_catalog_frames",
        "_checkpoints",
        "_commit_log",
        "_damaged",
        "_partitions",
        "_quarantine",
        "_uploads",
        "held",
        "touched",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        checkpoints: Checkpoints,
        catalog_frames: CatalogFrames,
        quarantine: Quarantine,
        damaged: set[int],
        uploads: UploadCheck,
    ) -> None:
        self._commit_log = commit_log
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._catalog_frames = catalog_frames
        self._quarantine = quarantine
        self._damaged = damaged
        self._uploads = uploads
        self.held: dict[int, list[tuple[int, int]]] = {}
        self.touched: set[int] = set()

    async def run(self) -> None:
        """Move log starts that are due, then recycle journals without live batches."""
        env = self._commit_log.env
        now_ms = env.clock.now_ms()
        numbers, self.touched = self.touched, set()
        for journal in self._commit_log.journals:
            numbers |= journal.numbers
        starts: dict[int, int] = {}
        for at, number in enumerate(list(numbers)):
            partition = self._partitions.get(number)
            if partition is not None:
                start = due(partition, now_ms)
                # In the journals the times may be those that producers stated: compute them first.
                if start > max(partition.cut_offset, partition.log_start):
                    await correct_times(partition)
                    start = due(partition, now_ms)
                if start > partition.log_start:
                    starts[number] = start
            if at % SLICE == SLICE - 1:
                await env.slices.pause()
        if starts:
            logger.info(
                "retention: moving the log start offset of %s", count(len(starts), "partition")
            )
            self.touched |= starts.keys()  # checked again if this fails, and more may be due
            # SQL first, then memory: a start must not bring deleted records back.
            await self._checkpoints.move_log_starts(starts)
        await self.reclaim()

    async def reclaim(self) -> None:
        """Recycle the journals without live batches."""
        journals = self._commit_log.journals
        dead = [journal for journal in journals if self._is_dead(journal)]
        dead = [journal for journal in dead if not await self._is_held(journal)]
        if not dead or self._commit_log.failed is not None:
            return
        staying = [journal.number for journal in journals if journal not in dead]
        # Topics whose newest frame is in one of these are written again, into a journal that stays.
        moved = [await self._catalog_frames.carry(each.number, min(staying)) for each in dead]
        if any(moved):
            # Durable before the journals go: these alone can rebuild the catalog.
            await self._commit_log.disk_sink.wait_until_durable()
            # A commit says nothing about a write batch that failed before: those wait for the next
            # call, which writes their topics again.
            dead = [each for each in dead if not self._catalog_frames.needs(each.number)]
        # A journal that is removed while the ledger names it would count as lost.
        if not dead or not await self._commit_log.ledger.retire(
            [journal.number for journal in dead]
        ):
            return
        for journal in dead:
            # A reader may have pinned it meanwhile, or another call may have recycled it.
            if journal.number in journals.by_number and self._is_dead(journal):
                self._commit_log.reader.indexes.remove_journal(journal.number)
                self._catalog_frames.remove_journal(journal.number)
                self.held.pop(journal.number, None)
                # An operator may search it for records.
                if journal.number in self._damaged:
                    await self._set_aside(journal)
                else:
                    await journals.remove(journal)
                    logger.info("recycled journal %d", journal.number)

    async def _set_aside(self, journal: Journal) -> None:
        env = self._commit_log.env
        path = self._commit_log.journals.take_out(journal)
        paths = [path]
        # First the index: the journal alone can be scanned.
        if journal.indexed:
            paths.insert(0, os.path.join(journal.folder, index_name(journal.number)))
        why = "bytes of it are damaged, and the offsets that were in them were given up"
        now_ms = env.clock.now_ms()
        for each in paths:
            await env.offload.submit("files", self._quarantine.move_file, each, why, now_ms)
        logger.warning(
            "journal %d is damaged and no longer needed: moved to %s instead of deleting it",
            journal.number,
            self._quarantine.folder,
        )

    async def _is_held(self, journal: Journal) -> bool:
        """Return whether a journal without live batches is needed because of followers."""
        ends = self.held.get(journal.number)
        if ends is None:  # what it has of them is below what was cut, since nothing in it is live
            ends = await self._uploads.cut_ends(journal.numbers)
            if ends:
                self.held[journal.number] = ends
        return not await self._uploads.is_uploaded(ends)

    def _is_dead(self, journal: Journal) -> bool:
        return (
            journal.rolled
            # No partition has batches of it, no reader its bytes, an fsync covers it, and a
            # checkpoint has the state that it would be replayed for.
            and journal.live == 0
            and not journal.pins
            and not journal.dirty
            and self._checkpoints.log_position >= journal.end_log_position
        )
