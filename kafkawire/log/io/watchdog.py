"""Reports steps that held the event loop longer than kafkawire.log.io.slices.MAX_STRETCH_S of CPU
time.

Three kinds of work are measured: the processing of received bytes by a connection, each step of a
task started by kafkawire.log.io.ports.Env, and each callback of a timer. A step that is too long is
a defect: it is counted, and logged with the API, the client and the duration, at most once a
second.

Shell; made by kafkawire.log.io.disk for a real broker, absent in the simulation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from kafkawire.log.io.slices import MAX_STRETCH_S
from kafkawire.metric_counters import Histogram

logger = logging.getLogger(__name__)

MARK_S: Final = 0.001
LOG_INTERVAL_S = 1.0
LONG_STRETCHES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Bounds of the histogram of stretches over MAX_STRETCH_S, from twice the limit to what a user
notices."""


class Watchdog:
    """Measures steps on the event loop. `count` of those over the limit, and their durations in
    `seconds`."""

    __slots__ = ("_cpu", "_logged_at", "_mark_cpu", "_mark_wall", "_unlogged", "_wall", "count",
                 "seconds")  # fmt: skip

    def __init__(self, wall: Callable[[], float], cpu: Callable[[], float]) -> None:
        self._wall = wall
        self._cpu = cpu
        self._mark_wall = self._mark_cpu = 0.0
        self._logged_at = -LOG_INTERVAL_S
        self._unlogged = 0
        self.count = 0
        self.seconds = Histogram(LONG_STRETCHES)

    def start_call(self) -> float:
        """Start a stretch; returns what `end_call` takes. Hot."""
        now = self._wall()
        # Reading the CPU clock costs four times as much as the wall clock: once per MARK_S.
        if now - self._mark_wall > MARK_S:
            self._mark_wall = now
            self._mark_cpu = self._cpu()
        return now

    def end_call(self, begun: float, who: Callable[[], str]) -> float:
        """End a stretch and return the time; `who` names its cause if it has to be reported.
        Hot."""
        now = self._wall()
        # By the wall clock first; only a long step by CPU time since the last mark.
        if now - begun > MAX_STRETCH_S:
            self._report(begun, who)
        return now

    def _report(self, begun: float, who: Callable[[], str]) -> None:
        now, cpu = self._wall(), self._cpu()
        # The smaller one: nothing is reported where other processes use the processor.
        took_s = min(now - begun, cpu - self._mark_cpu)
        self._mark_wall, self._mark_cpu = now, cpu
        if took_s <= MAX_STRETCH_S:
            return
        self.count += 1
        self.seconds.add(took_s)
        if now - self._logged_at < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last report)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        logger.warning(
            "%s held the event loop for %.1f ms of CPU time, no other client was served%s",
            who(), took_s * 1000, more,
        )  # fmt: skip

    def run_timer(self, fn: Callable[..., object], *args: Any) -> None:
        """Call the function of a timer, fn(*args), as one stretch."""
        begun = self.start_call()
        try:
            fn(*args)
        finally:
            self.end_call(begun, lambda: f"the timer {getattr(fn, '__qualname__', fn)}")


class Stepwise(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured, under its name. It passes on what a task sends and
    throws."""

    __slots__ = ("_coro", "_name", "_watchdog")

    def __init__(self, watchdog: Watchdog, coro: Coroutine[Any, Any, Any], name: str) -> None:
        self._watchdog = watchdog
        self._coro = coro
        self._name = name

    def _who(self) -> str:
        return self._name

    def send(self, value: Any) -> Any:
        begun = self._watchdog.start_call()
        try:
            return self._coro.send(value)
        finally:
            self._watchdog.end_call(begun, self._who)

    def throw(self, *failure: Any) -> Any:
        """Run one step that begins with an exception."""
        begun = self._watchdog.start_call()
        try:
            return self._coro.throw(*failure)
        finally:
            self._watchdog.end_call(begun, self._who)

    def close(self) -> None:
        """End the coroutine at the point where it waits."""
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()
