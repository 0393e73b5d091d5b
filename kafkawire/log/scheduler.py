"""Background work of a log: periodic jobs, each in a task that survives failures.

Checkpoints; indexes of journals; cutting, deleting and merging of segments; retention; expiry of
idle producers; watching the disk. Created and stopped by kafkawire.log.manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.journal.ledger import TICK_MS
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.maintenance.disk_watch import MEASURED_EVERY_S, DiskWatch
from kafkawire.log.maintenance.indexer import Indexer
from kafkawire.log.maintenance.retention import Retention
from kafkawire.log.maintenance.unloader import Unloader
from kafkawire.log.segments.manager import Segments

logger = logging.getLogger(__name__)

TENDED_EVERY = 10
"""After so many times `cut.interval.ms`, dead segment files are deleted and segments merged."""
MAX_BACKOFF = 6
"""After each failed cut twice as many checks are skipped until the next one, 64 at most, so that a
full disk is not filled every second with files that cannot be finished."""
CHECKS_PER_BUSY_TIME = 4
"""How often in `busy.disk.ms` the disk is checked for being busy."""
UNLOADED_EVERY_MS = 60_000
"""How often idle partitions are unloaded: in a minute clients cannot load many millions."""
SLICE = 256
"""Partitions checked per event-loop iteration: a fraction of a millisecond."""

Work = Callable[[], Awaitable[None]]


class Upkeep:
    """The background tasks of a log. `disk`: measures the disk."""

    __slots__ = (
        "_commit_log",
        "_config",
        "_env",
        "_indexer",
        "_retention",
        "_segments",
        "_tasks",
        "_unloader",
        "disk",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        indexer: Indexer,
        retention: Retention,
        segments: Segments,
        unloader: Unloader,
    ) -> None:
        self._commit_log = commit_log
        self._config = commit_log.config
        self._env = commit_log.env
        self._indexer = indexer
        self._retention = retention
        self._segments = segments
        self._unloader = unloader
        self.disk = DiskWatch(commit_log, commit_log.journals.folder, self._relieve)
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, checkpoints: Checkpoints) -> None:
        config = self._config
        checkpoints.note_started()
        self._every("checkpoint", config.log_flush_offset_checkpoint_interval_ms, checkpoints.save)
        self._every("ledger", TICK_MS, self._commit_log.ledger.tick)
        self._every("retention", config.log_retention_check_interval_ms, self.retain)
        self._every(
            "expire producers",
            config.producer_id_expiration_check_interval_ms,
            self.expire_producers,
        )
        self._every("unload", UNLOADED_EVERY_MS, self.unload)
        self._every("measure the disk", int(MEASURED_EVERY_S * 1000), self.disk.measure)
        self._every("watch the disk", config.busy_disk_ms / CHECKS_PER_BUSY_TIME, self._check_disk)
        self._tasks.append(self._env.spawn(self._cut_journals(), "cutter"))
        self._tasks.append(self._env.spawn(self._tend_segments(), "segments"))
        self.start_indexing()
        self._tasks.append(self._env.spawn(self._clean_compacted(), "cleaner"))

    async def stop(self) -> None:
        """Cancel the tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start_indexing(self) -> None:
        """Write the indexes of journals that were rolled, now or before the start."""
        # Tasks that are done would be kept forever.
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(
            self._env.spawn(self._try("index journals", self._indexer.run), "index journals")
        )

    async def retain(self) -> None:
        """Delete what is due by retention."""
        await self._retention.run()
        await self._segments.deletion.expire()

    async def unload(self) -> None:
        """Unload idle partitions if too many are in memory."""
        await self._unloader.run(self._config.partitions_loaded_max)

    async def expire_producers(self) -> None:
        """Forget idempotent producers that were idle for too long."""
        before_ms = self._env.clock.now_ms() - self._config.producer_id_expiration_ms
        producing = self._commit_log.producing
        for at, partition in enumerate(list(producing)):
            # The next checkpoint must not have them.
            if partition.producers.expire(before_ms):
                partition.mark_dirty()
            producers = partition.producers
            # Nothing left to expire: visited again when a producer appends.
            if partition.removed or not (producers.states or producers.verifying):
                producing.pop(partition, None)
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()

    async def _clean_compacted(self) -> None:
        """Clean compacted topics, concurrently with cutting: it may take minutes."""
        while True:
            await self._env.sleep(self._config.log_cleaner_backoff_ms / 1000)
            await self._try("cleaning", self._segments.cleaner.run)

    async def _cut_journals(self) -> None:
        """Clean up after the previous end, then cut journals until the task is cancelled."""
        await self._try("removing unfinished segments", self._segments.clean)
        scans = failures = 0
        while True:
            await self._env.sleep(self._segments.cutter.timing.scan_interval_s())
            # First: only journals with an index can be cut.
            await self._try("indexing journals", self._indexer.run)
            # After each failure twice as many checks are skipped: a full disk is not filled with
            # files that cannot be finished.
            if scans % (1 << failures) == 0:
                cut = await self._try("cutting", self._cut)
                failures = 0 if cut else min(failures + 1, MAX_BACKOFF)
            scans += 1

    async def _tend_segments(self) -> None:
        """Delete dead files and merge, concurrently with cutting, which has deadlines."""
        scans = 0
        while True:
            await self._env.sleep(self._config.cut_interval_ms / 1000)
            await self._try("tidying segments", self._segments.deletion.run_pending)
            scans += 1
            if scans % TENDED_EVERY == 0:
                await self._try("tidying segments", self._segments.tend)

    async def _cut(self) -> None:
        taken = await self._segments.cut()
        if taken:
            self._retention.touched.update(taken)
        # Held journals wait for uploads, which end at any time.
        if taken or self._retention.held:
            await self._retention.reclaim()

    async def _check_disk(self) -> None:
        self.disk.check()

    async def _relieve(self) -> None:
        """Delete now what may be deleted, without its delays, since the disk fills up."""
        # From what costs nothing to what costs reads: spares, retention, dead files, then files of
        # what is uploaded.
        await self._commit_log.journals.drop_spares()
        await self.retain()
        await self._segments.sweep(now=True)
        relief = self._segments.remote.relief
        if relief is not None:
            await relief()

    async def _try(self, what: str, work: Work) -> bool:
        try:
            await work()
        except (OSError, WorkerError) as failure:
            # The disk or a killed child: no traceback is needed.
            logger.warning("%s failed, retrying later: %s", what, failure)
            return False
        except Exception:  # it is retried; ERROR is for what needs an operator
            logger.warning("%s failed, retrying later", what, exc_info=True)
            return False
        return True

    def _every(self, what: str, interval_ms: float, work: Work) -> None:
        async def run() -> None:
            while True:
                await self._env.sleep(interval_ms / 1000)
                await self._try(what, work)

        self._tasks.append(self._env.spawn(run(), what))
