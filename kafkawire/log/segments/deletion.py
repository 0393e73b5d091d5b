"""Deletion of expired records and of deleted topics: rows of segments first, then their files.

A query of SQL finds partitions with something due (`expiring`), so nothing iterates over all of
them. Log starts move first (kafkawire.log.maintenance.checkpoints), then the rows below them are
removed, then the files of segments that no row needs. Rows of deleted topics are removed too; after
a start, a query for orphans finds those of a topic whose deletion was interrupted by a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice

from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.maintenance.retention import due
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.swap import Swapper, due_ms
from kafkawire.offsets.catalog.port import EVERYTHING, NEVER, SegmentCatalog
from kafkawire.plural import count

logger = logging.getLogger(__name__)

AT_ONCE = 500
"""Partitions of one transaction, and of one load: milliseconds of each."""
ROUND_MS_MAX = 60_000
"""The time of the next check is rounded up to a multiple of this, so that partitions share an
update; if retention is checked more often, of that interval."""

Load = Callable[[Iterable[int]], Awaitable[None]]


class Deletion:
    """Deletes rows, segments and files below moved log starts. `load` loads partitions into
    memory."""

    __slots__ = (
        "_changed",
        "_changed_all",
        "_commit_log",
        "_deleted",
        "_load",
        "_partitions",
        "_storage",
        "_swapper",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        storage: SegmentCatalog,
        swapper: Swapper,
        load: Load,
    ) -> None:
        self._commit_log = commit_log
        self._partitions = partitions
        self._storage = storage
        self._swapper = swapper
        self._load = load
        # Deleted partitions whose rows are still there.
        self._deleted: set[int] = set()
        self._changed: set[int] = set()
        self._changed_all = False

    def delete_partitions(self, numbers: Iterable[int], delay_ms: int = -1) -> None:
        """Remove the rows of deleted partitions at the next tick. `delay_ms`: their own
        `file.delete.delay.ms`, -1: the broker's."""
        deleted = set(numbers)
        self._deleted |= deleted
        self._swapper.delays.note_deleted(deleted, delay_ms)

    def settings_changed(self, numbers: Iterable[int] | None) -> None:
        """Check the retention of these partitions again at the next tick, None: of all."""
        if numbers is None:
            self._changed_all = True
        else:
            self._changed.update(numbers)

    async def run_pending(self) -> None:
        """Do the pending work, often none. Raises what the storage raises."""
        await self._remove_deleted()
        await self._remove_trimmed()
        if self._changed or self._changed_all:
            await self._rescan()
            await self.expire()

    async def find_orphans(self) -> None:
        """Search for rows of deleted topics: those whose deletion a crash cut short."""
        self._deleted.update(await self._storage.orphans(AT_ONCE))

    async def expire(self) -> None:
        """Move the log starts of partitions whose extent in their oldest segment has expired."""
        while True:
            now_ms = self._commit_log.env.clock.now_ms()
            rows = await self._storage.expiring(now_ms, AT_ONCE)
            numbers = sorted({row.number for row in rows})
            if numbers:
                await self._expire(numbers, now_ms)
            # Less than a page, or nothing that could be moved: otherwise the same rows would come
            # again.
            if len(rows) < AT_ONCE or not any(number in self._partitions for number in numbers):
                return

    async def _expire(self, numbers: list[int], now_ms: int) -> None:
        await self._load(numbers)
        starts: dict[int, int] = {}
        for number in numbers:
            partition = self._partitions.get(number)
            if partition is not None:
                start = due(partition, now_ms)
                if start > partition.log_start:
                    starts[number] = start
        if starts:
            logger.info(
                "retention: moving the log start offset of %s", count(len(starts), "partition")
            )
            # First the log starts, then the rows below them.
            await self._commit_log.save_log_starts(starts)
        await self._remove_trimmed()
        scans: dict[int, list[int]] = {}
        for number in numbers:
            if number in self._partitions:  # those of another broker are left to it
                scans.setdefault(self._next_scan(number, now_ms), []).append(number)
        for when_ms, some in scans.items():
            await self._storage.set_due(some, when_ms)

    def _next_scan(self, number: int, now_ms: int) -> int:
        """Return when something of a partition may be due again."""
        partition = self._partitions[number]
        if not len(partition.segments):
            return NEVER
        when_ms = due_ms(partition.config, partition.segments.newest[0])
        if when_ms == NEVER:
            return NEVER
        step_ms = min(ROUND_MS_MAX, self._commit_log.config.log_retention_check_interval_ms)
        # Rounded up, so that partitions share an update.
        return (max(when_ms, now_ms) // step_ms + 1) * step_ms

    async def _rescan(self) -> None:
        if self._changed_all:
            # Due now: the next query finds them.
            await self._storage.set_due(None, 0)
            self._changed_all = False
        while self._changed:
            some = list(islice(self._changed, AT_ONCE))
            await self._storage.set_due(some, 0)
            # After the transaction: a failure leaves them to the next tick.
            self._changed.difference_update(some)

    async def _remove_deleted(self) -> None:
        while self._deleted:
            some = list(islice(self._deleted, AT_ONCE))
            await self._remove(dict.fromkeys(some, EVERYTHING))
            # Only now: a failure leaves them to the next tick.
            self._deleted.difference_update(some)
            self._swapper.delays.remove_delays(some)

    async def _remove_trimmed(self) -> None:
        trimmed = self._commit_log.trimmed
        while trimmed:
            some = list(islice(trimmed.items(), AT_ONCE))
            await self._remove(dict(some))
            for number, start in some:
                # The log start may have moved further meanwhile.
                if trimmed.get(number) == start:
                    del trimmed[number]

    async def _remove(self, below: dict[int, int]) -> None:
        """Remove rows below log starts, and apply the new states of their segments."""
        delays = self._swapper.delays
        own_ms = await delays.own_ms(below)
        after_ms = self._commit_log.env.clock.now_ms() + delays.stored_ms(own_ms)
        rows = await self._swapper.update(lambda: self._storage.remove_mappings(below, after_ms))
        delays.apply_to_dead_segments(rows, own_ms)
