"""The next waiting records of a schedule partition, in memory in the order of delivery. Pure.

Complete up to `horizon`: what is due after it is only in the index on disk, from which the window
is filled again when it runs out. The very next entries are a sorted list, the others a heap.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from kafkawire.schedules.progress import Due

WINDOW_RECORDS = 1_000
"""Records in a window, twice that before it is cut back: sorting more would take longer than a
slice of the event loop."""


class DueWindow:
    """A priority queue with removal. `horizon`: None if everything that waits is here."""

    __slots__ = ("_due", "_heap", "_limit", "_next", "horizon")

    def __init__(self, limit: int = WINDOW_RECORDS, horizon: Due | None = None) -> None:
        self._limit = limit
        self._next: list[Due] = []  # sorted, all below those of the heap
        self._heap: list[Due] = []
        self._due: dict[int, int] = {}
        self.horizon = horizon

    def __len__(self) -> int:
        return len(self._due)

    def refill(self, entries: Iterable[Due], *, complete: bool) -> None:
        """Add the entries that follow the horizon, in order; `complete`: none is after them."""
        last = self.horizon
        for last in entries:
            self._due[last[1]] = last[0]
            self._heap.append(last)
        heapify(self._heap)
        self.horizon = None if complete else last

    def add(self, due_ms: int, offset: int) -> bool:
        """Add a record, or change its due time; return False if it, or records that had to make
        room, are beyond the horizon."""
        # Its former entry stays where it is, and is not live any more.
        self._due.pop(offset, None)
        entry = (due_ms, offset)
        # Only on disk: the window is complete up to the horizon, and knows nothing after it.
        if self.horizon is not None and entry > self.horizon:
            return False
        self._due[offset] = due_ms
        if self._next and entry < self._next[-1]:
            insort(self._next, entry)
        else:
            heappush(self._heap, entry)
        if len(self._heap) + len(self._next) > 2 * self._limit:
            return not self._cut()
        return True

    def discard(self, offset: int) -> None:
        self._due.pop(offset, None)

    def first_due(self) -> Due | None:
        """Return the next entry, None if there is none in memory."""
        found = self.next_due(1)
        return found[0] if found else None

    def next_due(self, count: int, until_ms: int | None = None) -> list[Due]:
        """Return the next entries, at most `count`, that are due at or before `until_ms` (None: at
        any time); they stay."""
        found: list[Due] = []
        stale = 0
        for entry in self._iterate_sorted():
            if len(found) == count or (until_ms is not None and entry[0] > until_ms):
                break
            if self._is_live(entry) and (not found or found[-1] != entry):
                found.append(entry)
            else:
                stale += 1
        # Otherwise each call would pass all of them again.
        if stale > count:
            self._next = [entry for entry in self._next if self._is_live(entry)]
        return found

    def count(self, until_ms: int) -> int:
        return sum(due_ms <= until_ms for due_ms in self._due.values())

    def _is_live(self, entry: Due) -> bool:
        """Return whether an entry was neither removed nor given another due time."""
        return self._due.get(entry[1]) == entry[0]

    def _iterate_sorted(self) -> Iterator[Due]:
        """Yield all entries in order, sorting as many as are taken; some are not live."""
        yield from self._next
        while self._heap:
            entry = heappop(self._heap)
            self._next.append(entry)
            yield entry

    def _cut(self) -> bool:
        """Keep the next records of the limit; return whether others were removed."""
        live = sorted(zip(self._due.values(), self._due, strict=True))
        kept = live[: self._limit]
        if len(kept) < len(live):
            self.horizon = kept[-1]
            self._due = {offset: due_ms for due_ms, offset in kept}
        # A sorted list is a heap.
        self._next, self._heap = [], kept
        return len(kept) < len(live)
