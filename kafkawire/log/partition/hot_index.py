"""Where a partition's batches lie: columns in arrays, one row per frame (RocketMQ: ConsumeQueue).

A row costs 40 bytes and no object. Rows are in the order of offsets and of log positions at once,
so each lookup is a bisection. A gap between two rows, or between the last row and the next offset,
means that acknowledged bytes were damaged there: nothing else makes one, so no list of damaged
ranges is kept.

Pure. kafkawire.log.partition.partition does lookups, kafkawire.log.append.commit_log adds rows,
kafkawire.log.partition.index_eviction removes them from memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from struct import Struct

from kafkawire.log.journal.index_columns import Column, IndexColumns


class JournalExtents:
    """The extents of a partition in rolled journals, also after its index rows were evicted:
    columns, oldest first, of journal number, [first, end) offsets, bytes, newest timestamp.

    Retention works on them (as Kafka's does on segments), and they name the journal whose index
    file has the rows that are no longer in memory.
    """

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

    def remove_oldest(self, count: int) -> list[int]:
        numbers = list(self.journal[:count])
        for column in (self.journal, self.first, self.end, self.size, self.newest):
            del column[:count]
        return numbers


_ROW = Struct("=qqIIq")
pack_row = _ROW.pack
"""The arguments of HotIndex.add in one piece: the form of a partition's newest rows, with which an
append touches one object instead of eleven."""
MAX_TAIL_BYTES = 64 * _ROW.size
"""The most packed rows of a partition: so many that unpacking them costs little for each."""


class HotIndex:
    """Rows of one partition.

    `base`: first offset; `log_position`: of the first batch's first byte; `length`: bytes of all
    its batches; `count`: offsets covered; `newest`: largest timestamp in the row.
    """

    __slots__ = ("_running", "base", "count", "length", "log_position", "newest")

    def __init__(self) -> None:
        self.base: Column = array("q")
        self.log_position: Column = array("q")
        self.length: Column = array("I")
        self.count: Column = array("I")
        self.newest: Column = array("q")
        # The largest timestamp in a row and all before it, which can be bisected; computed at the
        # first lookup, so that appends do not pay for it.
        self._running: Column = array("q")

    def __len__(self) -> int:
        return len(self.base)

    def add(self, base: int, log_position: int, length: int, count: int, newest: int) -> None:
        """Add a row after all others in offset and log position. Hot."""
        self.base.append(base)
        self.log_position.append(log_position)
        self.length.append(length)
        self.count.append(count)
        self.newest.append(newest)

    def add_packed(self, rows: bytearray) -> None:
        """Add the rows of `pack_row`, after all others."""
        if len(rows) == _ROW.size:
            self.add(*_ROW.unpack(rows))
            return
        # The packed rows twice: as 8-byte columns, and as 4-byte ones for length and count.
        wide: Column = array("q", bytes(rows))
        narrow: Column = array("I", bytes(rows))
        self.base.extend(wide[0::4])
        self.log_position.extend(wide[1::4])
        self.length.extend(narrow[4::8])
        self.count.extend(narrow[5::8])
        self.newest.extend(wide[3::4])

    def find(self, offset: int) -> int:
        """Return the last row that begins at or before `offset`, or -1."""
        return bisect_right(self.base, offset) - 1

    def row_at(self, log_position: int) -> int:
        """Return the first row at or after a log position."""
        return bisect_left(self.log_position, log_position)

    def since(self, timestamp: int) -> int:
        """Return the first row with a record at or after `timestamp`."""
        return bisect_left(self._maxima(), timestamp)

    def latest(self) -> int:
        """Return the largest timestamp, -1 without rows."""
        return self._maxima()[-1] if self.base else -1

    def end_offset(self, row: int) -> int:
        """Return the offset after a row's last."""
        return self.base[row] + self.count[row]

    def drop_front(self, rows: int) -> None:
        if rows > 0:
            for column in (self.base, self.log_position, self.length, self.count, self.newest):
                del column[:rows]
            del self._running[:]  # the maximum may have been among them

    def extend(self, columns: IndexColumns) -> None:
        self.base.extend(columns.base)
        self.log_position.extend(columns.log_position)
        self.length.extend(columns.length)
        self.count.extend(columns.count)
        self.newest.extend(columns.newest)

    def slice(self, start: int, stop: int) -> IndexColumns:
        return IndexColumns(
            self.base[start:stop],
            self.log_position[start:stop],
            self.length[start:stop],
            self.count[start:stop],
            self.newest[start:stop],
        )

    def correct(self, row: int, newest: int) -> None:
        self.newest[row] = newest
        # Maxima from this row on may include the old value.
        del self._running[row:]

    def _maxima(self) -> Column:
        running, newest = self._running, self.newest
        if len(running) < len(newest):
            if running:
                more = accumulate(newest[len(running) :], max, initial=running[-1])
                next(more)
                running.extend(more)
            else:
                running.extend(accumulate(newest, max))
        return running
