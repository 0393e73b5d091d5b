"""Transactions of one partition: which are open, which were aborted, and the last stable offset.

Records below the last stable offset (LSO) belong to transactions that have ended with a committed
marker, or to none (Kafka: ProducerStateManager.firstUnstableOffset). Aborted transactions are kept
as long as their marker lies in the journals; the segments have the others
(kafkawire.codec.segment.directory). Pure. Changed by kafkawire.log.partition.producers when a
write batch has been written, and by recovery.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from kafkawire.codec.control import Aborted

OFFSET_MAX = (1 << 63) - 1


class AbortedIndex:
    """Aborted transactions in the order of their markers, in columns: 32 bytes each, less than the
    bytes of the shortest transaction in the journal.

    The last column is Kafka's lastStableOffset of an index entry: every transaction that ends after
    this one begins at or after that offset. It bounds the search.
    """

    __slots__ = ("_first", "_last", "_producer", "_stable")

    def __init__(self) -> None:
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")

    def __len__(self) -> int:
        return len(self._last)

    def add(self, entry: Aborted, stable: int) -> None:
        """Add a transaction whose marker comes after all others; no transaction that is still open
        begins below `stable`."""
        producer_id, first, last = entry
        self._producer.append(producer_id)
        self._first.append(first)
        self._last.append(last)
        self._stable.append(stable)

    def overlapping(self, start: int, end: int) -> list[Aborted]:
        """Return those with a marker at or after `start` and a first offset below `end`."""
        found: list[Aborted] = []
        for at in range(bisect_left(self._last, start), len(self._last)):
            if self._first[at] < end:
                found.append((self._producer[at], self._first[at], self._last[at]))
            if self._stable[at] >= end:
                break
        return found

    def ended_in(self, start: int, end: int) -> list[Aborted]:
        """Return those with a marker in [start, end)."""
        rows = range(bisect_left(self._last, start), bisect_left(self._last, end))
        return [(self._producer[at], self._first[at], self._last[at]) for at in rows]

    def drop_below(self, offset: int) -> None:
        """Forget those whose marker is below `offset`."""
        stop = bisect_left(self._last, offset)
        if stop:
            for column in (self._producer, self._first, self._last, self._stable):
                del column[:stop]

    @classmethod
    def of(cls, entries: Iterable[Aborted], opened: Iterable[int]) -> AbortedIndex:
        """Make one of entries in any order, and the first offsets of transactions that are open
        after all of them."""
        ordered = sorted(entries, key=lambda entry: entry[2])
        least = min(opened, default=OFFSET_MAX)
        bounds: list[int] = []
        for _, first, last in reversed(ordered):
            bounds.append(min(least, last + 1))
            least = min(least, first)
        made = cls()
        for entry, stable in zip(ordered, reversed(bounds), strict=True):
            made.add(entry, stable)
        return made


class PartitionTransactions:
    """Transactions of one partition, as of what has been written. `open`: first offset by producer
    ID, in the order of the offsets. `aborted`: those whose marker is in the journals."""

    __slots__ = ("_ended", "aborted", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.aborted = AbortedIndex()
        self._ended: deque[tuple[int, int]] = deque()  # first offset, marker: not committed yet

    def begin(self, producer_id: int, first: int) -> None:
        """Note that a transaction was opened by a batch at `first`."""
        self.open[producer_id] = first

    def end(self, producer_id: int, marker: int, *, aborted: bool) -> None:
        """Note that the marker at offset `marker` ended the open transaction of a producer."""
        first = self.open.pop(producer_id)
        self._ended.append((first, marker))
        if aborted:
            stable = next(iter(self.open.values()), marker + 1)
            self.aborted.add((producer_id, first, marker), stable)

    def stable(self, high_watermark: int) -> int:
        """Return the last stable offset that belongs to a high watermark, which never falls."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        first = next(iter(self.open.values()), high_watermark)
        if ended:
            first = min(first, *(begun for begun, _ in ended))
        return min(first, high_watermark)
