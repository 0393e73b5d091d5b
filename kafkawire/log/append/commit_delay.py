"""When a commit starts that only readers wait for.

A record of a producer with acks=1 is answered already; a parked Fetch sees it after the commit. A
commit of each record by itself costs more CPU time than all the rest of its delivery. So there is a
pause of one commit's duration (smoothed) after each commit: commits for readers alone take at most
half of the time, what is written meanwhile shares the next one, and a record waits no longer for
its commit to start than it may wait for a running one to end. On a fast disk that is less than the
millisecond that timers resolve, and there is no pause; on a slow one at most MAX_PAUSE_S.

Pure. Used by kafkawire.log.append.group_commit; commits that a request waits for start at once.
"""

from __future__ import annotations

MAX_PAUSE_S = 0.005
"""The longest pause: `commit.delay.ms` by default, after which records are committed for which
nothing waits."""
SMOOTHING = 8
"""Commits over which their duration is averaged: as few as follow a change of the disk's speed
within some tens of milliseconds, more than an outlier lasts."""
_RESOLUTION_S = 0.001
"""Of the event loop's timers."""


class ReaderPause:
    """The pause after a commit, until the next one starts for parked readers."""

    __slots__ = ("_ended", "_max_pause_s", "_typical_s")

    def __init__(self, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._max_pause_s = min(max_pause_s, MAX_PAUSE_S)
        self._typical_s = 0.0
        self._ended = 0.0

    def ended(self, begun: float, now: float) -> None:
        """Note the times of a commit."""
        self._typical_s += (now - begun - self._typical_s) / SMOOTHING
        self._ended = now

    def remaining_s(self, now: float) -> float:
        """Return how long to wait from now, in whole milliseconds; 0: start at once."""
        left = self._ended + min(self._typical_s, self._max_pause_s) - now
        return round(left / _RESOLUTION_S) * _RESOLUTION_S if left > 0 else 0.0
