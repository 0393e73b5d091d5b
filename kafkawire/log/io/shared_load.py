"""Loads something again for callers that lack it: once for all that wait meanwhile.

A time of the last load that is noted before the load has ended, and compared by the next caller,
lets that one pass without what is being loaded. Here each caller waits for the load itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kafkawire.log.io.ports import Env


class SharedLoad:
    """Calls `load`, at most once each `interval_s`, at most one at a time. Callers get what it
    raises."""

    def __init__(
        self, env: Env, name: str, load: Callable[[], Awaitable[object]], interval_s: float = 0.0
    ) -> None:
        self._env = env
        self._name = name
        self._load = load
        self._interval_s = interval_s
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._begun_s = float("-inf")

    async def again(self) -> None:
        """Return after a load that has begun after this call: one in progress may have read before
        what the caller lacks was stored."""
        # All callers of this moment share one load.
        if self._next is None:
            self._next = self._env.spawn(self._run_after(self._running), self._name)
            self._next.add_done_callback(_fetch_failure)
        await asyncio.shield(self._next)

    async def recent(self) -> None:
        """Return when the last load has ended and began at most `interval_s` ago."""
        if self._running is not None and not self._running.done():
            await asyncio.shield(self._running)
        elif self._env.clock.monotonic() - self._begun_s >= self._interval_s:
            await self.again()

    async def close(self) -> None:
        running = [task for task in (self._running, self._next) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None and not running.done():
            await asyncio.wait([running])
        wait_s = self._begun_s + self._interval_s - self._env.clock.monotonic()
        if wait_s > 0:
            await self._env.sleep(wait_s)
        # From here on a caller must not join this load: it may read before what that caller lacks.
        self._running, self._next = self._next, None
        self._begun_s = self._env.clock.monotonic()
        await self._load()


def _fetch_failure(task: asyncio.Task[None]) -> None:
    """Fetch a failure whose callers may all have been cancelled, so that it is not reported."""
    if not task.cancelled():
        task.exception()
