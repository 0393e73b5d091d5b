"""The frame that all pages share: who reads, threads for functions that block, and rendering."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kafkawire.client.cluster import Cluster
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.console.views.health import Health, judge
from kafkawire.console.views.snapshot import Known
from kafkawire.console.web.live import Streams
from kafkawire.console.web.rendering import environment
from kafkawire.console.web.viewer import Viewer

T = TypeVar("T")

MAX_THREADS = 16
"""Pages that are made at the same time; most of them wait for nothing."""


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console is started. `server`: see Cluster; `hosts`: names by which it is reached;
    `allow_changes`: whether functions that change something may run."""

    server: str
    hosts: Collection[str]
    security: ClientSecurity = NO_SECURITY
    allow_changes: bool = False


class PageFrame:
    """Shared parts of all pages of one cluster. `stopping`: see Streams."""

    def __init__(self, options: ConsoleOptions, stopping: Callable[[], bool]) -> None:
        self.options = options
        self.streams = Streams(stopping)
        self._viewer = Viewer(options.server, options.security, options.allow_changes)
        self._templates = environment()
        self._threads = CapacityLimiter(MAX_THREADS)
        self._judged: tuple[Known | None, Health | None] = None, None

    def viewer(self, request: Request) -> Viewer:
        """Return whose connections answer a request."""
        return self._viewer

    async def read_known(self, request: Request) -> Known:
        """Return the newest facts about the cluster, as the user of a request may see them."""
        read = self.viewer(request).snapshots.read
        return await to_thread.run_sync(read, limiter=self._threads)

    async def ask(self, request: Request, ask: Callable[[Cluster], T]) -> T:
        """Run a function of `views` in a thread. ClientError."""
        pool = self.viewer(request).pool

        def run() -> T:
            with pool.lend() as cluster:
                return ask(cluster)

        return await to_thread.run_sync(run, limiter=self._threads)

    def page(
        self, request: Request, name: str, known: Known, part: str = "", **values: Any
    ) -> Response:
        """Return a page, or its part for a request of htmx that replaces one."""
        partial = part and request.headers.get("hx-request-type") == "partial"
        return HTMLResponse(
            self.render(part if partial else name, known, path=request.url.path, **values),
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
        """Return a template with the values that every template may use."""
        return self._templates.get_template(name).render(
            known=known,
            snapshot=None if known is None else known.snapshot,
            health=None if known is None else self.health(known),
            server=self.options.server,
            allow_changes=self.options.allow_changes,
            **values,
        )

    def error(self, request: Request, status: int, sentence: str) -> Response:
        """Return a page with one sentence."""
        path = request.url.path
        text = self.render("error.html", None, path=path, status=status, sentence=sentence)
        return HTMLResponse(text, status)

    def close(self) -> None:
        """Close all connections."""
        self._viewer.close()
