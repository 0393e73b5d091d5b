"""Maintenance of the local manifest: taken over after a clean end or rebuilt, then extended by
deltas.

Shell; created by kafkawire.log.local_manifest.service, which decides when it writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from kafkawire.log.io.atomic_file import NEW
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.local_manifest.delta_builder import SLICE, Gathering, topic_facts
from kafkawire.log.local_manifest.files import Ended, ManifestFiles
from kafkawire.log.local_manifest.job import ManifestArguments, ManifestResult
from kafkawire.log.local_manifest.pending_changes import Added, Changes
from kafkawire.log.local_manifest.service import LocalManifest
from kafkawire.log.manager import RUN_SHIFT
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.fold import empty
from kafkawire.manifest.keys import delta_key, snapshot_key
from kafkawire.manifest.reader import Current, Obsolete
from kafkawire.manifest.state import Delta
from kafkawire.metadata.checkpoint import pack_epochs
from kafkawire.offsets.catalog.port import COPY_FINISHED, LIVE, ObjectRow, SegmentRange, SegmentRow

logger = logging.getLogger(__name__)

PAGE = 8
"""Segments whose mappings are read in one transaction: ten thousand rows each at most."""
QUIET_S = 0.05
"""Seconds between two checks whether a swap has ended."""


class ChangeCollection:
    """Consistent collection of the changes that the local manifest does not have yet."""

    def __init__(self, manifest: LocalManifest, gathering: Gathering) -> None:
        self._env = manifest.env
        self._noted = manifest.noted
        self._swapper = manifest.log.segments.swapper
        self._storage = manifest.storage
        self._gathering = gathering
        self._start = manifest.log.start

    @asynccontextmanager
    async def next_delta(self, sequence: int) -> AsyncIterator[Delta]:
        """Yield the next delta, which may be empty; an exception in the block puts its changes
        back. Raises what the storage raises."""
        taken, new = Changes(), dict[int, None]()
        try:
            while True:
                # A delta must describe the segments of one moment, or a reader would not find every
                # offset below a partition's end. So no swap may be between its transaction and its
                # notification, and none may happen while rows are read. Nothing is locked:
                # otherwise it is tried again.
                version = await self.quiet()
                taken = self._noted.changes.take_all()
                # Segments only with the last slice: their topics must be in a delta before.
                if not self._noted.changes.sliced:
                    new, self._noted.new = self._noted.new, {}
                added = await self.read_segments(list(new))
                if self._swapper.quiet and self._swapper.version == version:
                    break
                # A swap has happened meanwhile: collect again.
                self._put_back(taken, new)
                taken, new = Changes(), {}
            taken.objects(added, {}, ends(added))
            for uuid in taken.added:  # it is local again
                taken.deleted.pop(uuid, None)
            yield await self._gathering.delta(taken, sequence, self._start)
        except BaseException:
            # Segments are noted by id and are read again; only ids go back.
            taken.added, taken.commits = {}, {}
            self._put_back(taken, new)
            raise

    def _put_back(self, taken: Changes, new: dict[int, None]) -> None:
        self._noted.changes.put_back(taken)
        # Those that were put back come first, in their old order.
        for segment_id in self._noted.new:
            new.setdefault(segment_id)
        self._noted.new = new

    async def quiet(self) -> int:
        """Wait until no swap is in progress; return the version of the rows."""
        while not self._swapper.quiet:
            await self._env.sleep(QUIET_S)
        return self._swapper.version

    async def read_segments(self, ids: Sequence[int]) -> list[Added]:
        """Return segments in the form of the manifest, without those that are not live and
        local."""
        added: list[Added] = []
        for at in range(0, len(ids), PAGE):
            rows = await self._storage.segments_by_id(ids[at : at + PAGE])
            living = [row for row in rows if row.state == LIVE and row.local]
            mappings: dict[int, list[SegmentRange]] = {row.id: [] for row in living}
            for mapping in await self._storage.segment_mappings(sorted(mappings)):
                mappings[mapping.segment_id].append(mapping)
            added += [Added(_object(row), row, mappings[row.id]) for row in living]
        return added


def _object(row: SegmentRow) -> ObjectRow:
    return ObjectRow(
        row.uuid,
        row.id,
        row.node_id,
        state=COPY_FINISHED,
        size_bytes=row.size_bytes,
        created_ms=row.created_ms,
    )


def ends(added: Sequence[Added]) -> dict[int, int]:
    """Return partition number -> end offset of these segments."""
    found: dict[int, int] = {}
    for each in added:
        for mapping in each.mappings:
            found[mapping.number] = max(found.get(mapping.number, 0), mapping.end_offset)
    return found


TOPICS_AT_ONCE = 1000
ENTRIES_AT_ONCE = 10_000
"""Rows of one delta."""
PAUSE_S = 0.005
"""Seconds between pages, so that clients of a large broker do not notice."""


class ManifestRebuild:
    """A rebuild of the local manifest from the catalog and SQL, next to the existing one.

    It works in pages and slices, since a broker may have a million mappings: 200,000 of 20,000
    topics took 3 s of CPU time in 10 s, and never 3 ms of the event loop at once.
    """

    def __init__(
        self,
        manifest: LocalManifest,
        gathering: Gathering,
        collection: ChangeCollection,
        files: ManifestFiles,
    ) -> None:
        self._env = manifest.env
        self._catalog = manifest.catalog
        self._noted = manifest.noted
        self._gathering = gathering
        self._collection = collection
        self._files = files
        self._log = manifest.log
        self._sequence = 0
        self._known: set[int] = set()  # partitions that are in a segment

    async def write(self) -> tuple[Current, int]:
        """Write it; return `current`, and the sequence number of the last delta. May be called
        again after a failure: OSError, or what the storage raises."""
        # A power failure may have removed deltas that a reader has read: no number is used again.
        known = await self._env.offload.submit("files", self._files.prepare)
        # The number of the start in the upper bits is above those of all earlier starts.
        base = max(known + 1, self._log.start << RUN_SHIFT)
        self._sequence = base
        self._known = set()
        now_ms = self._env.clock.now_ms()
        log, cluster_id = self._log, self._catalog.cluster_id
        nothing = empty(cluster_id, log.node_id, log.start, base, now_ms)
        # 1. An empty snapshot, which `current` does not name yet: readers see nothing of the new
        # chain.
        await self._env.offload.submit("files", self._files.write_content, nothing)
        # 2. From one moment on changes are noted; what was noted before is in the pages.
        await self._collection.quiet()
        ids = self._forget()
        topics = list(self._catalog.by_id)
        # 3. Topics before their partitions, segments before the ends of these.
        await self._write_topics(topics)
        await self._write_segments(ids)
        await self._write_partitions(topics)
        # 4. What was noted meanwhile ends the chain.
        while True:
            async with self._collection.next_delta(self._sequence + 1) as delta:
                await self._write(delta)
            if not self._noted:
                break
        current = Current(base)
        # 5. One rename replaces the manifest; only then the old files go.
        await self._env.offload.submit("files", self._files.write_current, current)
        await self._env.offload.submit("files", self._files.keep_only, base)
        return current, self._sequence

    def _forget(self) -> list[int]:
        """Clear the pending changes; return the segments that belong into the manifest."""
        # The pages have everything up to now.
        self._noted.changes, self._noted.new = Changes(cluster=True), {}
        ids = []
        for segment_id, segment in self._log.segments.store.by_id.items():
            segment.listed = segment.row.state == LIVE and segment.row.local
            if segment.listed:
                ids.append(segment_id)
        return ids

    def _delta(self) -> Delta:
        return Delta(
            self._sequence + 1,
            self._catalog.cluster_id,
            self._log.node_id,
            self._log.start,
            self._env.clock.now_ms(),
        )

    async def _write(self, delta: Delta) -> None:
        if not delta.says_nothing:
            await self._env.offload.submit("files", self._files.write_content, delta)
            # Only after the write: a delta without content has no file and no number.
            self._sequence = delta.sequence
        await self._env.sleep(PAUSE_S)

    async def _write_topics(self, ids: list[bytes]) -> None:
        delta = self._delta()
        for done, topic_id in enumerate(ids, 1):
            info = self._catalog.by_id.get(topic_id)
            if info is not None:
                delta.topics.append(topic_facts(info))
            if done % TOPICS_AT_ONCE == 0:
                await self._write(delta)
                delta = self._delta()
            elif done % SLICE == 0:
                await self._env.slices.pause()
        await self._write(delta)

    async def _write_segments(self, ids: list[int]) -> None:
        # Segments have the end of each partition; its other fields come with the partitions.
        delta, none = self._delta(), pack_epochs([])
        for at in range(0, len(ids), PAGE):
            added = await self._collection.read_segments(ids[at : at + PAGE])
            for each in added:
                await self._gathering.add_object(delta, each)
            for done, (number, end) in enumerate(ends(added).items(), 1):
                delta.partitions.append(ManifestPartition(number, 0, end, none))
                self._known.add(number)
                if done % SLICE == 0:
                    await self._env.slices.pause()
            if len(delta.entries) >= ENTRIES_AT_ONCE:
                await self._write(delta)
                delta = self._delta()
            else:
                await self._env.sleep(PAUSE_S)
        await self._write(delta)

    async def _write_partitions(self, topics: list[bytes]) -> None:
        numbers = self._numbers(topics)
        while part := list(islice(numbers, SLICE)):
            delta = self._delta()
            for row in await self._gathering.stored_rows(part):
                # Of partitions that were never cut only a log start that has moved.
                if row.log_start or row.number in self._known:
                    delta.partitions.append(row)
            await self._write(delta)

    def _numbers(self, topics: list[bytes]) -> Iterator[int]:
        for topic_id in topics:
            info = self._catalog.by_id.get(topic_id)
            if info is not None:
                yield from [row.number for row in info.partitions]


FOLDED_AFTER = 100
"""Deltas before a snapshot: a reader opens so many files at most, and a busy broker writes one
every few minutes."""
KEPT_MS = 600_000
"""How long old files stay: reading a manifest takes seconds, and the files take space."""


class LocalFolding:
    """Compaction of the local manifest: after FOLDED_AFTER deltas one snapshot is written, in the
    worker. `current`: the one in the folder; `damaged`: the chain cannot be read."""

    def __init__(self, env: Env, files: ManifestFiles) -> None:
        self.current = Current(0)
        self.damaged = False
        self._env = env
        self._files = files

    def continue_chain(self, current: Current) -> None:
        """Continue with the chain that the folder has now."""
        self.current = current
        self.damaged = False
        self._tried = 0

    def is_due(self, sequence: int) -> bool:
        """Return whether there are enough deltas, also since the last attempt."""
        # After a failure as many deltas again, not one attempt per delta.
        return sequence - max(self.current.snapshot, self._tried) >= FOLDED_AFTER

    async def fold(self, sequence: int) -> None:
        """Write a snapshot of everything up to this delta."""
        self._tried = sequence
        try:
            await self._fold(sequence)
        # Nothing is lost: readers use the chain as it is.
        except (OSError, WorkerError) as failure:
            logger.warning("cannot compact the local manifest, retrying later: %s", failure)

    async def _fold(self, sequence: int) -> None:
        before, submit = self.current, self._env.offload.submit
        keys = [snapshot_key(before.snapshot)]
        keys += [delta_key(number) for number in range(before.snapshot + 1, sequence + 1)]
        key = snapshot_key(sequence)
        output = self._files.path(key) + NEW
        await submit("files", self._files.remove, [key + NEW])
        arguments = ManifestArguments([(each, self._files.path(each)) for each in keys], output)
        try:
            result: ManifestResult = await self._env.worker.run("manifest", arguments)
        # A file of the chain is missing: it cannot be read any more.
        except FileNotFoundError as failure:
            result = ManifestResult(damaged=str(failure))
        if result.damaged:
            logger.error("rebuilding the local manifest: %s", result.damaged)
            self.damaged = True
            return
        # Complete before it has its name, which readers know.
        await submit("files", self._files.rename, output, key)
        now_ms = self._env.clock.now_ms()
        # A clock that was set back keeps them for longer, never for less.
        old = [each for each in before.obsolete if each.since_ms + KEPT_MS <= now_ms]
        kept = [each for each in before.obsolete if each not in old]
        # Old files stay for a while, for readers that have begun with them.
        folded = Obsolete(before.snapshot, before.snapshot + 1, sequence, now_ms)
        self.current = Current(sequence, (*kept, folded))
        # First `current`, then the old files: a crash in between leaves files too many.
        await submit("files", self._files.write_current, self.current)
        for each in old:
            await submit("files", self._files.remove, each.keys())


SEGMENTS_AT_ONCE = 1000
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
        # What SQL had when the log was opened; needed once.
        self._found: tuple[tuple[int, int], Sequence[SegmentRow]] | None = (facts, rows)
        self._files = ManifestFiles(env.fs, log.folder)
        gathering = Gathering(
            env, catalog, manifest.storage, log.partitions, log.node_id, _at_the_log_start
        )
        self._collection = ChangeCollection(manifest, gathering)
        self._rebuild = ManifestRebuild(manifest, gathering, self._collection, self._files)
        self._folder = LocalFolding(env, self._files)

    async def close(self) -> None:
        if self.folding is not None:
            self.folding.cancel()
            await asyncio.gather(self.folding, return_exceptions=True)

    async def write(self) -> None:
        """Write everything noted so far to the manifest. Raises OSError, and what the storage
        raises."""
        if self._folder.damaged:
            # The chain cannot be read: rebuild it.
            self.attached = False
        if not self.attached:
            await self._attach()
        while self._manifest.noted:
            async with self._collection.next_delta(self.sequence + 1) as delta:
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
        # Only the first time: later the counts are out of date.
        opened, self._found = self._found, None
        found = None
        # Trusted only after a clean end of the start before, if every checksum and the counts
        # match.
        if opened is not None and log.after_clean_end:
            found = await self._on_disk(self._files.believable, log.start - 1)
        if opened is not None and found is not None:
            (topics, last_partition), rows = opened
            current, ended = found
            segments, last_segment = await self._count(rows)
            now = Ended(ended.start, ended.sequence, topics, last_partition, segments, last_segment)
            # SQL has the state of the mark: no command has changed it in between.
            if now == ended:
                self._begin(current, ended.sequence)
                return
        if log.start > 1:  # a new broker has none
            logger.info("rebuilding the local manifest")
        self.rebuilds += 1
        self._begin(*await self._rebuild.write())

    def _begin(self, current: Current, sequence: int) -> None:
        self._folder.continue_chain(current)
        self.sequence = sequence
        self.attached = True

    async def mark_clean_end(self) -> None:
        """Mark a clean end: the manifest is complete. OSError."""
        log, catalog = self._manifest.log, self._manifest.catalog
        rows = [segment.row for segment in log.segments.store.by_id.values()]
        counts = await self._count(rows)
        topics = len(catalog.by_id)
        ended = Ended(log.start, self.sequence, topics, catalog.last_number(), *counts)
        await self._on_disk(self._files.mark_clean_end, ended)

    async def _count(self, rows: Sequence[SegmentRow]) -> tuple[int, int]:
        """Return how many of these are live and local, and the newest of them."""
        count = last = 0
        for at, row in enumerate(rows, 1):
            if row.state == LIVE and row.local:
                count, last = count + 1, max(last, row.id)
            if at % SEGMENTS_AT_ONCE == 0:
                await self._env.slices.pause()
        return count, last

    async def _on_disk(self, fn: Any, *args: Any) -> Any:
        return await self._env.offload.submit("files", fn, *args)


def _at_the_log_start(_dispatch: int, _commit: int, log_start: int) -> int:
    """A partition ends where its segments in the manifest end, which deltas with segments set."""
    return log_start
