"""The web application: one function for each page.

A page is rendered whole, or, for htmx, only the part of it that the request replaces: both have the
same URL and work without JavaScript. Functions of `views` block, so they run in threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.live import Streams, repeat
from kafkawire.console.queries import (
    WrongInput,
    positions_text,
    read_number,
    record_query,
    text_param,
)
from kafkawire.console.rendering import environment
from kafkawire.console.security import BodyTooLarge, RequestChecks
from kafkawire.console.views.decoding import DECODERS
from kafkawire.console.views.groups import describe_group_lag, list_groups_page
from kafkawire.console.views.health import judge
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.pool import ClusterPool
from kafkawire.console.views.records import read_records
from kafkawire.console.views.snapshot import Known, SnapshotCache
from kafkawire.console.views.topics import SORTS, describe_topic, list_topics

T = TypeVar("T")

MAX_THREADS = 16
"""Pages that are made at the same time; most of them wait for nothing."""
MAX_PAGE = 1_000_000
UNKNOWN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_GROUP_ID,
    # What a user may not see does not exist.
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console is started. `server`: see Cluster; `hosts`: names by which it is reached;
    `allow_changes`: whether functions that change something may run."""

    server: str
    hosts: Collection[str]
    security: ClientSecurity = NO_SECURITY
    allow_changes: bool = False


