"""Where a partition's batches lie: columns in arrays, one row per frame (RocketMQ: ConsumeQueue).

A row costs 40 bytes and no object. Rows are in offset order and in place order at once, so each
question is a bisection. A gap between two rows above the log start means that acknowledged bytes
were damaged there (nothing else makes gaps), which is why no list of damaged ranges is kept.

Pure. log.partition asks, log.commitlog adds, log.eviction takes rows out of memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TypeAlias

ROW_BYTES = 40
"""8 base offset, 8 place, 4 length, 4 count, 8 max timestamp, 8 running maximum."""

Column: TypeAlias = "array[int]"


class HotIndex:
    """Rows of one partition.

    `base`: first offset; `place`: of the first batch's first byte; `length`: bytes of all its
    batches; `count`: offsets covered; `newest`: largest timestamp in the row; `running`: largest
    timestamp in this row and all before it, which never falls and so can be bisected.
    """

    __slots__ = ("base", "count", "length", "newest", "place", "running")

    def __init__(self) -> None:
        self.base: Column = array("q")
        self.place: Column = array("q")
        self.length: Column = array("I")
        self.count: Column = array("I")
        self.newest: Column = array("q")
        self.running: Column = array("q")

    def __len__(self) -> int:
        return len(self.base)

    def add(self, base: int, place: int, length: int, count: int, newest: int) -> None:
        """One more row, after all others in offset and place. Hot."""
        running = self.running
        self.base.append(base)
        self.place.append(place)
        self.length.append(length)
        self.count.append(count)
        self.newest.append(newest)
        running.append(newest if not running or newest > running[-1] else running[-1])

    def find(self, offset: int) -> int:
        """The last row that begins at or before `offset`, or -1."""
        return bisect_right(self.base, offset) - 1

    def row_at(self, place: int) -> int:
        """The first row at or after a place."""
        return bisect_left(self.place, place)

    def since(self, timestamp: int, start: int) -> int:
        """The first row from `start` on whose running maximum reaches `timestamp`."""
        return bisect_left(self.running, timestamp, start)

    def end_offset(self, row: int) -> int:
        """The offset after a row's last."""
        return self.base[row] + self.count[row]

    def drop_front(self, rows: int) -> None:
        """Forget the first rows."""
        if rows <= 0:
            return
        for column in (self.base, self.place, self.length, self.count, self.newest):
            del column[:rows]
        kept_is_clean = rows >= len(self.running) or self.running[rows] == self.newest[0]
        if kept_is_clean:
            del self.running[:rows]
        else:  # the maximum was among those dropped
            self.running = array("q", accumulate(self.newest, max))

    def extend(self, columns: Columns) -> None:
        """Add many rows, after all others."""
        highest = self.running[-1] if self.running else None
        self.base.extend(columns.base)
        self.place.extend(columns.place)
        self.length.extend(columns.length)
        self.count.extend(columns.count)
        self.newest.extend(columns.newest)
        running = accumulate(columns.newest, max, initial=highest)
        if highest is not None:
            next(running)
        self.running.extend(running)

    def slice(self, start: int, stop: int) -> Columns:
        """A copy of some rows."""
        return Columns(
            self.base[start:stop],
            self.place[start:stop],
            self.length[start:stop],
            self.count[start:stop],
            self.newest[start:stop],
        )


class Columns:
    """Rows on their way between memory and a journal's index file."""

    __slots__ = ("base", "count", "length", "newest", "place")

    def __init__(
        self, base: Column, place: Column, length: Column, count: Column, newest: Column
    ) -> None:
        self.base = base
        self.place = place
        self.length = length
        self.count = count
        self.newest = newest

    def __len__(self) -> int:
        return len(self.base)


def empty_columns() -> Columns:
    """No rows yet."""
    return Columns(array("q"), array("q"), array("I"), array("I"), array("q"))
