"""Caches of readers of segments: sparse indexes, and aborted transactions.

An index has the same bytes in a file and in an object, so local and remote reads share one cache
with one bound. Each segment has the aborted transactions that overlap it, so that one small read
answers for all of its partitions; a segment never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.codec.batches import TRANSACTIONAL, iter_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.damage import BadBatches, sound_run
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import SparseIndex
from kafkawire.codec.types import Buffer
from kafkawire.log.partition.transactions import AbortedIndex
from kafkawire.offsets.catalog.port import SegmentRange

MAX_ABORTED_BYTES = 8 << 20
"""Of all segments together: 250,000 aborted transactions, or 30,000 segments without any."""
ENTRY_BYTES = 32
SEGMENT_BYTES = 256


class SegmentAborted:
    """The aborted transactions of one segment; `damaged`: why they are not known. That is kept,
    too; then only what has no transactions is served."""

    __slots__ = ("_by_number", "damaged", "size_bytes")

    def __init__(
        self, entries: Mapping[int, Sequence[Aborted]], damaged: str | None = None
    ) -> None:
        self._by_number = {
            number: AbortedIndex.from_entries(some, ()) for number, some in entries.items()
        }
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
        # Taken out and put in again: the dictionary is in order of use.
        known = self._kept.pop(segment_id, None)
        if known is not None:
            self._kept[segment_id] = known
        return known

    def keep(self, segment_id: int, known: SegmentAborted) -> SegmentAborted:
        """Keep those that were loaded; return the ones to use."""
        # Another reader may have loaded it meanwhile.
        there = self.find(segment_id)
        if there is not None:
            return there
        self._kept[segment_id] = known
        self.size_bytes += known.size_bytes
        # Never the one that was just added, even if it is larger than the bound.
        while self.size_bytes > MAX_ABORTED_BYTES and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self.size_bytes -= self._kept.pop(oldest).size_bytes
        return known

    def remove_segment(self, segment_id: int) -> None:
        known = self._kept.pop(segment_id, None)
        if known is not None:
            self.size_bytes -= known.size_bytes


def has_transactions(batches: Sequence[Buffer]) -> bool:
    """Whether some of these batches belong to transactions."""
    return any(
        head.attributes & TRANSACTIONAL for buffer in batches for _, head in iter_batches(buffer)
    )


MAX_INDEX_BYTES = 16 << 20
"""Bytes of sparse indexes in memory: those of two gigabytes of segments that are being read."""
MAX_CHECKED_RANGES = 64
"""Ranges of one partition and segment known to be intact; for a reader that jumps between more, the
first ones are checked again."""

Key = tuple[int, int]  # segment id, partition number


class DamagedSegment(Exception):
    """Bytes that are not what was written: the offsets [first, end) of one partition, and their
    position in the segment."""

    def __init__(self, first: int, end: int, where: str) -> None:
        super().__init__(f"offsets {first}-{end - 1} are damaged: {where}")
        self.first = first
        self.end = end


class WarmIndex:
    """The sparse index of one partition in one segment."""

    __slots__ = ("checked", "index", "size_bytes")

    def __init__(self, index: SparseIndex, size_bytes: int) -> None:
        self.index = index
        self.size_bytes = size_bytes
        # Ranges of the local file that were checked and are intact, apart from one another.
        self.checked: list[tuple[int, int]] = []

    def find_damaged_block(self, position: int, data: memoryview) -> int | None:
        """Return where the first bad block of `data`, whole blocks from `position` on, begins."""
        start, stop = position, position + len(data)
        if self.is_checked(position, len(data)):
            return None
        bad = self.index.find_damaged_block(position, data)
        # What is before the bad block was checked too.
        stop = stop if bad is None else bad
        apart = []
        for one, other in self.checked:
            # Ranges that touch or overlap become one.
            if one <= stop and start <= other:
                start, stop = min(one, start), max(other, stop)
            else:
                apart.append((one, other))
        # The oldest is dropped, and checked again when it is read.
        self.checked = [*apart[-MAX_CHECKED_RANGES + 1 :], (start, stop)]
        return bad

    def is_checked(self, position: int, length: int) -> bool:
        """Return whether these bytes, whole blocks, were checked and are intact."""
        stop = position + length
        return any(one <= position and stop <= other for one, other in self.checked)

    def forget_checks(self) -> None:
        """Have every block checked again: the file cannot be read as it could before."""
        self.checked = []

    def block_at(self, position: int) -> tuple[int, int]:
        """Return (position, length) of the block that begins at a position."""
        return self.index.block(self.index.find(position))[:2]


class WarmIndexes:
    """A least-recently-used cache of sparse indexes with a bound on their bytes. `aborted`: the
    aborted transactions of the same segments."""

    __slots__ = ("_kept", "aborted", "size_bytes")

    def __init__(self) -> None:
        self.aborted = AbortedCache()
        self._kept: dict[Key, WarmIndex] = {}  # in the order of last use
        self.size_bytes = 0

    def find(self, key: Key) -> WarmIndex | None:
        """Return the index, if it is in memory."""
        warm = self._kept.pop(key, None)
        if warm is not None:
            self._kept[key] = warm
        return warm

    def keep(self, key: Key, warm: WarmIndex) -> WarmIndex:
        """Add an index that was loaded; return the one to use, which may be another reader's."""
        # Its checked ranges would be lost.
        there = self.find(key)
        if there is not None:
            return there
        self._kept[key] = warm
        self.size_bytes += warm.size_bytes
        while self.size_bytes > MAX_INDEX_BYTES and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self.size_bytes -= self._kept.pop(oldest).size_bytes
        return warm


def sound_part(
    index: SparseIndex, position: int, data: memoryview, offset: int, mapping: SegmentRange
) -> tuple[int, memoryview, int]:
    """Return the readable part of a damaged block at `offset`: the position of intact batches, the
    batches, and where the block ends.

    `data`: the bytes from the beginning of the block at `position` on. DamagedSegment if the offset
    is in the damaged part.
    """
    at = index.find(position)
    _, length, first, _, _ = index.block(at)
    end = index.block(at + 1)[2] if at + 1 < len(index) else mapping.end_offset
    if len(data) < length:
        # The file ends within the block: zeros are no batch.
        data = memoryview(bytes(data).ljust(length, b"\0"))
    found = sound_run(data[:length], first, end, offset)
    if isinstance(found, BadBatches):
        where = f"bytes {position + found.start}-{position + found.stop - 1}"
        raise DamagedSegment(found.first, found.end, where)
    start, stop = found
    return position + start, data[start:stop], position + length


def read_index(body: Buffer, mapping: SegmentRange) -> WarmIndex:
    """Parse the index of a mapping. DamagedSegment if the checksum is wrong."""
    try:
        index = SparseIndex(
            body, mapping.start, mapping.length, mapping.base_offset, mapping.index_checksum
        )
    except FormatError as failure:
        raise DamagedSegment(mapping.base_offset, mapping.end_offset, str(failure)) from failure
    return WarmIndex(index, len(body))
