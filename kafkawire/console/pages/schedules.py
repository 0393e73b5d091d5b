"""Schedule topics, and one of them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.schedules import describe_waiting
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import MAX_PAGE, read_number, text_param


class SchedulePages:
    """The page of schedule topics."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [Route("/schedules", self.show_schedules)]

    async def show_schedules(self, request: Request) -> Response:
        """Serve all schedule topics, or one with its partitions."""
        topic = text_param(request, "topic")
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        known = await self._frame.read_known(request)
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_waiting(cluster, own, topic, page)
        )
        return self._frame.page(request, "schedules.html", known, found=found, topic=topic)
