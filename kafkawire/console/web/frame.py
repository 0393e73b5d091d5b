"""The frame that all pages share: who reads, threads for functions that block, and rendering."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kafkawire.client.cluster import Cluster
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.console.views.actions import Actor
from kafkawire.console.views.health import Health, judge
from kafkawire.console.views.snapshot import ClusterSnapshot, Known
from kafkawire.console.web.live import Streams
from kafkawire.console.web.queries import client_of
from kafkawire.console.web.rendering import environment, link
from kafkawire.console.web.sessions import NotLoggedIn, Sessions
from kafkawire.console.web.viewer import Viewer

T = TypeVar("T")

MAX_THREADS = 16
"""Pages that are made at the same time; most of them wait for nothing."""


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console is started. `server`: see Cluster; `hosts`: names by which it is reached;
    `allow_changes`: whether functions that change something may run; `login`: whether users log in
    with the broker's users; `certificate` and `key`: PEM files for TLS
    with browsers; `clock`: seconds, for the ages of sessions; `pipelines`: URLs of tables."""

    server: str
    hosts: Collection[str]
    security: ClientSecurity = NO_SECURITY
    allow_changes: bool = False
    login: bool = False
    certificate: str = ""
    key: str = ""
    clock: Callable[[], float] = time.monotonic
    pipelines: Sequence[str] = ()


class PageFrame:
    """Shared parts of all pages of one cluster. `stopping`: see Streams."""

    def __init__(self, options: ConsoleOptions, stopping: Callable[[], bool]) -> None:
        self.options = options
        self.streams = Streams(stopping)
        self.sessions = Sessions(
            options.server, options.security, options.allow_changes,
            login=options.login, secure=bool(options.certificate), clock=options.clock,
        )  # fmt: skip
        self._templates = environment()
        self._closing = [self.sessions.close]
        self._threads = CapacityLimiter(MAX_THREADS)
        self._judged: tuple[Known | None, Health | None] = None, None

    def viewer(self, request: HTTPConnection) -> Viewer:
        """Return whose connections answer a request: those of a user who logged in with it, else
        those of its session. NotLoggedIn."""
        return getattr(request.state, "viewer", None) or self.sessions.find(request).viewer

    def close_with(self, close: Callable[[], None]) -> None:
        """Call `close` when the connections are closed."""
        self._closing.append(close)

    async def block(self, run: Callable[[], T]) -> T:
        """Run a function that blocks in a thread."""
        return await to_thread.run_sync(run, limiter=self._threads)

    async def read_known(self, request: Request) -> Known:
        """Return the newest facts about the cluster, as the user of a request may see them."""
        return await self.block(self.viewer(request).snapshots.read)

    async def read_snapshot(self, request: Request) -> tuple[Known, ClusterSnapshot]:
        """Return what `read_known` does, with its snapshot. ClientError if there is none yet."""
        known = await self.read_known(request)
        return known, known.require()

    def actor(self, request: Request) -> Actor:
        """Return who changes something by a request. NotLoggedIn."""
        viewer = self.viewer(request)
        return Actor(viewer.user, client_of(request), viewer.may_change)

    async def ask(self, request: HTTPConnection, ask: Callable[[Cluster], T]) -> T:
        """Run a function of `views` in a thread. ClientError."""
        pool = self.viewer(request).pool

        def lend() -> T:
            with pool.lend() as cluster:
                return ask(cluster)

        return await self.block(lend)

    def page(
        self, request: Request, name: str, known: Known, part: str = "", **values: Any
    ) -> Response:
        """Return a page, or its part for a request of htmx that replaces one."""
        partial = part and request.headers.get("hx-request-type") == "partial"
        return HTMLResponse(
            self.render(
                part if partial else name,
                known,
                path=request.url.path,
                session=self.sessions.find(request),
                **values,
            ),
            headers={"vary": "HX-Request-Type"},
        )

    def health(self, known: Known) -> Health:
        """Return the health of the cluster; it is judged once for the pages of one snapshot."""
        judged, health = self._judged
        if judged is not known or health is None:
            health = judge(known)
            self._judged = known, health
        return health

    def render(self, name: str, known: Known | None, **values: Any) -> str:
        """Return a template with the values that every template may use. `session`: None before a
        log-in."""
        values.setdefault("session", None)
        return self._templates.get_template(name).render(
            known=known,
            snapshot=None if known is None else known.snapshot,
            health=None if known is None else self.health(known),
            server=self.options.server,
            allow_changes=self.options.allow_changes,
            login=self.options.login,
            **values,
        )

    def error(self, request: Request, status: int, sentence: str) -> Response:
        """Return a page with one sentence."""
        try:
            session = self.sessions.find(request)
        except NotLoggedIn:
            session = None
        text = self.render(
            "error.html", None,
            path=request.url.path, session=session, status=status, sentence=sentence,
        )  # fmt: skip
        return HTMLResponse(text, status)

    def ask_to_log_in(self, request: Request) -> Response:
        """Return the way from a page to the log-in and back, for others a sentence."""
        opens = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if request.method == "GET" and opens and "hx-request" not in request.headers:
            path, query = request.scope["raw_path"].decode("ascii"), request.url.query
            at = f"{path}?{query}" if query else path
            return RedirectResponse(link("login", next="" if at == "/" else at), 303)
        response = self.error(request, 401, "You are not logged in: open the page again.")
        response.headers["hx-redirect"] = link("login")
        return response

    def close(self) -> None:
        """Close all connections."""
        for close in self._closing:
            close()
