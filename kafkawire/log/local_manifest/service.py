"""The local manifest: a description of the broker's folder, in the format of a bucket's manifest.

`<folder>/manifest/` has the files of docs/manifest-format.md; its objects are the segment files
that are live and local, under their own uuids, so that a reader plans without broker and SQL. SQL
changes first, then memory, then listeners are notified (kafkawire.log.partition.hooks): the changes
they note become one delta, at most one a second. Nothing waits for it. So the manifest is stale by
a second or two, and never ahead; files stay for `file.delete.delay.ms` after they were replaced. If
anything is wrong with it (after a crash, damage, a restore), it is rebuilt next to the existing one
(kafkawire.log.local_manifest.maintenance).

This module notes changes and decides when they are written;
kafkawire.log.local_manifest.maintenance, imported a second after a start, writes them. Shell;
created by the broker if `local.manifest.enable` is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Protocol

from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.pending_changes import Changes
from kafkawire.log.manager import Log
from kafkawire.metadata.catalog import Catalog, TopicInfo
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRow

logger = logging.getLogger(__name__)

LINGER_S = 1.0
"""Seconds that a change waits for others: at most one file a second is written."""
RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Seconds between two attempts while the disk is full or SQL not available, growing."""
LAST_S = 5.0
"""How long a clean end waits for the last delta; without it the next start rebuilds the
manifest."""
ENDED = "manifest/ended"
"""The mark of a clean end (kafkawire.log.local_manifest.files), below the broker's folder."""


@dataclass(slots=True)
class Noted:
    """Pending changes: `changes` (without segments that are added), and in
    `new` the ids of these."""

    changes: Changes = field(default_factory=Changes)
    new: dict[int, None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.new) or bool(self.changes)


class ManifestWriter(Protocol):
    """Writes the manifest (kafkawire.log.local_manifest.maintenance). `sequence`: the number of the
    last delta; `attached`: deltas can follow it."""

    sequence: int
    attached: bool

    async def write(self) -> None:
        """Write all noted changes."""

    async def mark_clean_end(self) -> None:
        """Mark a clean end."""

    async def close(self) -> None:
        """End the tasks of the writer."""


class LocalManifest:
    """The local manifest of a broker. `maintained`: its writer, once there is one; `failures`:
    consecutive failed attempts."""

    def __init__(self, env: Env, log: Log, storage: SegmentCatalog, catalog: Catalog) -> None:
        self.env = env
        self.log = log
        self.storage = storage
        self.catalog = catalog
        self.noted = Noted()
        self.maintained: ManifestWriter | None = None
        self.failures = 0
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._marked = self._writing = False

    def start(self) -> None:
        """Register as listener and start."""
        # The state with which the log was opened, to compare with what the mark says.
        rows = [segment.row for segment in self.log.segments.store.by_id.values()]
        facts = len(self.catalog.by_id), self.catalog.last_number()
        # Before anything can have changed since the log was opened.
        self.log.hooks.register(self)
        self._woken.set()
        self._task = self.env.spawn(self._run(facts, rows), "local manifest")

    async def close(self) -> None:
        """Write the last delta and mark a clean end, if that takes little time; the scheduler of
        the log has ended, its folder is still locked. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self.maintained is not None:
            await self.maintained.close()
            # Without a complete chain the mark would be wrong: the next start rebuilds.
            if self.maintained.attached and not self.failures:
                last = self.env.spawn(
                    self._end(self.maintained), "last delta of the local manifest"
                )
                await asyncio.wait([last], timeout=LAST_S)
                last.cancel()
                await asyncio.gather(last, return_exceptions=True)

    @property
    def settled(self) -> bool:
        attached = self.maintained is not None and self.maintained.attached
        return attached and not (self._writing or self.noted)

    # -- changes that are noted (kafkawire.log.partition.hooks.LogListener)

    def segments(self, ids: Collection[int]) -> None:
        """Add live local segments to the manifest, remove others from it."""
        now_ms, delay_ms = self.env.clock.now_ms(), self.log.config.file_delete_delay_ms
        for segment_id in ids:
            segment = self.log.segments.store.by_id.get(segment_id)
            if segment is None:
                continue
            row = segment.row
            living = row.state == LIVE and row.local
            if living == segment.listed:
                continue
            segment.listed = living
            if living:
                self.noted.new[segment_id] = None
            else:
                self.noted.new.pop(segment_id, None)
                # Readers may have planned with it: the file stays for its delay.
                self.noted.changes.deleted[row.uuid] = max(row.delete_after_ms, now_ms + delay_ms)
            self._wake()

    def log_starts(self, numbers: Collection[int]) -> None:
        self.noted.changes.partitions.update(dict.fromkeys(numbers))
        self._wake()

    def topics(self, infos: Collection[TopicInfo]) -> None:
        for info in infos:
            self.noted.changes.topic(info.id)
        self.defaults()

    def topic_altered(self, info: TopicInfo) -> None:
        self.noted.changes.topic(info.id)
        self._wake()

    def topic_removed(self, info: TopicInfo) -> None:
        self.noted.changes.topic_deleted(info.id)
        self._wake()

    def defaults(self) -> None:
        self.noted.changes.cluster = True
        self._wake()

    def _wake(self) -> None:
        if self._marked:  # something changed after the marked end
            self._marked = False
            self._remove_end_marker()
        self._woken.set()

    def _remove_end_marker(self) -> None:
        with contextlib.suppress(OSError):
            self.env.fs.remove(os.path.join(self.log.folder, ENDED))

    # -- when they are written

    async def prepare(self) -> ModuleType:
        """Import the module that writes the manifest."""
        # In a thread: it takes 35 ms, which would delay requests.
        return await self.env.offload.submit(
            "files", import_module, "kafkawire.log.local_manifest.maintenance"
        )

    async def _run(self, facts: tuple[int, int], rows: list[SegmentRow]) -> None:
        """Take `facts` and `rows` of the metadata with which the log was opened."""
        # After the start, which has more urgent work.
        await self.env.sleep(LINGER_S)
        module = await self.prepare()
        self.maintained = maintained = module.MaintainedManifest(self, facts, rows)
        # A million rows need not stay in memory.
        del rows
        while True:
            await self._woken.wait()
            # Others join: at most one file a second.
            await self.env.sleep(LINGER_S)
            # Before the write: what is noted during it wakes this again.
            self._woken.clear()
            self._writing = True
            try:
                await maintained.write()
            except Exception as failure:  # of the disk or of SQL: the manifest is stale meanwhile
                await self._back_off(failure)
            else:
                self.failures = 0
            finally:
                self._writing = False

    async def _back_off(self, failure: Exception) -> None:
        self.failures += 1
        wait_s = min(RETRY_S * 2 ** min(self.failures - 1, 10), MAX_RETRY_S)
        logger.warning("cannot write the local manifest, retrying in %.0f s: %s", wait_s, failure)
        self._woken.set()
        await self.env.sleep(wait_s)

    def check_again(self) -> None:
        """Schedule a write, whether anything is noted or not."""
        self._woken.set()

    def _in_doubt(self) -> bool:
        return bool(self.log.hooks.doubts) or not self.log.segments.swapper.quiet

    async def _end(self, maintained: ManifestWriter) -> None:
        if self._in_doubt():
            return  # the state of SQL is unknown, so the next start checks
        await maintained.write()
        if self._in_doubt():
            return
        # Before the file: a change during the write removes it again.
        self._marked = True
        await maintained.mark_clean_end()
        if not self._marked:
            self._remove_end_marker()
