"""Open transactions, and what they hold back."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.transactions import describe_open
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import MAX_PAGE, read_number, text_param


class TransactionPages:
    """The page of transactions."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [Route("/transactions", self.show_transactions)]

    async def show_transactions(self, request: Request) -> Response:
        """Serve the open transactions."""
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        known, snapshot = await self._frame.read_snapshot(request)
        found = await self._frame.ask(
            request, lambda cluster: describe_open(cluster, snapshot, page)
        )
        return self._frame.page(request, "transactions.html", known, found=found)
