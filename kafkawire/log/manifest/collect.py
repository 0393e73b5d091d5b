"""Consistent collection of the changes that the local manifest does not have yet.

A reader of the manifest must find every offset below a partition's end in one of its segments, so a
delta must describe the segments of one moment: no swap may be between its transaction and its
notification, and none may have happened while rows were read from SQL. Nothing is locked: if a swap
happened, the changes are put back and collected again. Shell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kafkawire.log.manifest.delta_builder import Gathering
from kafkawire.log.manifest.pending_changes import Added, Changes
from kafkawire.log.manifest.service import LocalManifest
from kafkawire.manifest.state import Delta
from kafkawire.offsets.catalog.port import COPY_FINISHED, LIVE, ObjectRow, SegmentRange, SegmentRow

PAGE = 8
"""Segments whose mappings are read in one transaction: ten thousand rows each at most."""
QUIET_S = 0.05
"""Seconds between two checks whether a swap has ended."""


class ChangeCollection:
    """One collection of pending changes."""

    def __init__(self, manifest: LocalManifest, gathering: Gathering) -> None:
        self._env = manifest.env
        self._noted = manifest.noted
        self._swapper = manifest.log.segments.swapper
        self._storage = manifest.storage
        self._gathering = gathering
        self._start = manifest.log.start

    @asynccontextmanager
    async def next(self, sequence: int) -> AsyncIterator[Delta]:
        """Yield the next delta, which may be empty; an exception in the block puts its changes
        back. Raises what the storage raises."""
        taken, new = Changes(), dict[int, None]()
        try:
            while True:
                version = await self.quiet()
                taken = self._noted.changes.take()
                if not self._noted.changes.sliced:
                    new, self._noted.new = self._noted.new, {}
                added = await self.added(list(new))
                if self._swapper.quiet and self._swapper.version == version:
                    break
                self._put_back(taken, new)
                taken, new = Changes(), {}
            taken.objects(added, {}, ends(added))
            for uuid in taken.added:  # it is local again
                taken.deleted.pop(uuid, None)
            yield await self._gathering.delta(taken, sequence, self._start)
        except BaseException:
            taken.added, taken.commits = {}, {}
            self._put_back(taken, new)
            raise

    def _put_back(self, taken: Changes, new: dict[int, None]) -> None:
        self._noted.changes.put_back(taken)
        for segment_id in self._noted.new:
            new.setdefault(segment_id)
        self._noted.new = new

    async def quiet(self) -> int:
        """Wait until no swap is in progress; return the version of the rows."""
        while not self._swapper.quiet:
            await self._env.sleep(QUIET_S)
        return self._swapper.version

    async def added(self, ids: Sequence[int]) -> list[Added]:
        """Return segments in the form of the manifest, without those that are not live and
        local."""
        added: list[Added] = []
        for at in range(0, len(ids), PAGE):
            rows = await self._storage.segments_by_id(ids[at : at + PAGE])
            living = [row for row in rows if row.state == LIVE and row.local]
            mappings: dict[int, list[SegmentRange]] = {row.id: [] for row in living}
            for mapping in await self._storage.segment_mappings(sorted(mappings)):
                mappings[mapping.segment_id].append(mapping)
            added += [(_object(row), row, mappings[row.id]) for row in living]
        return added


def _object(row: SegmentRow) -> ObjectRow:
    """Return a local segment as an object of its folder."""
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
    for _, _, mappings in added:
        for mapping in mappings:
            found[mapping.number] = max(found.get(mapping.number, 0), mapping.end_offset)
    return found
