"""Limits the work per event-loop iteration: further jobs wait for the next one, in order.

The event loop checks every socket between two iterations, so this bounds the latency that one kind
of request adds to all others, however many clients send it. Pure except for the injected
scheduling.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


class IterationBudget:
    """Runs jobs immediately while `limit` lasts, then in later iterations; a job returns its cost.

    The last job of an iteration may exceed the limit. Callers bound the queue. What is left is
    renewed in the next iteration once half of it is used, so that a single job does not cost an
    iteration of the event loop that does nothing else.
    """

    __slots__ = ("_call_soon", "_left", "_limit", "_scheduled", "_waiting")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], limit: int) -> None:
        self._call_soon = call_soon
        self._limit = limit
        self._left = limit
        self._scheduled = False
        self._waiting: deque[Callable[[], int]] = deque()

    def do(self, job: Callable[[], int], later: Callable[[], int] | None = None) -> None:
        """Run a job now, or in a later iteration, in order: then `later` if it is given, which does
        the same."""
        if self._left > 0 and not self._waiting:
            self._left -= _cost_of(job)
            if self._left * 2 > self._limit:
                return
        else:
            self._waiting.append(later or job)
        self._schedule()

    def later(self, job: Callable[[], int]) -> None:
        """Run a job in the next iteration or later."""
        self._waiting.append(job)
        self._schedule()

    def finish(self) -> None:
        """Run all queued jobs, whatever they cost."""
        while self._waiting:
            _cost_of(self._waiting.popleft())

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._left = self._limit
        waiting = self._waiting
        while waiting and self._left > 0:
            self._left -= _cost_of(waiting.popleft())
        if waiting:
            self._schedule()


def _cost_of(job: Callable[[], int]) -> int:
    """Run a job. A defect in one must not stop the following ones."""
    try:
        return job()
    except Exception:
        logger.exception("a background step on the event loop failed")
        return 0
