"""The monitoring pages: /metrics for Prometheus, /health for supervisors.

A minimal HTTP/1.1: a GET without a body is answered, and the connection closed. Request heads and
connections are bounded, and slow clients are disconnected: the first ones when others connect, so
that stalled connections do not keep a monitor from its page. With `metrics.token.file` /metrics is
for those who have a token; /health has the status for all, because a probe of Kubernetes has no
token, and the facts with one. `server.metrics` builds the page of metrics;
`server.listener` has the sockets.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from kafkawire.broker.read_only import WHY as WHY_READ_ONLY
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.log_lines import LineLimit

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.security.secret_files import TokenFile
    from kafkawire.server.monitored import MonitoredServer


logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
"""Maximum request head; a monitor's has a few hundred bytes."""
CONNECTIONS_MAX = 32
"""Maximum number of connections; a monitor uses one at a time. One more replaces another."""
PATIENCE_S = 10.0
"""Time limit from the connection to the last byte of the response, like Prometheus's timeout."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"

CHECK_FILE_S = 1.0
"""How often the file of tokens is checked for changes, while pages are read."""
REFUSED_BURST, REFUSED_PER_S = 20, 1.0
"""Log lines about refused monitors at once, and per second after that: they try again."""


class Page(NamedTuple):
    """A response. `status`: the end of the status line; `header`: one more line of the head."""

    status: str
    kind: str
    body: bytes
    header: str = ""


class PageTokens:
    """Checks the tokens of monitors against those of a file."""

    def __init__(self, env: Env, file: TokenFile) -> None:
        self._env = env
        self._file = file
        self._checking = SharedLoad(env, "check the file of tokens", self._reload, CHECK_FILE_S)
        self._lines = LineLimit(env.clock.monotonic, REFUSED_BURST, REFUSED_PER_S)

    async def accepts(self, token: bytes | None) -> bool:
        """Return whether a request has one of the tokens; None: it has none."""
        if token is None:
            return False
        await self._checking.recent()
        return self._file.accepts(token)

    async def _reload(self) -> None:
        await self._env.offload.submit("files", self._file.reload)

    def log_refusal(self, host: str, cause: str) -> None:
        """Log a refused monitor, at a bounded rate."""
        omitted = self._lines.admit()
        if omitted is not None:
            more = f" ({omitted} more since the last line)" if omitted else ""
            logger.warning("refused /metrics to a monitor at %s: %s%s", host, cause, more)


class PageProtocol(asyncio.Protocol):
    """One monitor's connection."""

    def __init__(
        self,
        server: MonitoredServer,
        open_ones: dict[PageProtocol, None],
        tokens: PageTokens | None = None,
    ) -> None:
        """`open_ones`: the open connections in the order in which they were opened; `tokens`: None
        if everyone who can connect may read all pages."""
        self._server = server
        self._open = open_ones
        self._tokens = tokens
        self._head = bytearray()
        self._answering = False
        self.host = ""
        self.rendering = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; with too many, close another one."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) else "local"
        if len(self._open) >= CONNECTIONS_MAX:
            stalled = _most_stalled(self._open)
            if stalled is None:
                self.close()
                return
            del self._open[stalled]
            stalled.close()
        self._open[self] = None
        self._timer = self._server.broker.env.call_later(PATIENCE_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._open.pop(self, None)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    @property
    def idle(self) -> bool:
        """Whether the request is not complete yet."""
        return not self._answering

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
            self._send(Page("431 Request Header Fields Too Large", TEXT_TYPE, b""), True)

    async def _answer(self, head: bytes) -> None:
        method, path = request_of(head)
        self.rendering = True
        try:
            page = await self._page(method, path, token_of(head))
        except Exception:  # report an error instead of not responding
            logger.exception("rendering page %s failed, answered with status 500", path)
            page = Page(
                "500 Internal Server Error",
                TEXT_TYPE,
                b"the page failed: see the log\n",
            )
        self.rendering = False
        self._send(page, method != "HEAD")

    async def _page(self, method: str, path: str, token: bytes | None) -> Page:
        if method not in ("GET", "HEAD"):
            return Page("405 Method Not Allowed", TEXT_TYPE, b"only GET is answered\n")
        if path not in ("/metrics", "/health"):
            return Page("404 Not Found", TEXT_TYPE, b"there are /metrics and /health\n")
        permitted = self._tokens is None or await self._tokens.accepts(token)
        if path == "/health":
            well, facts = health(self._server)
            status = "200 OK" if well else "503 Service Unavailable"
            shown = facts if permitted else {"status": facts["status"]}
            return Page(status, JSON_TYPE, json.dumps(shown).encode() + b"\n")
        if not permitted:
            return self._refuse(token)
        return Page("200 OK", METRICS_TYPE, b"".join([part async for part in self._metrics()]))

    def _refuse(self, token: bytes | None) -> Page:
        """Return the answer to a request without a right token, which is logged."""
        cause = "it has no token" if token is None else "its token is not in metrics.token.file"
        if self._transport is not None and self._tokens is not None:
            self._tokens.log_refusal(self.host, cause)
            audit = self._server.broker.security.audit
            audit.authentication_failed(self.host, "metrics.listener", "bearer", cause)
        challenge = 'WWW-Authenticate: Bearer realm="kafkawire"'
        if token is not None:
            challenge += ', error="invalid_token"'
        body = b"this page needs a token: Authorization: Bearer TOKEN\n"
        return Page("401 Unauthorized", TEXT_TYPE, body, f"{challenge}\r\n")

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
        head = (
            f"HTTP/1.1 {page.status}\r\nContent-Type: {page.kind}\r\n"
            f"Content-Length: {len(page.body)}\r\n{page.header}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (page.body if with_body else b""))
        self._transport.close()


def _most_stalled(open_ones: Iterable[PageProtocol]) -> PageProtocol | None:
    """Return the connection to close for a new one; None if all pages are being rendered. It is of
    the address with the most connections, without a complete request if there is one, and the
    oldest of these."""
    counts = Counter(each.host for each in open_ones)
    waiting = (each for each in open_ones if not each.rendering)
    return max(waiting, key=lambda each: (counts[each.host], each.idle), default=None)


def request_of(head: bytes) -> tuple[str, str]:
    """Return (method, path without its query) of a request head; empty strings if it is
    malformed."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].split("?", 1)[0]


async def open_tokens(env: Env, config: BrokerConfig) -> PageTokens | None:
    """Read the tokens of a broker; None if it has no file of them. Raises SecretFileError."""
    path = config.metrics_token_file.strip()
    if not path:
        return None
    from kafkawire.security.secret_files import TokenFile  # most brokers do without

    return PageTokens(env, await env.offload.submit("files", TokenFile, path))


def token_of(head: bytes) -> bytes | None:
    """Return the bearer token of a request head; None if it has none. One with several headers of
    that name has a wrong one."""
    found = [
        value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        if name.lower() == b"authorization"
    ]
    if not found:
        return None
    scheme, _, token = found[0].partition(b" ")
    return token.strip() if len(found) == 1 and scheme.lower() == b"bearer" else b""


def _renderer() -> Callable[[MonitoredServer], Iterator[bytes]]:
    """Return the renderer, imported at the first scrape to keep unmonitored brokers small."""
    from kafkawire.server.metrics.render import render

    return render


def health(server: MonitoredServer) -> tuple[bool, dict[str, object]]:
    """Return (healthy, the fields of the response). A degraded broker is healthy: without it no
    client would get what it does serve."""
    broker = server.broker
    commit_log = broker.log.commit_log
    check = server.metadata_check
    damage = check.damage if check is not None else ""
    refusal = commit_log.refusal.message if commit_log.refusal is not None else ""
    refusal = (
        "" if refusal == WHY_READ_ONLY else refusal
    )  # that is no reason to restart the process
    fenced = broker.tiering.fence.why if broker.tiering is not None else ""
    trouble = commit_log.failed or refusal or fenced or damage
    refused = broker.tiering.refused if broker.tiering is not None else ""
    facts: dict[str, object] = {
        "status": "ill" if trouble else "degraded" if refused else "ok",
        "cluster_id": broker.cluster_id,
        "node_id": broker.node_id,
        "listeners": {name: list(address) for name, address in broker.listeners.items()},
        "topics": len(broker.catalog.by_name),
        "read_only": broker.config.broker_read_only,
    }
    if broker.config.cluster_name:
        facts["cluster_name"] = broker.config.cluster_name
    if trouble or refused:
        facts["reason"] = trouble or refused
    return not trouble, facts
