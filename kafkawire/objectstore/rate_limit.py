"""Rates that several threads keep to together."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from kafkawire.objectstore.calls import Call

NAP_S = 0.25
"""The longest sleep for a rate: how late a cancelled call sees that it is."""


class Pace:
    """So many bytes a second, shared by the threads that work at one rate."""

    __slots__ = ("_due", "_lock", "_now", "_rate", "_sleep")

    def __init__(
        self,
        bytes_per_second: int,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._sleep = sleep
        self._due = now()
        self._lock = Lock()

    def take(self, size_bytes: int, call: Call) -> None:
        """So many bytes were moved: wait until that may have been."""
        with self._lock:
            # Unused time is not saved up: after a pause there is no rush.
            self._due = max(self._due, self._now() - NAP_S) + size_bytes / self._rate
            due = self._due
        while (left := due - self._now()) > 0:
            call.check()
            self._sleep(min(left, NAP_S))


class Paces:
    """The paces of one direction: all calls that give the same rate share one."""

    __slots__ = ("_last", "_lock", "_now", "_sleep")

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._now = now
        self._sleep = sleep
        self._lock = Lock()
        self._last: tuple[int, Pace | None] = -1, None

    def at(self, bytes_per_second: int) -> Pace | None:
        """The pace of this rate, None where there is none (-1). A rate that was not the last one
        begins again."""
        with self._lock:
            if self._last[0] != bytes_per_second:
                limited = bytes_per_second > 0
                pace = Pace(bytes_per_second, self._now, self._sleep) if limited else None
                self._last = bytes_per_second, pace
            return self._last[1]
