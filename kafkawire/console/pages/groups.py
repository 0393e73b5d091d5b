"""The list of groups, and one group with its lag and what stops it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.groups import GROUP_SORTS, describe_group_lag, list_groups_page
from kafkawire.console.views.locks import describe_locks
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import (
    WrongInput,
    choice_param,
    page_number,
    text_param,
)


class GroupPages:
    """Pages of groups. A group may have any name, such as "..", so it is no part of a path."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/groups", self.show_groups),
            Route("/group", self.show_group),
        ]

    async def show_groups(self, request: Request) -> Response:
        """Serve the list of groups."""
        text, sort = text_param(request, "q"), choice_param(request, "sort", GROUP_SORTS, "lag")
        page = page_number(request)
        known = await self._frame.read_known(request)
        found = list_groups_page(known, text, sort, page)
        return self._frame.page(
            request,
            "groups.html",
            known,
            "_groups.html",
            found=found,
            q=text,
            sort=sort,
            sorts=GROUP_SORTS,
        )

    async def show_group(self, request: Request) -> Response:
        """Serve one group: its lag, its members, and what stops it."""
        name = text_param(request, "name")
        if not name:
            raise WrongInput("name", "", "the name of a group")
        known = await self._frame.read_known(request)
        found = await self._frame.ask(request, lambda cluster: describe_group_lag(cluster, name))
        group, own = found.lag.description, self._frame.viewer(request).own
        locks = await self._frame.ask(request, lambda cluster: describe_locks(cluster, own, group))
        return self._frame.page(request, "group.html", known, found=found, group=group, locks=locks)
