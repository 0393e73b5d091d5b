"""/metrics and /health of all workers, at the address of metrics.listener.

The supervisor asks the workers at their own addresses, passes the monitor's token on to them, and
joins what they answer: each worker checks the token. Metrics include those of brokers of other
machines that run here; health does not, because it is that of this machine. With `metrics.tls` it
answers nothing, because it loads no certificates: monitors then ask the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkawire.supervisor.joined_pages import WorkerState, join_health, join_metrics, own_metrics
from kafkawire.supervisor.sockets import BoundSockets
from kafkawire.supervisor.worker import SupervisedWorker

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
"""Maximum request head; a monitor's has a few hundred bytes."""
CONNECTIONS_MAX = 32
"""Maximum number of connections; a monitor uses one at a time. One more is closed."""
PATIENCE_S = 10.0
"""Time limit of a request, like Prometheus's timeout."""
WORKER_S = 5.0
"""Time limit of one worker's answer, so that a hanging one does not hide the others."""
PAGE_BYTES_MAX = 64 << 20
"""Maximum page of a worker: a hundred thousand partitions have 30 MB."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to connect to a socket that is bound to all addresses."""


class JoinedReply(NamedTuple):
    """A response: the end of its status line, its type, its body, and one more line of its head."""

    status: str
    kind: str
    body: bytes
    header: str = ""


class Pages:
    """The server of the joined pages."""

    def __init__(
        self,
        workers: Sequence[SupervisedWorker],
        guests: Mapping[int, SupervisedWorker],
        sockets: BoundSockets,
    ) -> None:
        """`guests`: brokers of other machines that run here, by node id."""
        self._workers = workers
        self._guests = guests
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._open = 0

    async def open(self) -> None:
        """Answer monitors, if there are sockets for them."""
        for sock in self._sockets.metrics:
            server = await asyncio.start_server(self._serve, sock=sock, limit=HEAD_BYTES_MAX)
            self._servers.append(server)
            host, port = sock.getsockname()[:2]
            logger.info("metrics of all workers on http://%s:%d/metrics", host, port)

    async def close(self) -> None:
        """Stop answering."""
        for server in self._servers:
            server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(PATIENCE_S):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the monitor gets no answer, and asks again
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        method, path = (words[0], words[1].split("?", 1)[0]) if len(words) == 3 else ("", "")
        reply = await self._reply(method, path, _authorization(head))
        writer.write(
            f"HTTP/1.1 {reply.status}\r\nContent-Type: {reply.kind}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{reply.header}Connection: close\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(reply.body)
        await writer.drain()

    async def _reply(self, method: str, path: str, authorization: bytes) -> JoinedReply:
        if method not in ("GET", "HEAD"):
            return JoinedReply("405 Method Not Allowed", TEXT_TYPE, b"only GET is answered\n")
        if path not in ("/metrics", "/health"):
            return JoinedReply("404 Not Found", TEXT_TYPE, b"there are /metrics and /health\n")
        workers = [each for each in self._workers if not each.drained]
        if path == "/metrics":
            workers += self._guests.values()
        answers = await asyncio.gather(*(self._ask(each, path, authorization) for each in workers))
        found = {each.plan.node_id: at for each, at in zip(workers, answers, strict=True)}
        if path == "/health":
            well, body = join_health({n: a.body if a else None for n, a in found.items()})
            return JoinedReply("200 OK" if well else "503 Service Unavailable", JSON_TYPE, body)
        refused = next((a for a in found.values() if a and a.status.startswith("401")), None)
        if refused is not None:
            return refused
        pages = {n: a.body.decode() for n, a in found.items() if a and a.status.startswith("200")}
        states = [
            WorkerState(each.plan.node_id, each.ready, each.restarts.total, each.plan.after >= 0)
            for each in workers
        ]
        body = (own_metrics(states) + join_metrics(pages)).encode()
        return JoinedReply("200 OK", METRICS_TYPE, body)

    async def _ask(
        self, worker: SupervisedWorker, path: str, authorization: bytes
    ) -> JoinedReply | None:
        """Return a worker's page; None if it does not answer."""
        bound = self._sockets.workers.get(worker.plan.node_id)
        if bound is None or not worker.ready:
            return None
        host, port = bound.metrics[0].getsockname()[:2]
        with contextlib.suppress(TimeoutError, OSError, ValueError):
            async with asyncio.timeout(WORKER_S):
                reader, writer = await asyncio.open_connection(LOCAL.get(host, host), port)
                try:
                    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
                    writer.write(request + authorization + b"\r\n")
                    return _reply_of(await _read(reader))
                finally:
                    writer.close()
        return None


def _authorization(head: bytes) -> bytes:
    """Return the lines of a request head that have a token."""
    lines = head.split(b"\r\n")[1:]
    found = [line for line in lines if line.lower().startswith(b"authorization:")]
    return b"".join(line + b"\r\n" for line in found)


async def _read(reader: StreamReader) -> bytes:
    """Read to the end. Raises ValueError if that is too much."""
    parts = []
    size = 0
    while data := await reader.read(1 << 16):
        parts.append(data)
        size += len(data)
        if size > PAGE_BYTES_MAX:
            raise ValueError("the page is too large")
    return b"".join(parts)


def _reply_of(data: bytes) -> JoinedReply:
    """Parse a response of a worker. Raises ValueError."""
    head, separator, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    if not separator or not status.startswith("HTTP/1.1 "):
        raise ValueError("not a response")
    wanted = ("content-type", "www-authenticate")
    fields = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
        if name.lower() in wanted
    }
    challenge = fields.get("www-authenticate", "")
    header = f"WWW-Authenticate: {challenge}\r\n" if challenge else ""
    return JoinedReply(
        status.partition(" ")[2], fields.get("content-type", TEXT_TYPE), body, header
    )
