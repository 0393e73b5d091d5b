"""The cluster as a whole: brokers, settings, tier, transactions, schedules, security, pipelines."""

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
from kafkawire.console.views.pipeline import describe_tables
from kafkawire.console.views.schedules import describe_waiting
from kafkawire.console.views.security import KINDS, describe_security
from kafkawire.console.views.tier import describe_tier
from kafkawire.console.views.transactions import describe_open
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import INT32, choice_param, page_number, read_number, text_param


class ClusterPages:
    """Pages of the cluster, each of one function of `views`."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/cluster", self.show_cluster),
            Route("/brokers/{node}", self.show_broker),
            Route("/topics/{topic}/settings", self.show_topic_settings),
            Route("/tier", self.show_tier),
            Route("/transactions", self.show_transactions),
            Route("/schedules", self.show_schedules),
            Route("/security", self.show_security),
            Route("/pipeline", self.show_pipeline),
        ]

    async def show_cluster(self, request: Request) -> Response:
        """Serve the brokers, moves, features and the quorum."""
        page = page_number(request)
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
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_broker(cluster, own, snapshot, node, text, every)
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

    async def show_tier(self, request: Request) -> Response:
        """Serve the remote tier, of all topics or one."""
        topic, every = text_param(request, "topic"), text_param(request, "all") == "1"
        page = page_number(request)
        known = await self._frame.read_known(request)
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_tier(cluster, own, topic, every, page)
        )
        return self._frame.page(request, "tier.html", known, found=found, topic=topic, every=every)

    async def show_transactions(self, request: Request) -> Response:
        """Serve the open transactions, and what they hold back."""
        page = page_number(request)
        known, snapshot = await self._frame.read_snapshot(request)
        found = await self._frame.ask(
            request, lambda cluster: describe_open(cluster, snapshot, page)
        )
        return self._frame.page(request, "transactions.html", known, found=found)

    async def show_schedules(self, request: Request) -> Response:
        """Serve all schedule topics, or one with its partitions."""
        topic, page = text_param(request, "topic"), page_number(request)
        known = await self._frame.read_known(request)
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_waiting(cluster, own, topic, page)
        )
        return self._frame.page(request, "schedules.html", known, found=found, topic=topic)

    async def show_security(self, request: Request) -> Response:
        """Serve users, rules and quotas: of a user, of a resource, or all."""
        given = {
            "who": text_param(request, "who"),
            "kind": choice_param(request, "kind", KINDS),
            "what": text_param(request, "what"),
        }
        page = page_number(request)
        known = await self._frame.read_known(request)
        found = await self._frame.ask(
            request, lambda cluster: describe_security(cluster, **given, page=page)
        )
        return self._frame.page(
            request, "security.html", known, found=found, given=given, kinds=KINDS
        )

    async def show_pipeline(self, request: Request) -> Response:
        """Serve the tables of pipelines that the console was started with."""
        known = await self._frame.read_known(request)
        urls = self._frame.options.pipelines
        tables = await self._frame.block(lambda: describe_tables(urls, known.snapshot))
        return self._frame.page(request, "pipeline.html", known, tables=tables)
