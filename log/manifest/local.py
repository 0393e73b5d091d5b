"""The local manifest: what the broker's folder says of itself, as a bucket does of its own.

`<folder>/manifest/` has the files of docs/manifest-format.md; its objects are the segment files
that are live and local, under their own uuids, so that a reader plans without broker and SQL. SQL
goes first, then memory, then listeners are told (log.hooks): what they note is one delta, a second
later at most once a second. Nobody ever waits for it. So the manifest is stale by a second or two,
never ahead; and files stay for `file.delete.delay.ms` after they were replaced. Whatever may be
wrong with it (a crash, damage, a restore), it is written anew, beside the one that is there
(log.manifest.anew). Shell; made by the broker where `local.manifest.enable` says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from kafkawire.manifest.reader import Current
from kafkawire.metadata.catalog import Catalog, TopicInfo
from log.env import Env
from log.manager import Log
from log.manifest.anew import Anew
from log.manifest.files import Ended, ManifestFiles
from log.manifest.foldlocal import LocalFolding
from log.manifest.gathering import Gathering
from log.manifest.taking import Taking
from offsets.storage import LIVE, OffsetStorage, SegmentRow

logger = logging.getLogger(__name__)

LINGER_S = 1.0
"""How long a change waits for others: one file a second at most."""
RETRY_S, RETRY_AT_MOST_S = 1.0, 60.0
"""Between two tries where the disk is full or SQL away, growing."""
LAST_S = 5.0
"""How long a clean end waits for the last delta; without it the next start writes all anew."""
SLICE = 1000
"""Segments looked at between two turns of the loop."""


class LocalManifest:
    """See the module. `sequence`: the last delta; `attached`: whether the folder has a manifest
    that is kept; `failures`: tries in a row that failed."""

    def __init__(self, env: Env, log: Log, storage: OffsetStorage, catalog: Catalog) -> None:
        self._env = env
        self._log = log
        self._catalog = catalog
        self._store = log.segments.store
        self.files = ManifestFiles(env.fs, log.folder)
        gathering = Gathering(
            env, catalog, storage, log.partitions, log.node_id, lambda _d, _c, log_start: log_start
        )
        self._taking = Taking(env, log.segments, storage, gathering, log.start)
        self._anew = Anew(env, catalog, gathering, self._taking, self.files, log)
        self._folding = LocalFolding(env, self.files)
        self.attached = False
        self.sequence = 0
        self.failures = 0
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._fold: asyncio.Task[None] | None = None
        self._opened: list[SegmentRow] = []
        self._expected: Ended | None = None
        self._marked = self._writing = False

    def start(self) -> None:
        """Listen from now on, before anything can have changed since the log was opened, and
        begin."""
        self._opened = [segment.row for segment in self._store.by_id.values()]
        self._expected = self._ended(0, 0, 0)
        self._log.hooks.listeners.append(self)
        self._noted.set()
        self._task = self._env.spawn(self._run(), "local manifest")

    async def close(self) -> None:
        """Write the last delta and mark a clean end, if that is quickly done; the log's upkeep
        has ended, its folder is locked still. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        running = [each for each in (task, self._fold) if each is not None]
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.attached and not self.failures:
            last = self._env.spawn(self._end(), "last delta of the local manifest")
            await asyncio.wait([last], timeout=LAST_S)
            last.cancel()
            await asyncio.gather(last, return_exceptions=True)

    @property
    def settled(self) -> bool:
        """Whether everything that was noted is in the folder."""
        return self.attached and not (self._writing or self._taking.noted)

    # -- what is noted (log.hooks.Listener)

    def segments(self, ids: Collection[int]) -> None:
        """What is live and local is to be in the manifest, what is not any more goes from it."""
        now_ms, changes = self._env.clock.now_ms(), self._taking.changes
        for segment_id in ids:
            segment = self._store.by_id.get(segment_id)
            if segment is None:
                continue
            row = segment.row
            living = row.state == LIVE and row.local
            if living == segment.listed:
                continue
            segment.listed = living
            if living:
                self._taking.new[segment_id] = None
            else:
                self._taking.new.pop(segment_id, None)
                delay_ms = self._log.config.file_delete_delay_ms
                changes.deleted[row.uuid] = max(row.delete_after_ms, now_ms + delay_ms)
            self._wake()

    def log_starts(self, numbers: Collection[int]) -> None:
        """See log.hooks.Listener."""
        self._taking.changes.partitions.update(dict.fromkeys(numbers))
        self._wake()

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """See log.hooks.Listener."""
        for info in infos:
            self._taking.changes.topic(info.id)
        self.defaults()

    def topic_altered(self, info: TopicInfo) -> None:
        """See log.hooks.Listener."""
        self._taking.changes.topic(info.id)
        self._wake()

    def topic_removed(self, info: TopicInfo) -> None:
        """See log.hooks.Listener."""
        self._taking.changes.topic_deleted(info.id)
        self._wake()

    def defaults(self) -> None:
        """See log.hooks.Listener."""
        self._taking.changes.cluster = True
        self._wake()

    def _wake(self) -> None:
        if self._marked:  # the end is not the one that was marked
            self._marked = False
            self.files.spoil()
        self._noted.set()

    # -- when

    async def _run(self) -> None:
        while True:
            await self._noted.wait()
            await self._env.sleep(LINGER_S)
            self._noted.clear()
            self._writing = True
            try:
                if not self.attached:
                    await self._attach()
                await self._publish()
            except Exception as failure:  # of the disk or of SQL: it is stale meanwhile
                self.failures += 1
                wait_s = min(RETRY_S * 2 ** min(self.failures - 1, 10), RETRY_AT_MOST_S)
                logger.warning(
                    "the local manifest could not be written, next try in %.0f s: %s",
                    wait_s,
                    failure,
                )
                self._noted.set()
                await self._env.sleep(wait_s)
            else:
                self.failures = 0
            finally:
                self._writing = False

    async def _attach(self) -> None:
        """Take over the manifest a clean end left, or write it anew."""
        found = None
        if self._log.after_clean_end:
            found = await self._on_disk(self.files.believable, self._log.start - 1)
        expected, self._expected = self._expected, None
        if found is not None and expected is not None:
            current, ended = found
            segments, last = await self._count(self._opened)
            now = (expected.topics, expected.last_partition, segments, last)
            said = (ended.topics, ended.last_partition, ended.segments, ended.last_segment)
            if now == said:
                self._begin(current, ended.sequence)
                return
        logger.info("the local manifest is written anew")
        self._begin(*await self._anew.write())

    def _begin(self, current: Current, sequence: int) -> None:
        self._opened = []
        self._folding.current = current
        self.sequence = sequence
        self.attached = True

    async def _publish(self) -> None:
        """Everything noted by now is in the manifest; often one delta."""
        while self._taking.noted:
            await self._write_next()
        if self._folding.damaged:
            self.attached = self._folding.damaged = False
            self._noted.set()
        elif self._fold is None and self._folding.is_due(self.sequence):
            self._fold = self._env.spawn(self._fold_deltas(), "fold the local manifest")

    async def _write_next(self) -> None:
        async with self._taking.next(self.sequence + 1) as delta:
            if not delta.says_nothing:
                await self._on_disk(self.files.write_content, delta)
                self.sequence = delta.sequence

    async def _fold_deltas(self) -> None:
        try:
            await self._folding.fold(self.sequence)
        finally:
            self._fold = None
        if self._folding.damaged:
            self._noted.set()

    # -- the end

    async def _end(self) -> None:
        while self._taking.noted:
            await self._write_next()
        if self._log.hooks.doubts or not self._log.segments.swapper.quiet:
            return
        segments, last = await self._count([s.row for s in self._store.by_id.values()])
        self._marked = True
        ended = self._ended(self.sequence, segments, last)
        await self._on_disk(self.files.end, ended)
        if not self._marked:
            self.files.spoil()

    def _ended(self, sequence: int, segments: int, last_segment: int) -> Ended:
        return Ended(
            self._log.start,
            sequence,
            len(self._catalog.by_id),
            self._catalog.last_number(),
            segments,
            last_segment,
        )

    async def _count(self, rows: list[SegmentRow]) -> tuple[int, int]:
        """How many of these are live and local, and the newest of them."""
        count = last = 0
        for at, row in enumerate(rows, 1):
            if row.state == LIVE and row.local:
                count, last = count + 1, max(last, row.id)
            if at % SLICE == 0:
                await self._env.sleep(0)
        return count, last

    async def _on_disk(self, fn: Any, *args: Any) -> Any:
        return await self._env.offload.submit("files", fn, *args)
