"""Records of a topic, from a position on."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.decoding import DECODERS
from kafkawire.console.views.records import read_records
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import WrongInput, positions_text, record_query, text_param


class RecordPages:
    """The page of records of each topic."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/topics/{topic}/records", self.show_records),
        ]

    async def show_records(self, request: Request) -> Response:
        """Serve records of a topic from a position on."""
        name = request.path_params["topic"]
        query = record_query(name, request)
        how = text_param(request, "decoder") or "auto"
        if how not in DECODERS:
            raise WrongInput("decoder", how, "one of " + ", ".join(DECODERS))
        known = await self._frame.read_known(request)
        found = await self._frame.ask(request, lambda cluster: read_records(cluster, query))
        given = {
            key: text_param(request, key) for key in ("where", "at", "partition", "key", "text")
        }
        return self._frame.page(
            request, "records.html", known, "_records.html",
            topic=name, found=found, query=query, decoder=how, decoders=DECODERS, given=given,
            more=positions_text(found.more),
        )  # fmt: skip
