"""The extents of a partition in segments, in columns: the mapping rows of SQL that readers need.

Rows are in offset order and contiguous: each begins where the one before ends, also where
compaction has removed offsets. The last one's end is the partition's cut offset. A row costs 88
bytes and no object. Pure; kafkawire.log.partition.partition owns one,
kafkawire.log.partition.truncate changes it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

from kafkawire.offsets.catalog.port import SegmentRange

Column: TypeAlias = "array[int]"

_FIELDS = (
    "base_offset",
    "end_offset",
    "segment_id",
    "start",
    "length",
    "index_start",
    "index_length",
    "index_checksum",
    "max_timestamp",
    "batches",
    "records",
)


class SegmentRows:
    """The mapping rows of one partition, in columns. `base` and `end`: offsets covered; `newest`:
    largest timestamp or -1."""

    __slots__ = ("_columns", "base", "end", "length", "newest", "segment")

    def __init__(self) -> None:
        self._columns: tuple[Column, ...] = tuple(array("q") for _ in _FIELDS)
        self.base, self.end, self.segment = self._columns[:3]
        self.length = self._columns[4]
        self.newest = self._columns[8]

    def __len__(self) -> int:
        return len(self.base)

    def find(self, offset: int) -> int:
        """Return the row that covers `offset`, or the first after it; len(self) if there is
        none."""
        return bisect_right(self.end, offset)

    def mapping(self, number: int, at: int) -> SegmentRange:
        """Return one row as SQL has it."""
        segment = self.segment[at]
        base, end = self.base[at], self.end[at]
        return SegmentRange(
            number, segment, base, end, *[column[at] for column in self._columns[3:]]
        )

    def mappings(self, number: int) -> Iterator[SegmentRange]:
        """Return all rows, in offset order."""
        return (self.mapping(number, at) for at in range(len(self)))

    def splice(self, start: int, stop: int, mappings: Iterable[SegmentRange]) -> None:
        """Replace the rows [start, stop) by `mappings`, which are in offset order."""
        rows = list(mappings)
        for name, column in zip(_FIELDS, self._columns, strict=True):
            column[start:stop] = array("q", [getattr(row, name) for row in rows])
        # The rows next to the new ones, too: rows are contiguous.
        first, last = max(0, start - 1), start + len(rows) + 1
        around = list(zip(self.base[first:last], self.end[first:last], strict=True))
        assert all(a[1] == b[0] for a, b in pairwise(around)), f"segment rows with a hole: {around}"

    def drop_front(self, count: int) -> int:
        """Forget the first rows; return how many bytes they had."""
        size_bytes = sum(self.length[:count])
        for column in self._columns:
            del column[:count]
        return size_bytes
