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
from collections.abc import Iterable, Iterator

from kafkawire.codec.control import Aborted

OFFSET_MAX = (1 << 63) - 1


BLOCK = 256
"""Entries that share one bound in AbortedIndex: a lookup among a million entries checks 4,000
bounds, a third of a millisecond, and the entries of few blocks."""

MAX_LISTED = 10_000
"""Aborted transactions that end in one page of a Fetch, which names them all: two milliseconds. A
page of 50 MiB could have 300,000."""


class AbortedIndex:
    """Aborted transactions in the order of their markers, in columns: 32 bytes each, less than the
    bytes of the shortest transaction in the journal.

    The last column is Kafka's lastStableOffset of an index entry: every transaction that ends after
    this one begins at or after that offset.
    """

    __slots__ = ("_dropped", "_first", "_last", "_least", "_producer", "_stable")

    def __init__(self) -> None:
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        # Never falls, so it bounds a lookup from above.
        self._stable = array("q")
        # The least first offset of each block. Where one transaction is open for long `_stable`
        # stays low; then this shows which blocks have no entry that overlaps.
        self._least = array("q")
        self._dropped = 0  # entries of the first block that are not there any more

    def __len__(self) -> int:
        return len(self._last)

    def add(self, entry: Aborted, stable: int) -> None:
        """Add a transaction whose marker comes after all others; no transaction that is still open
        begins below `stable`."""
        producer_id, first, last = entry
        block = (len(self._last) + self._dropped) // BLOCK
        if block == len(self._least):
            self._least.append(first)
        elif first < self._least[block]:
            self._least[block] = first
        self._producer.append(producer_id)
        self._first.append(first)
        self._last.append(last)
        self._stable.append(stable)

    def overlapping(self, start: int, end: int) -> list[Aborted]:
        """Return those with a marker at or after `start` and a first offset below `end`."""
        begin = bisect_left(self._last, start)
        within = max(begin, bisect_left(self._last, end))  # they begin below `end`, too
        return list(self._rows(begin, within)) + [
            entry for entry in self._beyond(within, end) if entry.first < end
        ]

    def list_for_fetch(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return producer ID and first offset of those that `overlapping` returns, as a Fetch lists
        them: for a page of 20,000, in a third of the time."""
        begin = bisect_left(self._last, start)
        within = max(begin, bisect_left(self._last, end))
        pairs = zip(self._producer[begin:within], self._first[begin:within], strict=True)
        return list(pairs) + [
            (producer_id, first)
            for producer_id, first, _ in self._beyond(within, end)
            if first < end
        ]

    def end_of_page(self, start: int, end: int) -> int:
        """Return where a page from `start` on must end to have no more than MAX_LISTED markers of
        aborted transactions below `end`."""
        last = self._last
        if len(last) <= MAX_LISTED:
            return end
        beyond = bisect_left(last, start) + MAX_LISTED
        return min(end, last[beyond - 1] + 1) if beyond < len(last) else end

    def _beyond(self, begin: int, end: int) -> Iterator[Aborted]:
        """Yield the entries from `begin` on, whose markers are not below `end`, in the blocks of
        which some may begin below it."""
        # From the first entry on whose bound is at `end` or above, all others begin after it.
        stop = min(len(self._last), bisect_left(self._stable, end, begin) + 1)
        if begin >= stop:
            return
        dropped = self._dropped
        for block in range((begin + dropped) // BLOCK, (stop - 1 + dropped) // BLOCK + 1):
            # Otherwise no entry of this block begins below `end`.
            if self._least[block] < end:
                low = max(begin, block * BLOCK - dropped)
                high = min(stop, (block + 1) * BLOCK - dropped)
                yield from self._rows(low, high)

    def ended_in(self, start: int, end: int) -> list[Aborted]:
        """Return those with a marker in [start, end)."""
        return list(self._rows(bisect_left(self._last, start), bisect_left(self._last, end)))

    def _rows(self, low: int, high: int) -> Iterator[Aborted]:
        columns = (self._producer[low:high], self._first[low:high], self._last[low:high])
        return map(Aborted._make, zip(*columns, strict=True))

    def drop_below(self, offset: int) -> None:
        """Forget those whose marker is below `offset`."""
        stop = bisect_left(self._last, offset)
        if stop:
            for column in (self._producer, self._first, self._last, self._stable):
                del column[:stop]
            # Whole blocks go; the first may keep a bound that is too low, which costs time only.
            blocks, self._dropped = divmod(self._dropped + stop, BLOCK)
            del self._least[:blocks]

    @classmethod
    def from_entries(cls, entries: Iterable[Aborted], opened: Iterable[int]) -> AbortedIndex:
        """Make one of entries in any order, and the first offsets of transactions that are open
        after all of them."""
        ordered = sorted(entries, key=lambda entry: entry.marker)
        least = min(opened, default=OFFSET_MAX)
        bounds: list[int] = []
        # Backwards: the bound of an entry is the least first offset of all that end after it.
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
        # First offset and marker of those that have ended and are not committed yet.
        self._ended: deque[tuple[int, int]] = deque()

    def open_transaction(self, producer_id: int, first: int) -> None:
        """Note a transaction that was opened by a batch at `first`."""
        self.open[producer_id] = first

    def end_transaction(self, producer_id: int, marker: int, *, aborted: bool) -> None:
        """Note that the marker at offset `marker` ended the open transaction of a producer."""
        first = self.open.pop(producer_id)
        self._ended.append((first, marker))
        if aborted:
            # Transactions are opened in the order of their offsets: the first is the oldest.
            stable = next(iter(self.open.values()), marker + 1)
            self.aborted.add(Aborted(producer_id, first, marker), stable)

    def stable(self, high_watermark: int) -> int:
        """Return the last stable offset that belongs to a high watermark, which never falls."""
        ended = self._ended
        # Below the high watermark their marker is committed.
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        first = next(iter(self.open.values()), high_watermark)
        # A marker that is not committed may be lost: its transaction still is open for readers.
        if ended:
            first = min(first, *(begun for begun, _ in ended))
        return min(first, high_watermark)
