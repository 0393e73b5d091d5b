"""Port for merges and compaction: downloads remote segments as local files for the worker.

The tier is above the log (kafkawire.tiering.retention.local_retention) and is attached through
kafkawire.log.segments.store.remote_tier. Without one, segments without a local file are left as
they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.log.segments.store.segment_store import Segment


class Localizer(Protocol):
    """Raises KAFKA_STORAGE_ERROR for what the remote tier cannot deliver, or not now; OSError."""

    def copies(self, numbers: Iterable[int]) -> bool:
        """Return whether the results of merging these partitions' segments are uploaded again, so
        that a remote segment may be merged."""

    def pays(self, segments: Collection[Segment]) -> bool:
        """Return whether one object instead of these is worth the cost of reading and writing them
        once."""

    async def localize(self, segments: Collection[Segment]) -> None:
        """Return when all of these have a local file, complete and checked. The caller keeps them
        pinned: the files are removed some time after the last pin."""

    async def read(self, segment: Segment, start: int, length: int) -> bytes:
        """Return a few bytes of a segment that has no file; a negative start counts from its
        end."""
