"""Consistent collection of the changes that the local manifest does not have yet.

A reader of the manifest must find every offset below a partition's end in one of its segments, so
what a delta says of segments has to be of one moment: no swap may be between its transaction and
what listeners were notified of it, and none may have come while rows were read from SQL. Nothing is
locked: who finds that one came puts everything back and takes it again. Shell.
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
"""Segments whose mappings are asked for in one transaction: ten thousand rows each at most."""
QUIET_S = 0.05
"""Between two checks whether a swap is over."""


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
        """The next delta, which may say nothing; whatever is raised within puts its changes back.
        Raises what the storage raises."""
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
        """Return when no swap is under way; the version of what it found."""
        while not self._swapper.quiet:
            await self._env.sleep(QUIET_S)
        return self._swapper.version

    async def added(self, ids: Sequence[int]) -> list[Added]:
        """Segments as the manifest has them; those that are not live and local left out."""
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
    """A local segment as the object that it is in its own folder."""
    return ObjectRow(
        row.uuid,
        row.id,
        row.node_id,
        state=COPY_FINISHED,
        size_bytes=row.size_bytes,
        created_ms=row.created_ms,
    )


def ends(added: Sequence[Added]) -> dict[int, int]:
    """Partition number -> how far these segments go."""
    found: dict[int, int] = {}
    for _, _, mappings in added:
        for mapping in mappings:
            found[mapping.number] = max(found.get(mapping.number, 0), mapping.end_offset)
    return found
