"""Aborted transactions of segments that are read by consumers of committed records.

Each segment has those that overlap it, so that one small read answers for all of its partitions.
They are kept for the segments read last, of local files and of objects alike: a segment never
changes. A state that cannot be read is remembered too; then only what has no transactions is
served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.codec.batches import TRANSACTIONAL, iter_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.types import Buffer
from kafkawire.log.partition.transactions import AbortedIndex

MAX_KEPT_BYTES = 8 << 20
"""Of all segments together: 250,000 aborted transactions, or 30,000 segments without any."""
ENTRY_BYTES = 32
SEGMENT_BYTES = 256


class SegmentAborted:
    """The aborted transactions of one segment; `damaged`: why they are not known."""

    __slots__ = ("_by_number", "damaged", "size_bytes")

    def __init__(
        self, entries: Mapping[int, Sequence[Aborted]], damaged: str | None = None
    ) -> None:
        self._by_number = {number: AbortedIndex.of(some, ()) for number, some in entries.items()}
        self.damaged = damaged
        self.size_bytes = SEGMENT_BYTES + ENTRY_BYTES * sum(map(len, entries.values()))

    def overlapping(self, number: int, start: int, end: int) -> list[Aborted]:
        """Those of a partition with a marker at or after `start` and a first offset below `end`."""
        index = self._by_number.get(number)
        return index.overlapping(start, end) if index is not None else []


class AbortedCache:
    """The aborted transactions of segments, by segment ID, least recently used first."""

    __slots__ = ("_kept", "size_bytes")

    def __init__(self) -> None:
        self._kept: dict[int, SegmentAborted] = {}
        self.size_bytes = 0

    def find(self, segment_id: int) -> SegmentAborted | None:
        """Return those of a segment, if they are in memory."""
        known = self._kept.pop(segment_id, None)
        if known is not None:
            self._kept[segment_id] = known
        return known

    def keep(self, segment_id: int, known: SegmentAborted) -> SegmentAborted:
        """Keep those that were loaded; return the ones to use, which another reader may have
        loaded before."""
        there = self.find(segment_id)
        if there is not None:
            return there
        self._kept[segment_id] = known
        self.size_bytes += known.size_bytes
        while self.size_bytes > MAX_KEPT_BYTES and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self.size_bytes -= self._kept.pop(oldest).size_bytes
        return known

    def forget(self, segment_id: int) -> None:
        """Have a segment read again."""
        known = self._kept.pop(segment_id, None)
        if known is not None:
            self.size_bytes -= known.size_bytes


def has_transactions(batches: Sequence[Buffer]) -> bool:
    """Whether some of these batches belong to transactions."""
    return any(
        head.attributes & TRANSACTIONAL for buffer in batches for _, head in iter_batches(buffer)
    )
