"""The overview: the health of the cluster in one sentence, what is wrong, and plots."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from kafkawire.client.errors import ClientError
from kafkawire.console.views.decoding import visible
from kafkawire.console.views.storage import describe_storage
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.live import repeat
from kafkawire.console.web.queries import client_of


class OverviewPages:
    """The first page, the stream that keeps it up to date, and the health on top of all pages."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/", self.show_overview),
            Route("/events/overview", self.show_overview_events),
            Route("/samples", self.show_samples),
            Route("/health", self.show_health),
        ]

    async def show_overview(self, request: Request) -> Response:
        """Serve the health of the cluster in one sentence, and what is wrong."""
        known = await self._frame.read_known(request)
        own, stored = self._frame.viewer(request).own, None
        if not known.failure:
            # The health is shown, too, if this cannot be read.
            with suppress(ClientError):
                stored = await self._frame.ask(
                    request, lambda cluster: describe_storage(cluster, own)
                )
        return self._frame.page(request, "overview.html", known, stored=stored)

    async def show_overview_events(self, request: Request) -> Response:
        """Stream the changing part of the overview."""
        client = client_of(request)
        self._frame.viewer(request)  # without a session there is no stream
        self._frame.streams.check(client)

        async def render() -> str:
            known = await self._frame.read_known(request)
            return self._frame.render("_overview.html", known)

        return StreamingResponse(
            repeat(self._frame.streams, client, render), media_type="text/event-stream"
        )

    async def show_samples(self, request: Request) -> Response:
        """Serve the points of the plots: seconds since 1970, and what Sample has."""
        samples = (await self._frame.read_known(request)).samples
        return JSONResponse(
            {
                "at": [each.at_ms / 1000 for each in samples],
                "rate": [round(each.rate, 1) for each in samples],
                "sent": [each.sent for each in samples],
                "p99": [each.p99_ms for each in samples],
                "lag": [each.lag for each in samples],
            }
        )

    async def show_health(self, request: Request) -> Response:
        """Serve the health on top of every page, and the failure of a broker that is gone."""
        known = await self._frame.read_known(request)
        health = self._frame.health(known)
        return JSONResponse(
            {
                "state": health.state,
                "brief": visible(health.brief),
                "failure": visible(known.failure),
            }
        )
