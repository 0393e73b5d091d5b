"""The slow lane: work for readers of old data, one piece in an event-loop iteration.

What is checked and sent for them holds the loop for a fraction of a millisecond each time. So only
one piece runs between two checks of the sockets, and none while a produce waits to be
written, for some event-loop iterations: no one who reads old data can tell, everybody else can.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kafkawire.log.io.ports import Env

MAX_POSTPONED = 8
"""Iterations in a row that go to other work: under a load of produces without end a ninth is
left."""
SHARED_S = 1.0
"""After a piece of work was postponed: how long the loop counts as shared."""


class SlowLane:
    """A queue that runs slow work in small pieces on the event loop. `busy`: whether something
    waits that is more urgent."""

    __slots__ = ("_busy", "_env", "_postponed", "_scheduled", "_shared_until", "_waiting")

    def __init__(self, env: Env, busy: Callable[[], bool]) -> None:
        self._env = env
        self._busy = busy
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False
        self._postponed = 0
        self._shared_until = 0.0

    @property
    def shared(self) -> bool:
        """Whether others want the loop these days: pieces of work should be smaller then."""
        return self._env.clock.monotonic() < self._shared_until

    async def wait(self) -> None:
        """Return when the next piece of work of the caller may run; callers are served in order."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._schedule()
        await waiter

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._env.call_soon(self._give)

    def _give(self) -> None:
        self._scheduled = False
        if self._busy() and self._postponed < MAX_POSTPONED:
            self._postponed += 1
            self._shared_until = self._env.clock.monotonic() + SHARED_S
        else:
            self._postponed = 0
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    break
        self._schedule()
