"""The extents of a partition in rolled journals: one row each, also after its index rows were
evicted.

Retention works on them (as Kafka's does on segments), and they name the journal whose index file
has the rows that are no longer in memory. Pure; kafkawire.log.partition.partition owns one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right


class JournalExtents:
    """Columns, oldest first: journal number, [first, end) offsets, bytes, newest timestamp."""

    __slots__ = ("end", "first", "journal", "newest", "size")

    def __init__(self) -> None:
        self.journal: array[int] = array("q")
        self.first: array[int] = array("q")
        self.end: array[int] = array("q")
        self.size: array[int] = array("q")
        self.newest: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.journal)

    def add(self, journal: int, first: int, end: int, size_bytes: int, newest: int) -> None:
        """Add the extent in a journal that was just rolled."""
        self.journal.append(journal)
        self.first.append(first)
        self.end.append(end)
        self.size.append(size_bytes)
        self.newest.append(newest)

    def find(self, offset: int) -> int:
        """Return the last extent that begins at or before `offset`, or -1."""
        return bisect_right(self.first, offset) - 1

    def below(self, offset: int) -> int:
        """Return how many extents, from the oldest, end at or before `offset`."""
        return bisect_right(self.end, offset)

    def drop(self, count: int) -> list[int]:
        """Forget the oldest; return the numbers of their journals."""
        numbers = list(self.journal[:count])
        for column in (self.journal, self.first, self.end, self.size, self.newest):
            del column[:count]
        return numbers
