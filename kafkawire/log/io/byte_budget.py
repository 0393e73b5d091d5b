"""A limit on the bytes in flight: readers above it wait, and are served in order."""

from __future__ import annotations

import asyncio
from collections import deque


class InFlight:
    """A limit on bytes that are being read or not yet handed over. A read above it runs alone."""

    __slots__ = ("_bound_bytes", "_free_bytes", "_queue")

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._free_bytes = bound_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> None:
        """Return when so many bytes may be read."""
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
            if waiter.done() and not waiter.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        """Release bytes that have been handed over."""
        self._free_bytes += size_bytes
        while self._queue:
            size_bytes, waiter = self._queue[0]
            if size_bytes > self._free_bytes and self._free_bytes < self._bound_bytes:
                return
            self._queue.popleft()
            if not waiter.done():
                self._free_bytes -= size_bytes
                waiter.set_result(None)
