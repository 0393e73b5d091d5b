"""The cleaner of compacted topics: finds due partitions, has the worker clean them, swaps the rows.

Partitions are checked when something about them has changed (a cut, their settings, the time their
lag runs out), never all of them in turn. One job at a time: STARTED rows -> files -> one
transaction that replaces the mappings -> memory -> the inputs are deleted after their delay. If the
planned rows have changed meanwhile nothing is replaced, and the partition is checked again.

Job and rows are like the cutter's (kafkawire.log.segments.cut.cutter);
kafkawire.log.segments.compact.retain decides which records remain,
kafkawire.log.segments.compact.plan which partitions are due.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from heapq import heappop, heappush

from kafkawire.codec.batches import BASE_TIMESTAMP_AT
from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.errors import KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.compact.messages import CompactResult
from kafkawire.log.segments.compact.plan import (
    NEVER,
    Dirty,
    asks_for_age,
    batches,
    dirty_part,
    due_ms,
)
from kafkawire.log.segments.compact.request import CleanJob, made_by
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.store.grouping import COMPACTED, is_cleaned
from kafkawire.log.segments.store.remote_tier import RemoteTier
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.swap import Swapper
from kafkawire.offsets.catalog.port import EVERYTHING, LIVE, SegmentCatalog, SegmentRow, StaleSwap
from kafkawire.plural import count

logger = logging.getLogger(__name__)

SLICE = 64
"""Partitions checked per event-loop iteration: a millisecond."""
LOADED_AT_ONCE = 500
PAGE = 4
"""Segments whose mappings are read in one transaction: ten thousand rows each at most."""
SURVEYED_AT_ONCE = 8
"""Segments of topics that were not compacted when they were cut; so many are checked each time."""
SURVEYED_ROWS = 1000
"""Mappings checked per event-loop iteration: a millisecond."""
MAX_WAIT_S = 3600.0
UNBOUNDED_RATE = 1 << 53
ROOM_LEFT_BYTES = 256 << 20
"""Space that cleaning leaves free, or a twentieth of the volume, as new journals do."""

Load = Callable[[Iterable[int]], Awaitable[None]]


class SegmentCleaner:
    """Compacts topics with cleanup.policy=compact. `load` loads partitions into memory; `config_of`
    returns the settings of one that is led here, in memory or not."""

    __slots__ = (
        "_alone",
        "_candidates",
        "_commit_log",
        "_config_of",
        "_damaged",
        "_env",
        "_later",
        "_load",
        "_node_id",
        "_noted",
        "_origins",
        "_partitions",
        "_remote",
        "_storage",
        "_store",
        "_swapper",
        "_tries",
        "_unseen",
        "_unseen_at_once",
        "_when",
        "_woken_ms",
    )  # fmt: skip

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        storage: SegmentCatalog,
        store: SegmentStore,
        remote: RemoteTier,
        swapper: Swapper,
        node_id: int,
        origins: Origins,
        load: Load,
        config_of: Callable[[int], TopicConfig | None],
    ) -> None:
        self._commit_log = commit_log
        self._origins = origins
        self._env = commit_log.env
        self._partitions = partitions
        self._storage = storage
        self._store = store
        self._remote = remote
        self._swapper = swapper
        self._node_id = node_id
        self._load = load
        self._config_of = config_of
        # Check all segments that are not of the cleaner: after a start, and when the defaults
        # change.
        self._candidates = True
        # Segments to check: those cut from compacted topics (False) first.
        self._unseen: list[tuple[bool, int]] = []
        self._unseen_at_once = SURVEYED_AT_ONCE
        self._noted: set[int] = set()
        # (When to check, number), a heap; `_when` has the valid entry of each number in it.
        self._later: list[tuple[int, int]] = []
        self._when: dict[int, int] = {}
        self._woken_ms = 0
        # Failures of each partition, for the delay until the next attempt.
        self._tries: dict[int, int] = {}
        # Partitions whose job failed: each has a job by itself, so that one does not fail others.
        self._alone: set[int] = set()
        # Partition -> offset of a damaged batch: left alone until its settings change, or the log
        # start passes it.
        self._damaged: dict[int, int] = {}

    def note_partitions(self, numbers: Iterable[int]) -> None:
        self._noted.update(numbers)

    def settings_changed(self, numbers: Iterable[int] | None) -> None:
        """Check these partitions again, None: all."""
        if numbers is None:
            self._candidates, self._unseen_at_once = True, EVERYTHING
            return
        for number in numbers:
            self._noted.add(number)
            self._damaged.pop(number, None)

    async def run(self) -> None:
        """Clean all that is due. Raises what the storage raises."""
        if not self._commit_log.config.log_cleaner_enable:
            return
        await self._scan_segments()
        self._wake()
        while self._noted:
            found = await self._scan()
            for kind, batch in batches(found, self._alone):
                await self._try(kind, batch)

    async def _scan_segments(self) -> None:
        """Note the partitions of segments that were not written by the cleaner."""
        if self._candidates:
            self._candidates = False
            # Those cut from compacted topics first; of the others the topics may have become
            # compacted since: a few of these at each check.
            self._unseen = sorted(
                (not segment.row.retention_class.startswith(COMPACTED), segment_id)
                for segment_id, segment in self._store.by_id.items()
                if segment.row.state == LIVE and not is_cleaned(segment.row.retention_class)
            )
        urgent = sum(not other for other, _ in self._unseen)
        left = max(0, len(self._unseen) - urgent - self._unseen_at_once)
        while len(self._unseen) > left:
            ids = [segment_id for _, segment_id in self._unseen[:PAGE]]
            for done, mapping in enumerate(await self._storage.segment_mappings(ids)):
                config = self._config_of(mapping.number)
                if config is not None and config.cleanup_compact:
                    self._noted.add(mapping.number)
                if done % SURVEYED_ROWS == SURVEYED_ROWS - 1:
                    await self._env.slices.pause()
            # After their mappings were read: a failure leaves them to the next check.
            del self._unseen[:PAGE]
        self._unseen_at_once = SURVEYED_AT_ONCE

    def _wake(self) -> None:
        now_ms = self._env.clock.now_ms()
        # The clock was set back: times that it gave before may be hours away.
        if now_ms < self._woken_ms:
            self._noted.update(self._when)
            self._when.clear()
            self._later.clear()
        self._woken_ms = now_ms
        while self._later and self._later[0][0] <= now_ms:
            when, number = heappop(self._later)
            if self._when.get(number) == when:
                del self._when[number]
                self._noted.add(number)

    def _scan_part(self, number: int, when_ms: int) -> None:
        if when_ms < NEVER and self._when.get(number, NEVER) > when_ms:
            self._when[number] = when_ms
            heappush(self._later, (when_ms, number))

    async def _scan(self) -> list[Dirty]:
        """Return the noted partitions that are due; the others are checked at their due time."""
        noted = sorted(self._noted)
        found: list[Dirty] = []
        for at in range(0, len(noted), LOADED_AT_ONCE):
            part = noted[at : at + LOADED_AT_ONCE]
            # Only those that may be due: loading costs a query.
            await self._load([number for number in part if self._is_compacted(number)])
            # Before they are checked: a cut meanwhile notes them again.
            self._noted.difference_update(part)
            for done, number in enumerate(part):
                partition = self._partitions.get(number)
                if partition is not None and partition.config.cleanup_compact:
                    try:
                        dirty = await self._is_due(partition)
                    except (KafkaError, OSError) as failure:
                        logger.warning(
                            "cannot determine the age of uncompacted records: %s", failure
                        )
                        self._postpone([number])
                        continue
                    if dirty is not None:
                        found.append(dirty)
                if done % SLICE == SLICE - 1:
                    await self._env.slices.pause()
        return found

    def _is_compacted(self, number: int) -> bool:
        config = self._config_of(number)
        return config is not None and config.cleanup_compact

    async def _is_due(self, partition: Partition) -> Dirty | None:
        # Until the log start has passed the damaged batch.
        if self._damaged.get(partition.number, -1) >= partition.log_start:
            return None
        now_ms = self._env.clock.now_ms()
        dirty, more_ms = dirty_part(partition, self._is_clean, now_ms)
        self._scan_part(partition.number, more_ms)
        if dirty is None:
            return None
        first_ms = None
        if asks_for_age(partition.config):
            first_ms = await self._first_ms(dirty)
        when_ms = due_ms(dirty, first_ms)
        if when_ms <= now_ms:
            return dirty
        self._scan_part(partition.number, when_ms)
        return None

    def _is_clean(self, segment_id: int) -> bool | None:
        segment = self._store.find(segment_id)
        return None if segment is None else is_cleaned(segment.row.retention_class)

    async def _first_ms(self, dirty: Dirty) -> int:
        """Return the time of the first dirty record, according to its batch."""
        partition = dirty.partition
        mapping = partition.segments.mapping(partition.number, dirty.first)
        at = mapping.start + BASE_TIMESTAMP_AT
        # Eight bytes of an object, which is not worth a download.
        localizer = self._remote.localizer
        if localizer is not None and not self._store.is_local(mapping.segment_id):
            read = await localizer.read(self._store.get_segment(mapping.segment_id), at, 8)
        else:
            async with self._store.open_segment(mapping.segment_id) as (_, file):
                read = await self._env.offload.submit("warm", file.pread, 8, at)
        return int.from_bytes(read, "big", signed=True)

    async def _try(self, kind: str, batch: list[Dirty]) -> None:
        """Run one job. A failure is noted for a retry and does not stop the others."""
        numbers = [dirty.partition.number for dirty in batch]
        try:
            await self._clean(kind, batch)
        except StaleSwap:
            logger.info("segments changed during compaction, planning again later")
            self._postpone(numbers)
        except Exception as failure:
            # A failing disk, a killed child, or a segment that is only in the remote tier while
            # that is not attached yet (at a start) or cannot be reached.
            foreseen = isinstance(failure, OSError | WorkerError | KafkaError)
            logger.warning(
                "cleaning %s failed, retrying later: %s",
                count(len(batch), "partition"),
                failure,
                exc_info=not foreseen,
            )
            # Next time each has a job by itself: one of them may be the reason.
            self._alone.update(numbers)
            self._postpone(numbers)
        else:
            for number in numbers:
                self._tries.pop(number, None)
                self._alone.discard(number)

    def _postpone(self, numbers: list[int]) -> None:
        """Check them again later, with a longer delay after each failure."""
        now_ms = self._env.clock.now_ms()
        wait_ms = self._commit_log.config.log_cleaner_backoff_ms
        for number in numbers:
            tries = self._tries[number] = self._tries.get(number, 0) + 1
            # The delay doubles; the shift is bounded, not only its result.
            after_ms = min(wait_ms << min(tries, 20), int(MAX_WAIT_S * 1000))
            self._scan_part(number, now_ms + after_ms)

    async def _clean(self, kind: str, batch: list[Dirty]) -> None:
        await self._check_room(sum(dirty.size_bytes for dirty in batch))
        # The rows may have changed since they were checked.
        batch = self._rebuild(batch)
        if not batch:
            return
        job = CleanJob(batch, kind, self._store)
        # From here on files that exist stay.
        job.pin()
        try:
            await self._store.prepare_others(job.segments)
            await self._remote.have_files(job.segments)
            await self._run(job)
        finally:
            job.unpin()

    async def _run(self, job: CleanJob) -> None:
        env, config = self._env, self._commit_log.config
        rows = job.output_segments(env, self._node_id)
        started = env.clock.monotonic()
        # As in the cutter: STARTED rows, files, one transaction, memory. A crash leaves the rows,
        # whose files the next start removes.
        for row, row_id in zip(rows, await self._storage.start_segments(rows), strict=True):
            row.id = row_id
        logger.info(
            "cleaning %s: %d bytes, %d of them new",
            job.title,
            job.size_bytes,
            job.dirty_bytes,
        )
        try:
            origin = await self._origins.current_topics(job.planned)
            result: CompactResult = await env.worker.run(
                "compact", job.arguments(rows, config, origin), _rate(config)
            )
            # Partitions that have changed meanwhile are left out, and checked again.
            finished, removed = await made_by(env, job, result, rows, self._partitions)
            if finished:
                await self._swapper.replace(finished, removed)
        except Exception:
            # If the outcome is unknown the files may be those of LIVE rows.
            if not self._swapper.in_doubt(rows[0]):
                await self._give_up(rows)
            raise
        done = {row.id for row, _ in finished}
        await self._give_up([row for row in rows if row.id not in done])
        self._conclude(job, result, env.clock.monotonic() - started)

    async def _check_room(self, size_bytes: int) -> None:
        """Raise OSError if there is too little disk space."""
        fs = self._env.fs
        total, free = await self._env.offload.submit("files", fs.free_bytes, self._store.folder)
        # The cleaned data exists next to the old files until these are deleted; journals have
        # priority.
        if size_bytes + min(total // 20, ROOM_LEFT_BYTES) > free:
            text = f"cleaning {size_bytes} bytes needs as much room, and {free} bytes are free"
            raise OSError(errno.ENOSPC, text)

    def _rebuild(self, batch: list[Dirty]) -> list[Dirty]:
        """Return the same partitions with their current rows."""
        now_ms = self._env.clock.now_ms()
        fresh = [
            dirty_part(dirty.partition, self._is_clean, now_ms)[0]
            for dirty in batch
            if not dirty.partition.removed and dirty.partition.config.cleanup_compact
        ]
        return [dirty for dirty in fresh if dirty is not None]

    def _conclude(self, job: CleanJob, result: CompactResult, took_s: float) -> None:
        """Log what was done, and schedule what is left."""
        for damage in result.damaged:
            # Left alone: cleaning would fail at the same batch.
            self._damaged[damage.number] = damage.offset
            logger.critical(
                "%s cannot be compacted: %s, at offset %d in %s. Other partitions are compacted",
                job.name_of(damage.number), damage.text, damage.offset, damage.path,
            )  # fmt: skip
        self.note_partitions(job.left)
        for share in result.cleaned:
            stats = share.stats
            if stats.unreadable:
                name = job.name_of(share.number)
                logger.warning(
                    "%d batches of %s are kept uncompacted: their records cannot be decoded",
                    stats.unreadable, name,
                )  # fmt: skip
        total = [share.stats for share in result.cleaned]
        logger.info(
            "cleaned %s in %.1f s: kept %d of %d records and %d of %d bytes",
            count(len(result.cleaned), "partition"), took_s,
            sum(stats.kept for stats in total), sum(stats.read for stats in total),
            sum(stats.bytes_kept for stats in total), sum(stats.bytes_read for stats in total),
        )  # fmt: skip

    async def _give_up(self, rows: list[SegmentRow]) -> None:
        """Remove the files that a job may have left; if that fails, the next start does it."""
        if rows:
            await self._store.discard([Segment(row, self._store.folder) for row in rows])


def _rate(config: BrokerConfig) -> int:
    """Return how many bytes a job may read in a second; -1: no limit."""
    least = min(config.log_cleaner_io_max_bytes_per_second, UNBOUNDED_RATE)
    if config.worker_bytes_per_second > 0:
        least = min(least, config.worker_bytes_per_second)
    return max(1, int(least)) if least < UNBOUNDED_RATE else -1
