"""Log: the commit log with its partitions, from start to end. What the broker holds.

Opens the folder (lock, run file, recovery), keeps the periodic work (checkpoints, retention,
producers that were idle too long), and sees to what follows from a rolled journal: its index file,
the next journal, the bound on the hot index. `Log.open` is the only way to one.

    <folder>/lock                     held while a process runs
    <folder>/run                      log.runfile
    <folder>/journals/N.journal       log.frame
    <folder>/journals/N.index         log.journalindex
    <folder>/journals/spare-N         to be written over
    <folder>/segments/UUID.segment    kafkawire.codec.segment
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Awaitable, Callable

from kafkawire.codec.configs import BrokerConfig, TopicConfig, resolve_topic
from kafkawire.metadata.catalog import Catalog, TopicInfo
from kafkawire.metadata.store import Metadata
from log.catalogframes import CatalogFrames
from log.checkpoints import Checkpoints
from log.commitlog import CommitLog
from log.env import Env, FileSystem, Lock, LogError
from log.eviction import close_portions, evict, rows_in
from log.hotindex import Columns
from log.journal import Journal
from log.journalindex import Extent, pack_index, write_index
from log.journals import Journals
from log.loading import load_partitions
from log.partition import Partition
from log.recovery import Found, Recovered, recover
from log.retention import Retention
from log.runfile import Run, read_run, write_run
from log.segments.keeper import Segments
from offsets.storage import OffsetStorage

logger = logging.getLogger(__name__)

RUN_SHIFT = 32
"""A run number is the number of the start << 32 | failed writes since."""
LOST_STARTS = 1000
"""Added when the run file is lost: more starts than can have left no frame behind."""


def lock_folder(env: Env, folder: str) -> Lock:
    """Make the folder and hold it for this process; LogError if another one has it."""
    env.fs.makedirs(os.path.join(folder, "journals"))
    try:
        return env.fs.lock(os.path.join(folder, "lock"))
    except BlockingIOError as failure:
        raise LogError(f"another kafkawire process uses {folder}: stop it first") from failure


class Log:
    """The log of one broker. `partitions` by number: those this broker leads."""

    def __init__(
        self,
        env: Env,
        folder: str,
        config: BrokerConfig,
        catalog: Catalog,
        storage: OffsetStorage,
        metadata: Metadata,
        node_id: int,
        lock: Lock,
    ) -> None:
        self.env = env
        self.folder = folder
        self.config = config
        self.node_id = node_id
        self.partitions: dict[int, Partition] = {}
        self._numbers: dict[bytes, list[int]] = {}  # of each topic, so that removing one is quick
        self._lock = lock
        self._start = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.journals = Journals(
            env,
            os.path.join(folder, "journals"),
            config.journal_bytes,
            config.hot_bytes,
            config.recycle_bytes,
        )
        self.commit_log = CommitLog(env, config, self.journals)
        self.checkpoints = Checkpoints(
            storage, node_id, self.commit_log, self.partitions, self._released
        )
        self.segments = Segments(
            self.commit_log, storage, self.partitions, folder, node_id, self._released
        )
        self._storage = storage
        self._catalog = catalog
        self._metadata = metadata
        self.catalog_frames: CatalogFrames
        self.retention: Retention

    @classmethod
    async def open(
        cls,
        env: Env,
        folder: str,
        config: BrokerConfig,
        catalog: Catalog,
        storage: OffsetStorage,
        metadata: Metadata,
        node_id: int,
        lock: Lock | None = None,
    ) -> Log:
        """Recover and be ready to serve. `lock` is that of `lock_folder`, if it is held already.

        Raises LogError (a sentence for the operator) if another process uses the folder or a
        newer program wrote it, OSError from the disk, and what `storage` and `metadata` raise.
        """
        if lock is None:
            lock = lock_folder(env, folder)
        try:
            log = cls(env, folder, config, catalog, storage, metadata, node_id, lock)
            await log._recover()
        except BaseException:
            lock.release()
            raise
        return log

    async def _recover(self) -> None:
        fs = self.env.fs
        place = await self._storage.load_place(self.node_id)
        last = read_run(fs, self.folder)
        clean_end = last.end if last is not None else -1
        recovered = recover(self.env, self.journals.folder, place, clean_end)
        clean = clean_end >= 0 and clean_end == recovered.written
        if last is None:
            self._start = recovered.run >> RUN_SHIFT
            self._start += LOST_STARTS if recovered.found else 0
        else:
            self._start = max(last.start, recovered.run >> RUN_SHIFT)
        self._start += 1
        write_run(fs, self.folder, Run(self._start, -1, self.config.flush))
        for info in self._catalog.by_id.values():
            self._make(info, resolve_topic(info.configs, self.config.texts))
        await self.segments.open()
        rows = await self._storage.load_partitions(sorted(self.partitions))
        written = load_partitions(fs, self.partitions, recovered, place, rows)
        self._resume(recovered)
        self.checkpoints.place = place if clean else -1
        if not clean and recovered.found:
            # Under flush=os readers may have seen a tail of which nothing at all is left.
            lost = last is None or last.flush == "os"
            await self._raise_epochs(set(self.partitions) if lost else written)
        if not clean:
            await self.checkpoints.save()
        self._begin(recovered.found)

    def _resume(self, recovered: Recovered) -> None:
        """Let the commit log write on behind what was found."""
        journals = [found.journal for found in recovered.found]
        self.journals.start(journals, recovered.spares, recovered.next_number)
        active = self.journals.active
        self.commit_log.start(self._start << RUN_SHIFT, active.end_place)
        for number in active.numbers:
            if number in self.partitions:
                self.partitions[number].named_in = active.number
        self.catalog_frames = CatalogFrames(self.commit_log, self._catalog, active.number)
        self.retention = Retention(
            self.commit_log, self.partitions, self.checkpoints, self.catalog_frames
        )
        self.commit_log.on_roll = self._rolled
        self.commit_log.save_log_starts = self._move_log_starts

    async def _raise_epochs(self, numbers: set[int]) -> None:
        """Fence readers of a tail that may be lost (KIP-320: OffsetForLeaderEpoch tells them)."""
        if not numbers:
            return
        logger.warning("the last end was not clean: %d leader epochs rise", len(numbers))
        epochs = await self._metadata.bump_leader_epochs(sorted(numbers))
        for number, epoch in epochs.items():
            self.partitions[number].lead(epoch)

    def _begin(self, found: list[Found]) -> None:
        config = self.config
        for item in found:
            journal = item.journal
            if journal.rolled and not journal.indexed:
                rows = rows_in(journal, self.partitions)
                self._tasks.append(
                    self.env.spawn(self._write_index(journal, rows, item.extent()), "index journal")
                )
        self._every(
            "checkpoint",
            config.log_flush_offset_checkpoint_interval_ms,
            self.checkpoints.save,
        )
        self._every("retention", config.log_retention_check_interval_ms, self.retention.run)
        self._tasks.append(self.env.spawn(self._tend_segments(), "segments"))
        self._every(
            "expire producers",
            config.producer_id_expiration_check_interval_ms,
            self._expire_producers,
        )

    async def _tend_segments(self) -> None:
        """Clean up after the last end, then cut for as long as the process lives."""
        await self.segments.clean()
        while True:
            await self.env.sleep(self.config.cut_interval_ms / 1000)
            try:
                if await self.segments.cut():
                    await self.retention.reclaim()
                await self.segments.sweep()
            except Exception:
                logger.warning("cutting failed, it will be tried again", exc_info=True)

    def _every(self, what: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            while True:
                await self.env.sleep(interval_ms / 1000)
                try:
                    await work()
                except Exception:  # tried again; ERROR is for what needs somebody
                    logger.warning("%s failed, it will be tried again", what, exc_info=True)

        self._tasks.append(self.env.spawn(run(), what))

    def add_topic(self, info: TopicInfo, config: TopicConfig) -> list[Partition]:
        """The partitions of a topic this broker leads and does not have open yet.

        For a new topic, and again when it has got further partitions. Also writes the topic to
        the journals: wait for CommitLog.committed before answering.
        """
        made = self._make(info, config)
        self.catalog_frames.created(info)
        return made

    def alter_topic(self, info: TopicInfo) -> None:
        """Write a topic's changed settings to the journals."""
        self.catalog_frames.configured(info)

    def _make(self, info: TopicInfo, config: TopicConfig) -> list[Partition]:
        made = []
        for row in info.partitions:
            if row.leader == self.node_id and row.number not in self.partitions:
                partition = Partition(
                    self.commit_log,
                    row.number,
                    info.id,
                    info.name,
                    row.index,
                    row.leader_epoch,
                    config,
                )
                self.partitions[row.number] = partition
                self._numbers.setdefault(info.id, []).append(row.number)
                made.append(partition)
        return made

    def remove_topic(self, topic_id: bytes) -> None:
        """Let go of a topic's partitions; parked readers are woken, its journals may be recycled.

        What is queued for them is still written; nothing more can be appended.
        """
        gone = [self.partitions.pop(number) for number in self._numbers.pop(topic_id, ())]
        for partition in gone:
            partition.removed = True
            self._released(list(partition.portions.journal))
            partition.moved()
        if gone:
            self.catalog_frames.deleted(topic_id, gone[0].topic)

    def _released(self, numbers: list[int]) -> None:
        """A partition has nothing in these rolled journals any more."""
        for number in numbers:
            journal = self.journals.by_number.get(number)
            if journal is not None:
                journal.live -= 1

    async def _move_log_starts(self, starts: dict[int, int]) -> None:
        await self.checkpoints.move_log_starts(starts)

    def _rolled(self, journals: list[Journal]) -> None:
        """Journals are full: index them on disk, then checkpoint."""
        for journal in journals:
            rows = close_portions(journal, self.partitions)
            extent = Extent(journal.end, self.commit_log.run, journal.end_place, journal.entries)
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(
                self.env.spawn(self._write_index(journal, rows, extent), "index journal")
            )

    async def _write_index(
        self, journal: Journal, rows: dict[int, Columns], extent: Extent
    ) -> None:
        """The index file vouches for its journal's bytes, so these must be durable first."""
        try:
            await self.commit_log.commits.durable()
            await self.env.offload.submit(
                "files", _index, self.env.fs, self.journals.folder, journal.number, extent, rows
            )
            journal.indexed = True
            evict(self.journals, self.partitions)
            await self.checkpoints.save()
        except Exception:  # a missing index costs recovery time, a checkpoint comes again
            logger.warning("cannot index journal %d", journal.number, exc_info=True)

    async def _expire_producers(self) -> None:
        before_ms = self.env.clock.now_ms() - self.config.producer_id_expiration_ms
        for at, partition in enumerate(list(self.partitions.values())):
            if partition.producers.states and partition.producers.expire(before_ms):
                partition.dirty = True
            if at % 256 == 255:  # a fraction of a millisecond
                await self.env.sleep(0)

    async def checkpoint(self) -> None:
        """Store the state of all partitions in SQL."""
        await self.checkpoints.save()

    async def close(self) -> None:
        """Commit, checkpoint, mark the end as clean, let go. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.env.worker.close()
            if self.commit_log.failed is None:
                await self.checkpoints.save()
                await self.commit_log.close()
                if self.checkpoints.place == self.commit_log.written:
                    self._end_cleanly()
        except Exception:
            logger.exception("the log could not be closed cleanly; the next start recovers it")
        finally:
            self.commit_log.commits.stop()
            self.segments.close()
            self.journals.close()
            self._lock.release()

    def _end_cleanly(self) -> None:
        """Index the active journal up to its end, then say that the log ends there."""
        active = self.journals.active
        extent = Extent(active.end, self.commit_log.run, active.end_place, active.entries)
        if active.end:
            rows = rows_in(active, self.partitions)
            _index(self.env.fs, self.journals.folder, active.number, extent, rows)
        run = Run(self._start, active.end_place, self.config.flush)
        write_run(self.env.fs, self.folder, run)


def _index(
    fs: FileSystem, folder: str, number: int, extent: Extent, rows: dict[int, Columns]
) -> None:
    write_index(fs, folder, number, pack_index(number, extent, rows))
