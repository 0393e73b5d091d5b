"""Limits of readers of old data: the slow lane, and a bound of the bytes in flight.

Each piece of work for them (checking and sending batches) holds the loop for a fraction of a
millisecond. So in the slow lane only one piece runs between two checks of the sockets, and none for
some event-loop iterations while a Produce request waits to be written: readers of old data do not
notice, all other clients do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kafkawire.log.io.ports import Env

MAX_POSTPONED = 8
"""Consecutive iterations that are left to other work: under an endless load of Produce requests a
ninth remains."""
SHARED_S = 1.0
"""Seconds for which the loop counts as shared after a piece of work was postponed."""


class SlowLane:
    """A queue that runs slow work in small pieces on the event loop. `busy` returns whether
    something more urgent waits."""

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
        """Whether other work has recently waited for the loop: pieces of work should then be
        smaller."""
        return self._env.clock.monotonic() < self._shared_until

    async def wait(self) -> None:
        """Return when the next piece of work of the caller may run; callers are served in order."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._schedule()
        await waiter

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            # One piece per event-loop iteration.
            self._scheduled = True
            self._env.call_soon(self._give)

    def _give(self) -> None:
        self._scheduled = False
        # A Produce request waits to be written: it goes first, but not forever.
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


class InFlight:
    """A limit on bytes that are being read or not yet handed over: readers above it wait."""

    __slots__ = ("_bound_bytes", "_free_bytes", "_queue")

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._free_bytes = bound_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait_for_room(self, size_bytes: int) -> None:
        """Return when so many bytes may be read."""
        # In order: a small read must not overtake a large one forever. Above the bound it runs
        # alone.
        if not self._queue and (
            size_bytes <= self._free_bytes or self._free_bytes == self._bound_bytes
        ):
            self._free_bytes -= size_bytes
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size_bytes, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            # Granted and cancelled in the same iteration: nothing else gives these bytes back.
            if waiter.done() and not waiter.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        """Release bytes that have been handed over."""
        self._free_bytes += size_bytes
        while self._queue:
            size_bytes, waiter = self._queue[0]
            # Everything is free: even a read above the bound may run.
            if size_bytes > self._free_bytes and self._free_bytes < self._bound_bytes:
                return
            self._queue.popleft()
            if not waiter.done():
                self._free_bytes -= size_bytes
                waiter.set_result(None)
