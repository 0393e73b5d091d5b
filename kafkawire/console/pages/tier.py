"""The remote tier: its state, what is not uploaded and why, and its cost."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.tier import describe_tier
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import MAX_PAGE, read_number, text_param


class TierPages:
    """The page of the remote tier."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [Route("/tier", self.show_tier)]

    async def show_tier(self, request: Request) -> Response:
        """Serve the remote tier, of all topics or one."""
        topic, every = text_param(request, "topic"), text_param(request, "all") == "1"
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        known = await self._frame.read_known(request)
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_tier(cluster, own, topic, every, page)
        )
        return self._frame.page(request, "tier.html", known, found=found, topic=topic, every=every)
