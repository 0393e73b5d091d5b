"""Maintenance of the local manifest: taken over after a clean end or rebuilt, then extended by
deltas.

Shell; created by kafkawire.log.manifest.service, which decides when it writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from kafkawire.log.manifest.collect import ChangeCollection
from kafkawire.log.manifest.compaction import LocalFolding
from kafkawire.log.manifest.delta_builder import Gathering
from kafkawire.log.manifest.files import Ended, ManifestFiles
from kafkawire.log.manifest.rebuild import ManifestRebuild
from kafkawire.log.manifest.service import LocalManifest
from kafkawire.manifest.reader import Current
from kafkawire.manifest.state import Delta
from kafkawire.offsets.catalog.port import LIVE, SegmentRow

logger = logging.getLogger(__name__)

SLICE = 1000
"""Segments checked per event-loop iteration."""


class MaintainedManifest:
    """The maintained local manifest. `sequence`: the last delta; `attached`: whether the folder has
    a manifest that is maintained; `rebuilds`: how often it was rebuilt."""

    def __init__(
        self, manifest: LocalManifest, facts: tuple[int, int], rows: Sequence[SegmentRow]
    ) -> None:
        """Take `facts`, the number of topics when the log was opened and the newest partition, and
        `rows`, its segments then."""
        env, log, catalog = manifest.env, manifest.log, manifest.catalog
        self.attached = False
        self.sequence = 0
        self.rebuilds = 0
        self.folding: asyncio.Task[None] | None = None
        self._env = env
        self._manifest = manifest
        self._found: tuple[tuple[int, int], Sequence[SegmentRow]] | None = (facts, rows)
        self._files = ManifestFiles(env.fs, log.folder)
        gathering = Gathering(
            env, catalog, manifest.storage, log.partitions, log.node_id, _at_the_log_start
        )
        self._collection = ChangeCollection(manifest, gathering)
        self._rebuild = ManifestRebuild(manifest, gathering, self._collection, self._files)
        self._folder = LocalFolding(env, self._files)

    async def close(self) -> None:
        """End the background tasks."""
        if self.folding is not None:
            self.folding.cancel()
            await asyncio.gather(self.folding, return_exceptions=True)

    async def write(self) -> None:
        """Write everything noted so far to the manifest. Raises OSError, and what the storage
        raises."""
        if self._folder.damaged:
            self.attached = False
        if not self.attached:
            await self._attach()
        while self._manifest.noted:
            async with self._collection.next(self.sequence + 1) as delta:
                if not delta.says_nothing:
                    await self._write(delta)
        if self.folding is None and self._folder.is_due(self.sequence):
            self.folding = self._env.spawn(self._fold(), "fold the local manifest")

    async def _write(self, delta: Delta) -> None:
        try:
            await self._on_disk(self._files.write_content, delta)
        except asyncio.CancelledError:
            # The file may exist and have a reader: its number must not be used again.
            self.attached = False
            raise
        self.sequence = delta.sequence

    async def _fold(self) -> None:
        try:
            await self._folder.fold(self.sequence)
        finally:
            self.folding = None
        if self._folder.damaged:
            self._manifest.check_again()

    async def _attach(self) -> None:
        """Take over the manifest that a clean end left, or rebuild it."""
        log = self._manifest.log
        opened, self._found = self._found, None
        found = None
        if opened is not None and log.after_clean_end:
            found = await self._on_disk(self._files.believable, log.start - 1)
        if opened is not None and found is not None:
            (topics, last_partition), rows = opened
            current, ended = found
            segments, last_segment = await self._count(rows)
            now = Ended(ended.start, ended.sequence, topics, last_partition, segments, last_segment)
            if now == ended:
                self._begin(current, ended.sequence)
                return
        if log.start > 1:  # a new broker has none
            logger.info("rebuilding the local manifest")
        self.rebuilds += 1
        self._begin(*await self._rebuild.write())

    def _begin(self, current: Current, sequence: int) -> None:
        self._folder.begin(current)
        self.sequence = sequence
        self.attached = True

    async def mark(self) -> None:
        """Mark a clean end: the manifest is complete. OSError."""
        log, catalog = self._manifest.log, self._manifest.catalog
        rows = [segment.row for segment in log.segments.store.by_id.values()]
        counts = await self._count(rows)
        topics = len(catalog.by_id)
        ended = Ended(log.start, self.sequence, topics, catalog.last_number(), *counts)
        await self._on_disk(self._files.end, ended)

    async def _count(self, rows: Sequence[SegmentRow]) -> tuple[int, int]:
        """Return how many of these are live and local, and the newest of them."""
        count = last = 0
        for at, row in enumerate(rows, 1):
            if row.state == LIVE and row.local:
                count, last = count + 1, max(last, row.id)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return count, last

    async def _on_disk(self, fn: Any, *args: Any) -> Any:
        return await self._env.offload.submit("files", fn, *args)


def _at_the_log_start(_dispatch: int, _commit: int, log_start: int) -> int:
    """A partition ends where its segments in the manifest end, which deltas with segments set."""
    return log_start
