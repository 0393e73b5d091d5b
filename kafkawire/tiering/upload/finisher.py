"""From uploaded objects to finished ones: the manifest's delta, the rows, the memory.

One delta for all that were uploaded meanwhile. It names objects before their rows are finished, so
an object whose segment was exchanged in between is removed like any other that a manifest names;
one that no delta was ever tried with can go at once. Every step may be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafkawire.log.io.ports import Env
from kafkawire.log.manifest.pending_changes import Added
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
        """Return when a delta with these, and everything noted before, is in the bucket. Raises
        StoreError; then it may be there all the same, and trying again is safe."""
        ...

    def log_start_moved(self, number: int) -> None:
        """The next delta is to have a partition's log start."""
        ...


@dataclass(slots=True, eq=False)
class Flight:
    """One segment in the upload buffer, and the object it becomes; `bytes_by_topic` of what is in
    it, for the bill. `pinned`: the segment's file stays for it. `named`: a delta with it was tried,
    so a manifest may name it; with these `entries` for good, as a reader may have seen
    offsets that are nowhere else yet."""

    segment: Segment
    row: ObjectRow
    candidate: Candidate
    bytes_by_topic: dict[str, int]
    pinned: bool = False
    named: bool = False
    entries: Sequence[SegmentRange] = ()

    @property
    def id(self) -> int:
        """Of its segment."""
        return self.row.segment_id

    def pin(self) -> None:
        """Keep the segment's file while it is uploaded."""
        self.pinned = True
        self.segment.pins += 1

    def unpin(self) -> None:
        """Allow the segment's file to be removed; harmless if it is not pinned."""
        if self.pinned:
            self.pinned = False
            self.segment.pins -= 1


class Finisher:
    """Finishes uploaded objects: delta, rows, memory. `discarded` is called when rows were made
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

    def has(self, segment_id: int) -> bool:
        """Whether a segment has a finished object."""
        segment = self._segments.by_id.get(segment_id)
        return segment is not None and bool(segment.row.object)

    async def finish(self, flights: Sequence[Flight]) -> list[bytes]:
        """Publish and finish uploaded objects; the uuids of those that are not wanted any more
        and that no manifest has ever named. Raises StoreError, and what the storage raises."""
        entries: dict[int, list[SegmentRange]] = {}
        for mapping in await self._storage.segment_mappings(sorted(each.id for each in flights)):
            entries.setdefault(mapping.segment_id, []).append(mapping)
        # Memory must not be older than these: it shows how far a partition is.
        await self._swapper.settle()
        living = [each for each in flights if each.id in entries and self._is_live(each)]
        numbers = {number for each in flights for number in each.candidate.numbers}
        finishing = {each.id for each in living}
        commits = await self._progress.committed(
            numbers, lambda each: each in finishing or self.has(each)
        )
        if living:
            for each in living:
                if not each.named:
                    each.named, each.entries = True, entries[each.id]
            await self._publisher.publish(
                [(each.row, each.segment.row, list(each.entries)) for each in living], {}, commits
            )
        if await self._enter([each.row.uuid for each in flights if each.named], commits):
            self._progress.raise_commit(commits)
        else:
            await self.catch_up(numbers)
        return [each.row.uuid for each in flights if not each.named]

    async def catch_up(self, numbers: Iterable[int]) -> None:
        """Raise commit offsets that lie after what is finished: a call that finished less than it
        was to, or a crash, has left them there. The bucket says so first."""
        await self._swapper.settle()
        commits = await self._progress.committed(numbers, self.has)
        if commits:
            await self._publisher.publish([], {}, commits)
            await self._storage.save_tiering_offsets(
                {number: (offset, offset) for number, offset in commits.items()}
            )
            self._progress.raise_commit(commits)

    async def catch_up_all(self) -> None:
        """After a start: partitions of which not all that was dispatched is committed."""
        after = -1
        while numbers := await self._storage.uncommitted(PAGE, after):
            await self.catch_up(numbers)
            after = numbers[-1]

    def _is_live(self, flight: Flight) -> bool:
        """Whether its segment is read still."""
        now = self._segments.by_id.get(flight.id)
        return now is not None and now.row.state == LIVE

    async def _enter(self, uuids: Sequence[bytes], commits: Mapping[int, int]) -> bool:
        """Rows COPY_FINISHED; what cannot be finished any more is deleted. Whether all of them
        were finished by this call, and the commit offsets with them."""
        if not uuids:
            return True
        rows = await self._swapper.update(lambda: self._storage.finish_objects(uuids, commits))
        done = {row.object for row in rows}
        left = [uuid for uuid in uuids if uuid not in done]
        if left:
            # A call before this one may have finished them, though its answer was lost.
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
