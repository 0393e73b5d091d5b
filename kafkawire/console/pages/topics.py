"""The list of topics, and one topic with the map of its offsets."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.topics import SORTS, describe_topic, list_topics
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import (
    INT32,
    choice_param,
    number_param,
    page_number,
    text_param,
)


class TopicPages:
    """Pages below /topics, without their records."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/topics", self.show_topics),
            Route("/topics/{topic}", self.show_topic),
        ]

    async def show_topics(self, request: Request) -> Response:
        """Serve the list of topics: a filter, an order, a page."""
        text, sort = text_param(request, "q"), choice_param(request, "sort", SORTS, "name")
        internal = text_param(request, "internal") == "1"
        page = page_number(request)
        known = await self._frame.read_known(request)
        found = list_topics(known, text, sort, page, internal)
        return self._frame.page(
            request, "topics.html", known, "_topics.html",
            found=found, q=text, sort=sort, sorts=SORTS, internal=internal,
        )  # fmt: skip

    async def show_topic(self, request: Request) -> Response:
        """Serve one topic with the map of its offsets."""
        name = request.path_params["topic"]
        first = number_param(request, "first", 0, 0, INT32)
        known = await self._frame.read_known(request)
        found = await self._frame.ask(
            request,
            lambda cluster: describe_topic(cluster, self._frame.viewer(request).own, name, first),
        )
        readers = [] if known.snapshot is None else known.snapshot.readers.get(name, [])
        flags: Mapping[int, Mapping[str, int]] = {}
        if known.snapshot is not None:
            flags = known.snapshot.flags(name)
        return self._frame.page(
            request, "topic.html", known, found=found, readers=readers, flags=flags
        )
