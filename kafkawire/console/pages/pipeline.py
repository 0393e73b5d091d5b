"""Tables of pipelines."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.pipeline import describe_tables
from kafkawire.console.web.frame import PageFrame


class PipelinePages:
    """The page of the tables that the console was started with."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [Route("/pipeline", self.show_pipeline)]

    async def show_pipeline(self, request: Request) -> Response:
        """Serve the tables."""
        known = await self._frame.read_known(request)
        urls = self._frame.options.pipelines
        tables = await self._frame.block(lambda: describe_tables(urls, known.snapshot))
        return self._frame.page(request, "pipeline.html", known, tables=tables)
