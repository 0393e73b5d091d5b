"""When a worker that has ended is started again, and when one hangs. Pure."""

from __future__ import annotations

DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Delays before restarts in a row: a worker that cannot run uses little CPU time, and one that can
again is back within half a minute."""
STEADY_S = 60.0
"""A worker that has run for so long is started again at once: its last failure is no longer what
ended it."""
SILENT_TICKS = 10
"""A worker that has sent no beat for so many ticks hangs. One tick is a second, and the event loop
of a worker is never occupied for longer than some milliseconds."""


class Restarts:
    """The delays before the restarts of one worker."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self.total = 0

    def next_delay_s(self, ran_s: float) -> float:
        """Return the delay before the restart of a worker that has run for `ran_s`."""
        if ran_s >= STEADY_S:
            self._in_a_row = 0
        delay = DELAYS_S[min(self._in_a_row, len(DELAYS_S) - 1)]
        self._in_a_row += 1
        self.total += 1
        return delay


class Beats:
    """Counts the supervisor's own ticks since the last beat of a worker, and compares no clocks: if
    the supervisor is stopped together with its workers, no worker hangs because of that."""

    def __init__(self) -> None:
        self._ticks = 0

    def beat(self) -> None:
        """The worker has sent something."""
        self._ticks = 0

    def tick(self) -> bool:
        """Return whether the worker hangs. Called once a second."""
        self._ticks += 1
        return self._ticks > SILENT_TICKS
