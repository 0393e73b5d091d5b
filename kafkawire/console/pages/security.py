"""Users, access rules and quotas."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.security import KINDS, describe_security
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import MAX_PAGE, WrongInput, read_number, text_param


class SecurityPages:
    """The page of users, access rules and quotas."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [Route("/security", self.show_security)]

    async def show_security(self, request: Request) -> Response:
        """Serve users, rules and quotas: of a user, of a resource, or all."""
        given = {name: text_param(request, name) for name in ("who", "kind", "what")}
        page = read_number("page", text_param(request, "page") or "1", 1, MAX_PAGE)
        if given["kind"] not in ("", *KINDS):
            raise WrongInput("kind", given["kind"], "one of " + ", ".join(KINDS))
        known = await self._frame.read_known(request)
        found = await self._frame.ask(
            request, lambda cluster: describe_security(cluster, **given, page=page)
        )
        return self._frame.page(
            request, "security.html", known, found=found, given=given, kinds=KINDS
        )
