"""When a second request for the same bytes is worth it, from how long the last ones took. Pure.

Object storage answers one request in a hundred many times later than the others. A request that
takes longer than nearly all before it is asked again, and the first answer counts. Bounded to a
share of all requests: when everything becomes slow, asking twice would only make it worse.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

KEPT = 128
"""Requests that are remembered, of each size class: enough for a percentile, soon forgotten."""
FEWEST = 20
"""Before so many nothing is known."""
SHARE = 0.05
"""Of all requests, how many may be second ones."""
MAX_SAVED = 10.0
"""Second requests that may be saved up: a burst of slow ones is not met by as many again."""
SHORTEST_S = 0.005
"""Below this a second request cannot win."""


class Durations:
    """The last KEPT durations (seconds), in both orders."""

    __slots__ = ("_last", "_sorted")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """One more; the oldest is forgotten."""
        if len(self._last) >= KEPT:
            self._sorted.pop(bisect_left(self._sorted, self._last.popleft()))
        self._last.append(seconds)
        insort(self._sorted, seconds)

    def percentile(self, percent: float) -> float | None:
        """The duration that so many percent do not exceed; None if too little is known."""
        if len(self._sorted) < FEWEST:
            return None
        at = int(len(self._sorted) * percent / 100)
        return self._sorted[min(at, len(self._sorted) - 1)]


class Hedge:
    """Requests are compared with others of their size class: their megabytes' bit length."""

    __slots__ = ("_classes", "_saved")

    def __init__(self) -> None:
        self._classes: dict[int, Durations] = {}
        self._saved = 0.0

    def begin(self, size_class: int, percent: float) -> float | None:
        """A request begins: after how many seconds without an answer a second one may go. None:
        never. `percent` 0 or 100 and more: hedging is off."""
        self._saved = min(MAX_SAVED, self._saved + SHARE)
        durations = self._classes.get(size_class)
        if durations is None or not 0 < percent < 100:
            return None
        seconds = durations.percentile(percent)
        return None if seconds is None else max(SHORTEST_S, seconds)

    def take(self) -> bool:
        """Whether the second one may go now; it counts."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

    def end(self, size_class: int, seconds: float) -> None:
        """A request was answered so long after its first attempt had begun."""
        self._classes.setdefault(size_class, Durations()).add(seconds)
