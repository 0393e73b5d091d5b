"""The cluster, and one broker of it."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.cluster import describe_broker, describe_cluster
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import INT32, MAX_PAGE, read_number, text_param


class ClusterPages:
    """Pages of the cluster and its brokers."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/cluster", self.show_cluster),
            Route("/brokers/{node}", self.show_broker),
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
