"""Port for merges and compaction: downloads remote segments as local files for the worker.

The tier is above the log (kafkawire.tiering.retention.local_retention) and is attached through
kafkawire.log.segments.store.remote_tier. Without one a segment that has no file here is left as it
is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.log.segments.store.segment_store import Segment


class Localizer(Protocol):
    """Raises KAFKA_STORAGE_ERROR for what the remote tier cannot give, or not now; OSError."""

    def copies(self, numbers: Iterable[int]) -> bool:
        """Whether what is made of these partitions' segments is uploaded again, so that a remote
        one may be rewritten."""

    def pays(self, segments: Collection[Segment]) -> bool:
        """Whether one object instead of these is worth what reading and writing them once costs."""

    async def localize(self, segments: Collection[Segment]) -> None:
        """Return when all of these have their file here, whole and checked. The caller keeps
        them pinned: the files go some time after the last pin."""

    async def read(self, segment: Segment, start: int, length: int) -> bytes:
        """A few bytes of a segment that has no file; a negative start counts from its end."""
