"""The monitoring pages: /metrics for Prometheus, /health for supervisors.

A minimal HTTP/1.1: a GET without a body is answered, and the connection closed. Request heads and
connections are bounded, and slow clients are disconnected. `server.metrics` and `server.health`
build the pages; `server.listener` has the sockets.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, cast

from kafkawire.server.health import health

if TYPE_CHECKING:
    from kafkawire.server.monitored import MonitoredServer

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
"""Maximum request head; a monitor's has a few hundred bytes."""
CONNECTIONS_MAX = 32
"""Maximum number of connections; a monitor uses one at a time."""
PATIENCE_S = 10.0
"""Time limit from the connection to the last byte of the response, like Prometheus's timeout."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"

Page = tuple[str, str, bytes]  # status line's end, content type, body


class PageProtocol(asyncio.Protocol):
    """One monitor's connection."""

    def __init__(self, server: MonitoredServer, open_ones: set[PageProtocol]) -> None:
        self._server = server
        self._open = open_ones
        self._head = bytearray()
        self._answering = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, if the limit allows it."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._open) >= CONNECTIONS_MAX:
            self.close()
            return
        self._open.add(self)
        self._timer = self._server.broker.env.call_later(PATIENCE_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._open.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Collect the head; respond when it is complete. Further data is ignored."""
        if self._answering:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._answering = True
            self._server.broker.env.spawn(self._answer(bytes(self._head)), "metrics page")
        elif len(self._head) > HEAD_BYTES_MAX:
            self._send(("431 Request Header Fields Too Large", TEXT_TYPE, b""), True)

    async def _answer(self, head: bytes) -> None:
        method, path = request_of(head)
        try:
            page = await self._page(method, path)
        except Exception:  # report an error instead of not responding
            logger.exception("rendering page %s failed, answered with status 500", path)
            page = (
                "500 Internal Server Error",
                TEXT_TYPE,
                b"the page failed: see the log\n",
            )
        self._send(page, method != "HEAD")

    async def _page(self, method: str, path: str) -> Page:
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT_TYPE, b"only GET is answered\n"
        if path == "/metrics":
            return "200 OK", METRICS_TYPE, b"".join([part async for part in self._metrics()])
        if path == "/health":
            well, facts = health(self._server)
            status = "200 OK" if well else "503 Service Unavailable"
            return status, JSON_TYPE, json.dumps(facts).encode() + b"\n"
        return "404 Not Found", TEXT_TYPE, b"there are /metrics and /health\n"

    async def _metrics(self) -> AsyncIterator[bytes]:
        """Return the page, family by family: a thousand series take 5 ms, and other clients are
        served in between."""
        env = self._server.broker.env
        render = await env.offload.submit("files", _renderer)
        for part in render(self._server):
            yield part
            await env.slices.pause()

    def _send(self, page: Page, with_body: bool) -> None:
        if self._transport is None:
            return
        status, kind, body = page
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()


def request_of(head: bytes) -> tuple[str, str]:
    """Return (method, path without its query) of a request head; empty strings if it is
    malformed."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].split("?", 1)[0]


def _renderer() -> Callable[[MonitoredServer], Iterator[bytes]]:
    """Return the renderer, imported at the first scrape to keep unmonitored brokers small."""
    from kafkawire.server.metrics.render import render

    return render
