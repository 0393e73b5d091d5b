"""Limits of bytes per second, kept by sleeping in the thread that moves the bytes.

Used by jobs of the worker process and by folders as object storage.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

NAP_S = 0.25
"""The longest sleep: how late a caller notices that it should end."""


class RateLimit:
    """At most `bytes_per_second` for all threads that share it; -1: no limit."""

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

    def wait_for_rate(self, size_bytes: int, check: Callable[[], None]) -> None:
        """Wait until `size_bytes` that have been moved are within the limit. `check` is called at
        once and after each sleep: what it raises ends the wait."""
        check()
        if self._rate <= 0:
            return
        with self._lock:
            # Unused time is not saved up: there is no burst after a pause.
            self._due = max(self._due, self._now() - NAP_S) + size_bytes / self._rate
            due = self._due
        while (left := due - self._now()) > 0:
            self._sleep(min(left, NAP_S))
            check()


class SharedRateLimit:
    """The limit of one direction: all calls that name the same rate share it."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._now = now
        self._sleep = sleep
        self._lock = Lock()
        self._last: tuple[int, RateLimit] = -1, RateLimit(-1, now, sleep)

    def at(self, bytes_per_second: int) -> RateLimit:
        """Return the limit of this rate (-1: none); one that was not the last begins again."""
        with self._lock:
            if self._last[0] != bytes_per_second:
                limit = RateLimit(bytes_per_second, self._now, self._sleep)
                self._last = bytes_per_second, limit
            return self._last[1]
