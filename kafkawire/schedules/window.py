"""The next waiting records of a schedule partition, in memory in the order of delivery. Pure.

Complete up to `horizon`: what is due after it is only in the index on disk, from which the window
is filled again when it runs out.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest

from kafkawire.schedules.progress import Due

WINDOW_RECORDS = 20_000
"""Records in a window: a second of the fastest delivery; with their entries in heap and dict at
most 4 MB for each partition with so many, twice that before it is cut back."""


class DueWindow:
    """A priority queue with removal. `horizon`: None if everything that waits is here."""

    __slots__ = ("_due", "_heap", "_limit", "horizon")

    def __init__(self, limit: int = WINDOW_RECORDS, horizon: Due | None = None) -> None:
        self._limit = limit
        self._heap: list[Due] = []
        self._due: dict[int, int] = {}
        self.horizon = horizon

    def __len__(self) -> int:
        return len(self._due)

    def refill(self, entries: Iterable[Due], *, complete: bool) -> None:
        """Add the entries that follow the horizon; `complete`: there are no more after them."""
        last = self.horizon
        for entry in entries:
            last = entry if last is None else max(last, entry)
            self._due[entry[1]] = entry[0]
            self._heap.append(entry)
        heapify(self._heap)
        self.horizon = None if complete else last

    def add(self, due_ms: int, offset: int) -> None:
        """Add a record, or change its due time, if it is within the horizon."""
        self._due.pop(offset, None)
        entry = (due_ms, offset)
        if self.horizon is not None and entry > self.horizon:
            return
        self._due[offset] = due_ms
        heappush(self._heap, entry)
        if len(self._heap) > 2 * self._limit:
            self._cut()

    def discard(self, offset: int) -> None:
        """Remove a record, which need not be here."""
        self._due.pop(offset, None)

    def first(self) -> Due | None:
        """Return the next entry, None if there is none in memory."""
        heap = self._heap
        while heap:
            due_ms, offset = heap[0]
            if self._due.get(offset) == due_ms:
                return heap[0]
            heappop(heap)  # removed, or due at another time now
        return None

    def next(self, count: int, until_ms: int) -> list[Due]:
        """Return the next entries, at most `count`, that are due at or before `until_ms`; they
        stay."""
        if self.first() is None:
            return []
        found: list[Due] = []
        while len(found) < count and (entry := self.first()) is not None and entry[0] <= until_ms:
            found.append(heappop(self._heap))
            while self._heap and self._heap[0] == entry:
                heappop(self._heap)  # added twice
        for entry in found:
            heappush(self._heap, entry)
        return found

    def count(self, until_ms: int) -> int:
        """Return how many entries are due at or before `until_ms`: a millisecond for all."""
        return sum(due_ms <= until_ms for due_ms in self._due.values())

    def _cut(self) -> None:
        """Keep the next records of the limit, or drop entries that are removed."""
        live = [entry for entry in self._heap if self._due.get(entry[1]) == entry[0]]
        kept = nsmallest(self._limit, set(live))
        if len(kept) < len(set(live)):
            self.horizon = kept[-1]
        self._heap = kept
        heapify(self._heap)
        self._due = {offset: due_ms for due_ms, offset in kept}
