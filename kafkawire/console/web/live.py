"""Streams of server-sent events: a part of a page, sent again while the page is open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException

from kafkawire.console.web.sessions import NotLoggedIn

CHECKS, CHECK_S = 10, 0.2
"""How often a stream checks between two parts whether the server is stopping, and how long it waits
each time: a part is sent every two seconds, for as long as a snapshot is fresh."""
MAX_STREAMS, MAX_STREAMS_OF_CLIENT = 100, 12
"""Open streams of all clients, and of one address. A browser has six connections to a host."""


class Streams:
    """Counts the open streams. `stopping`: whether the server is to stop, which ends all."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.stopping = stopping
        self._open: Counter[str] = Counter()

    @contextmanager
    def open(self, client: str) -> Iterator[None]:
        """Count a stream of a client for a `with` block."""
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def full(self, client: str) -> bool:
        """Return whether a bound on open streams is reached."""
        return self._open.total() >= MAX_STREAMS or self._open[client] >= MAX_STREAMS_OF_CLIENT

    def check(self, client: str) -> None:
        """Raise HTTPException if a bound on open streams is reached."""
        if self.full(client):
            raise HTTPException(503, "Too many streams are open: close one.", {"retry-after": "10"})


def event(text: str, name: str = "") -> str:
    """Return one event with a text of any number of lines."""
    head = f"event: {name}\n" if name else ""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return head + "".join(f"data: {line}\n" for line in lines) + "\n"


async def repeat(
    streams: Streams,
    client: str,
    render: Callable[[], Awaitable[str]],
    check_s: float = CHECK_S,
    checks: int = CHECKS,
) -> AsyncIterator[str]:
    """Yield what `render` returns as an event when it differs from the last one, else a comment,
    which shows a client that has gone. The server ends it with the connection; it ends itself if
    there are too many."""
    if streams.full(client):
        return
    with streams.open(client):
        last = ""
        while not streams.stopping():
            try:
                text = await render()
            except NotLoggedIn:  # the session ended, as by a log-out
                return
            yield event(text) if text != last else ":\n\n"
            last = text
            for _ in range(checks):
                if not streams.stopping():
                    await asyncio.sleep(check_s)
