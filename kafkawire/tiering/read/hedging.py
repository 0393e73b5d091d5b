"""Decide when a second request for the same bytes is useful, from the latest durations. Pure.

About one request in a hundred to object storage takes many times longer than the others. A request
that takes longer than nearly all recent ones is sent again, and the first response is used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

KEPT = 128
"""Durations kept per size class: enough for a percentile, and soon replaced."""
FEWEST = 20
"""Minimum number of durations before hedging starts."""
SHARE = 0.05
"""Share of all requests that may be hedged."""
MAX_SAVED = 10.0
"""Hedged requests that may be saved up, so that a burst of slow requests does not double."""
SHORTEST_S = 0.005
"""Minimum delay; a second request sent earlier cannot be faster."""


class Durations:
    """The last KEPT durations (seconds), by age and by value."""

    __slots__ = ("_last", "_sorted")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._last) >= KEPT:
            self._sorted.pop(bisect_left(self._sorted, self._last.popleft()))
        self._last.append(seconds)
        insort(self._sorted, seconds)

    def percentile(self, percent: float) -> float | None:
        """Return the duration that `percent` do not exceed; None if too few are known."""
        if len(self._sorted) < FEWEST:
            return None
        at = int(len(self._sorted) * percent / 100)
        return self._sorted[min(at, len(self._sorted) - 1)]


class Hedge:
    """Return the size class of a request: the bit length of its megabytes. Only requests of one
    class are compared."""

    __slots__ = ("_classes", "_saved")

    def __init__(self) -> None:
        self._classes: dict[int, Durations] = {}
        self._saved = 0.0

    def hedge_delay(self, size_class: int, percent: float) -> float | None:
        """Return after how many seconds without a response the request may be hedged; None: never.
        `percent` 0, or 100 and more: hedging is disabled."""
        self._saved = min(MAX_SAVED, self._saved + SHARE)
        durations = self._classes.get(size_class)
        if durations is None or not 0 < percent < 100:
            return None
        seconds = durations.percentile(percent)
        return None if seconds is None else max(SHORTEST_S, seconds)

    def use_allowance(self) -> bool:
        """Take a hedged request from the allowance; return whether there was one."""
        # A share of all requests: when everything is slow, hedging would only add load.
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

    def add_duration(self, size_class: int, seconds: float) -> None:
        self._classes.setdefault(size_class, Durations()).add(seconds)
