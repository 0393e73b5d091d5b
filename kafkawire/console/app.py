"""The web application: the routes of all pages, and the answers to failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kafkawire.console.api.pages import ApiPages
from kafkawire.console.pages.actions import ActionPages
from kafkawire.console.pages.cluster import ClusterPages
from kafkawire.console.pages.groups import GroupPages
from kafkawire.console.pages.log_in import LoginPages
from kafkawire.console.pages.overview import OverviewPages
from kafkawire.console.pages.records import RecordPages
from kafkawire.console.pages.topics import TopicPages
from kafkawire.console.web.failures import FAILURES, explain_failure
from kafkawire.console.web.frame import ConsoleOptions, PageFrame
from kafkawire.console.web.security import RequestChecks
from kafkawire.console.web.sessions import NotLoggedIn

PAGES = (
    ApiPages,  # first: routes are tried in their order, and programs send the most requests
    OverviewPages,
    TopicPages,
    RecordPages,
    GroupPages,
    ClusterPages,
    LoginPages,
    ActionPages,
)


def application(options: ConsoleOptions, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the ASGI application of a console. `stopping`: see Streams."""
    frame = PageFrame(options, stopping)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        frame.close()

    async def answer_failure(request: Request, failure: Exception) -> Response:
        return frame.error(request, *explain_failure(failure, hide=True))

    async def answer_refusal(request: Request, refused: Exception) -> Response:
        status = refused.status_code if isinstance(refused, HTTPException) else 500
        sentence = refused.detail if isinstance(refused, HTTPException) else str(refused)
        if status == 404:
            sentence = "There is no such page."
        return frame.error(request, status, sentence)

    async def answer_not_logged_in(request: Request, _: Exception) -> Response:
        return frame.ask_to_log_in(request)

    async def answer_defect(request: Request, _: Exception) -> Response:
        return frame.error(request, 500, "The console failed; its log has the reason.")

    static = StaticFiles(directory=str(files("kafkawire.console") / "static"))
    served = Starlette(
        routes=[
            *(route for each in PAGES for route in each(frame).routes()),
            Mount("/static", static),
        ],
        exception_handlers={
            **dict.fromkeys(FAILURES, answer_failure),
            HTTPException: answer_refusal,
            NotLoggedIn: answer_not_logged_in,
            Exception: answer_defect,
        },
        lifespan=lifespan,
    )
    # Around all of it: pages of errors have the same headers.
    return RequestChecks(served, options.hosts)
