"""Finish uploaded objects: the manifest delta, the rows, the state in memory.

One delta covers all objects uploaded meanwhile. Every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafkawire.hooks import SegmentUploaded
from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.pending_changes import Added
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.swap import Swapper
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    LIVE,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
)
from kafkawire.tiering.upload.offsets import PAGE, UploadProgress
from kafkawire.tiering.upload.scheduler import Candidate


class Publisher(Protocol):
    """The manifest publisher as uploads and deletions see it."""

    async def publish(
        self,
        added: Sequence[Added],
        deleted: Mapping[bytes, int],
        commits: Mapping[int, int] = ...,
    ) -> None:
        """Return when a delta with these objects and all earlier changes is in the bucket. Raises
        StoreError; the delta may be stored nevertheless, and a retry is safe."""

    def log_start_moved(self, number: int) -> None:
        """Add a partition's log start to the next delta."""

    def publish_soon(self) -> None:
        """Write the next delta as soon as possible."""


@dataclass(slots=True, eq=False)
class Flight:
    """One segment in the upload buffer, and its future object; `bytes_by_topic`: for cost
    accounting. `pinned`: whether the segment's file is pinned. `named`: a delta with the object was
    sent, so a manifest may name it; its `entries` are then final, because a reader may have used
    them."""

    segment: Segment
    row: ObjectRow
    candidate: Candidate
    bytes_by_topic: dict[str, int]
    pinned: bool = False
    named: bool = False
    entries: Sequence[SegmentRange] = ()

    @property
    def id(self) -> int:
        return self.row.segment_id

    def pin(self) -> None:
        self.pinned = True
        self.segment.pins += 1

    def unpin(self) -> None:
        """Allow the removal of the segment's file; no effect if it is not pinned."""
        if self.pinned:
            self.pinned = False
            self.segment.pins -= 1


class Finisher:
    """Finishes uploaded objects: delta, rows, memory. `discarded` is called after rows were made
    DELETE_STARTED."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        segments: SegmentStore,
        swapper: Swapper,
        publisher: Publisher,
        progress: UploadProgress,
        grace_ms: Callable[[], int],
        discarded: Callable[[], None],
    ) -> None:
        self._env = env
        self._storage = storage
        self._segments = segments
        self._swapper = swapper
        self._publisher = publisher
        self._progress = progress
        self._grace_ms = grace_ms
        self._discarded = discarded

    def publish_soon(self) -> None:
        self._publisher.publish_soon()

    def has(self, segment_id: int) -> bool:
        """Return whether a segment, of this or another broker, has a finished object."""
        segment = self._segments.find(segment_id)
        return segment is not None and bool(segment.row.object)

    async def finish(self, flights: Sequence[Flight]) -> list[bytes]:
        """Publish and finish uploaded objects. Return the uuids that are not needed any more and
        were never in a manifest. Raises StoreError and the storage's errors."""
        entries: dict[int, list[SegmentRange]] = {}
        for mapping in await self._storage.segment_mappings(sorted(each.id for each in flights)):
            entries.setdefault(mapping.segment_id, []).append(mapping)
        # Rows must not be ahead of memory, which shows the upload progress.
        await self._swapper.check_unknown_outcomes()
        living = [each for each in flights if each.id in entries and self._is_live(each)]
        numbers = {number for each in flights for number in each.candidate.numbers}
        finishing = {each.id for each in living}
        commits = await self._progress.find_commit_offsets(
            numbers, lambda each: each in finishing or self.has(each)
        )
        # The delta first, then the rows: as soon as a row is finished local files may go, and a
        # restore from the bucket must find the object in the manifest.
        if living:
            for each in living:
                # Set before the attempt, which may succeed although it fails here. From then on the
                # object is removed like any other in a manifest, if its segment was replaced.
                if not each.named:
                    each.named, each.entries = True, entries[each.id]
            await self._publisher.publish(
                [Added(each.row, each.segment.row, list(each.entries)) for each in living],
                {},
                commits,
            )
        if await self._enter([each.row.uuid for each in flights if each.named], commits):
            self._progress.raise_commit(commits)
        else:
            await self.catch_up(numbers)
        if self._env.hooks is not None:
            for each in flights:
                if each.named:
                    self._env.hooks.emit(
                        SegmentUploaded(
                            each.segment.row.uuid.hex(), each.row.uuid.hex(), each.row.size_bytes
                        )
                    )
        return [each.row.uuid for each in flights if not each.named]

    async def catch_up(self, numbers: Iterable[int]) -> None:
        """Raise commit offsets that are lower than the finished objects allow, after a crash or a
        partly failed call. They are published in the bucket first."""
        await self._swapper.check_unknown_outcomes()
        commits = await self._progress.find_commit_offsets(numbers, self.has)
        if commits:
            # In the order of `finish`: the manifest never has less than SQL says.
            await self._publisher.publish([], {}, commits)
            await self._storage.save_tiering_offsets(
                {number: (offset, offset) for number, offset in commits.items()}
            )
            self._progress.raise_commit(commits)

    async def catch_up_all(self) -> None:
        """After a start, find partitions whose commit offset is lower than the dispatch offset."""
        after = -1
        while numbers := await self._storage.list_uncommitted(PAGE, after):
            await self.catch_up(numbers)
            after = numbers[-1]

    def _is_live(self, flight: Flight) -> bool:
        now = self._segments.by_id.get(flight.id)
        return now is not None and now.row.state == LIVE

    async def _enter(self, uuids: Sequence[bytes], commits: Mapping[int, int]) -> bool:
        """Make rows COPY_FINISHED, or DELETE_STARTED if their segment was replaced. Return whether
        this call finished all of them, with the commit offsets."""
        if not uuids:
            return True
        rows = await self._swapper.update(lambda: self._storage.finish_objects(uuids, commits))
        done = {row.object for row in rows}
        left = [uuid for uuid in uuids if uuid not in done]
        if left:
            # An earlier call may have finished them although its response was lost.
            found = await self._storage.objects_by_uuid(left)
            finished = {row.uuid: row.segment_id for row in found if row.state == COPY_FINISHED}
            ids = sorted(finished.values())
            await self._swapper.update(lambda: self._storage.segments_by_id(ids))
            dead = [uuid for uuid in left if uuid not in finished]
            if dead:
                after_ms = self._env.clock.now_ms() + self._grace_ms()
                await self._storage.delete_objects(dead, after_ms)
                self._discarded()
        return not left