class Console:
    """The pages of one cluster."""

    def __init__(self, options: ConsoleOptions, stopping: Callable[[], bool]) -> None:
        self.options = options
        self._pool = ClusterPool(options.server, options.security)
        self._own = OwnBroker()
        self._snapshots = SnapshotCache(self._pool, self._own)
        self._templates = environment()
        self._streams = Streams(stopping)
        self._threads = CapacityLimiter(MAX_THREADS)

    def application(self) -> ASGIApp:
        """Return the ASGI application."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            self._pool.close()

        static = StaticFiles(directory=str(files("kafkawire.console") / "static"))
        pages = Starlette(
            routes=[
                Route("/", self.show_overview),
                Route("/topics", self.show_topics),
                Route("/topics/{topic}", self.show_topic),
                Route("/topics/{topic}/records", self.show_records),
                Route("/groups", self.show_groups),
                # A group may have any name, such as "..", so it is no part of a path.
                Route("/group", self.show_group),
                Route("/events/overview", self.show_overview_events),
                Route("/samples", self.show_samples),
                Mount("/static", static),
            ],
            exception_handlers={
                ClientError: self._answer_failure,
                WrongInput: self._answer_wrong_input,
                HTTPException: self._answer_refusal,
                BodyTooLarge: self._answer_too_large,
                Exception: self._answer_defect,
            },
            lifespan=lifespan,
        )
        # Around all of it: pages of errors have the same headers.
        return RequestChecks(pages, self.options.hosts)

    async def show_overview(self, request: Request) -> Response:
        """Serve the health of the cluster in one sentence, and what is wrong."""
        known = await self._read_known()
        return self._page(request, "overview.html", known, **self._overview(known))

    async def show_overview_events(self, request: Request) -> Response:
        """Stream the changing part of the overview."""
        client = request.client.host if request.client is not None else ""
        if self._streams.full(client):
            raise HTTPException(503, "Too many pages are open: close one.")

        async def render() -> str:
            known = await self._read_known()
            return self._render("_overview.html", known, **self._overview(known))

        return StreamingResponse(
            repeat(self._streams, client, render), media_type="text/event-stream"
        )

    async def show_samples(self, request: Request) -> Response:
        """Serve the points of the plots: seconds since 1970, records per second, lag."""
        samples = (await self._read_known()).samples
        return JSONResponse(
            {
                "at": [each.at_ms / 1000 for each in samples],
                "rate": [round(each.rate, 1) for each in samples],
                "lag": [each.lag for each in samples],
            }
        )

    async def show_topics(self, request: Request) -> Response:
        """Serve the list of topics: a filter, an order, a page."""
        text, sort = text_param(request, "q"), text_param(request, "sort") or "name"
        internal = text_param(request, "internal") == "1"
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        if sort not in SORTS:
            raise WrongInput("sort", sort, "one of " + ", ".join(SORTS))
        known = await self._read_known()
        found = list_topics(known, text, sort, page, internal)
        return self._page(
            request, "topics.html", known, "_topics.html",
            found=found, q=text, sort=sort, internal=internal,
        )  # fmt: skip

    async def show_topic(self, request: Request) -> Response:
        """Serve one topic with the map of its offsets."""
        name = request.path_params["topic"]
        first = read_number("first", text_param(request, "first") or "0", 0, 2**31 - 1)
        known = await self._read_known()
        found = await self._ask(lambda cluster: describe_topic(cluster, self._own, name, first))
        readers = [] if known.snapshot is None else known.snapshot.readers.get(name, [])
        flags: Mapping[int, Mapping[str, int]] = {}
        if known.snapshot is not None:
            flags = known.snapshot.flags(name)
        return self._page(request, "topic.html", known, found=found, readers=readers, flags=flags)

    async def show_records(self, request: Request) -> Response:
        """Serve records of a topic from a position on."""
        name = request.path_params["topic"]
        query = record_query(name, request)
        how = text_param(request, "decoder") or "auto"
        if how not in DECODERS:
            raise WrongInput("decoder", how, "one of " + ", ".join(DECODERS))
        known = await self._read_known()
        found = await self._ask(lambda cluster: read_records(cluster, query))
        given = {
            key: text_param(request, key) for key in ("where", "at", "partition", "key", "text")
        }
        return self._page(
            request, "records.html", known, "_records.html",
            topic=name, found=found, query=query, decoder=how, decoders=DECODERS, given=given,
            more=positions_text(found.more),
        )  # fmt: skip

    async def show_groups(self, request: Request) -> Response:
        """Serve the list of groups."""
        text, sort = text_param(request, "q"), text_param(request, "sort") or "lag"
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        if sort not in ("lag", "name"):
            raise WrongInput("sort", sort, "lag or name")
        known = await self._read_known()
        found = list_groups_page(known, text, sort, page)
        return self._page(
            request, "groups.html", known, "_groups.html", found=found, q=text, sort=sort
        )

    async def show_group(self, request: Request) -> Response:
        """Serve one group: its lag, its members, and what stops it."""
        name = text_param(request, "name")
        if not name:
            raise WrongInput("name", "", "the name of a group")
        known = await self._read_known()
        found = await self._ask(lambda cluster: describe_group_lag(cluster, name))
        return self._page(request, "group.html", known, found=found, group=found.lag.description)

    async def _read_known(self) -> Known:
        return await to_thread.run_sync(self._snapshots.read, limiter=self._threads)

    async def _ask(self, ask: Callable[[Cluster], T]) -> T:
        """Run a function of `views` in a thread. ClientError."""

        def run() -> T:
            with self._pool.lend() as cluster:
                return ask(cluster)

        return await to_thread.run_sync(run, limiter=self._threads)

    def _overview(self, known: Known) -> dict[str, Any]:
        return {"health": judge(known)}

    def _page(
        self, request: Request, name: str, known: Known, part: str = "", **values: Any
    ) -> Response:
        """Return a page, or its part for a request of htmx that replaces one."""
        partial = part and request.headers.get("hx-request-type") == "partial"
        return HTMLResponse(
            self._render(part if partial else name, known, path=request.url.path, **values),
            headers={"vary": "HX-Request-Type"},
        )

    def _render(self, name: str, known: Known | None, **values: Any) -> str:
        template = self._templates.get_template(name)
        return template.render(
            known=known,
            snapshot=None if known is None else known.snapshot,
            server=self.options.server,
            allow_changes=self.options.allow_changes,
            **values,
        )

    def _error(self, request: Request, status: int, sentence: str) -> Response:
        text = self._render("error.html", None, path=request.url.path, sentence=sentence)
        return HTMLResponse(text, status)

    async def _answer_failure(self, request: Request, failure: Exception) -> Response:
        unknown = isinstance(failure, BrokerError) and failure.code in UNKNOWN
        if unknown:
            return self._error(request, 404, "There is no such topic or group.")
        return self._error(request, 502, f"{failure}.")

    async def _answer_wrong_input(self, request: Request, wrong: Exception) -> Response:
        return self._error(request, 400, f"{wrong}.")

    async def _answer_refusal(self, request: Request, refused: Exception) -> Response:
        status = refused.status_code if isinstance(refused, HTTPException) else 500
        sentence = refused.detail if isinstance(refused, HTTPException) else str(refused)
        if status == 404:
            sentence = "There is no such page."
        return self._error(request, status, sentence)

    async def _answer_too_large(self, request: Request, _: Exception) -> Response:
        return self._error(request, 413, "The request is too large.")

    async def _answer_defect(self, request: Request, _: Exception) -> Response:
        return self._error(request, 500, "The console failed; its log has the reason.")


def application(options: ConsoleOptions, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the ASGI application of a console. `stopping`: see Streams."""
    return Console(options, stopping).application()
