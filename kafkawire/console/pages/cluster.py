"""The cluster, one broker of it, and settings."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.cluster import (
    TOPIC_RESOURCE,
    describe_broker,
    describe_cluster,
    filter_settings,
    read_settings,
)
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import INT32, MAX_PAGE, read_number, text_param


class ClusterPages:
    """Pages of the cluster, its brokers, and settings."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/cluster", self.show_cluster),
            Route("/brokers/{node}", self.show_broker),
            Route("/topics/{topic}/settings", self.show_topic_settings),
        ]

    async def show_cluster(self, request: Request) -> Response:
        """Serve the brokers, moves, features and the quorum."""
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        known, snapshot = await self._frame.read_snapshot(request)
        found = await self._frame.ask(
            request, lambda cluster: describe_cluster(cluster, snapshot, page)
        )
        return self._frame.page(request, "cluster.html", known, found=found)

    async def show_broker(self, request: Request) -> Response:
        """Serve one broker."""
        node = read_number("broker", request.path_params["node"], 0, INT32)
        text, every = text_param(request, "q"), text_param(request, "all") == "1"
        known, snapshot = await self._frame.read_snapshot(request)
        if all(each.node != node for each in snapshot.nodes):
            raise HTTPException(404)
        found = await self._frame.ask(
            request, lambda cluster: describe_broker(cluster, snapshot, node, text, every)
        )
        return self._frame.page(request, "broker.html", known, found=found, q=text, every=every)

    async def show_topic_settings(self, request: Request) -> Response:
        """Serve the settings of a topic, with source and default."""
        topic = request.path_params["topic"]
        text, every = text_param(request, "q"), text_param(request, "all") == "1"
        known = await self._frame.read_known(request)
        rows = await self._frame.ask(
            request, lambda cluster: read_settings(cluster.first, TOPIC_RESOURCE, topic)
        )
        return self._frame.page(
            request, "settings.html", known, settings=filter_settings(rows, text, every),
            topic=topic, q=text, every=every,
        )  # fmt: skip
