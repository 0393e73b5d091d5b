"""The web application: the routes of all pages, and the answers to failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.api.pages import ApiPages
from kafkawire.console.pages.actions import ActionPages
from kafkawire.console.pages.cluster import ClusterPages
from kafkawire.console.pages.groups import GroupPages
from kafkawire.console.pages.log_in import LoginPages
from kafkawire.console.pages.overview import OverviewPages
from kafkawire.console.pages.pipeline import PipelinePages
from kafkawire.console.pages.records import RecordPages
from kafkawire.console.pages.schedules import SchedulePages
from kafkawire.console.pages.security import SecurityPages
from kafkawire.console.pages.tier import TierPages
from kafkawire.console.pages.topics import TopicPages
from kafkawire.console.pages.transactions import TransactionPages
from kafkawire.console.web.frame import ConsoleOptions, PageFrame
from kafkawire.console.web.queries import WrongInput
from kafkawire.console.web.security import BodyTooLarge, RequestChecks
from kafkawire.console.web.sessions import NotLoggedIn, WrongToken

PAGES = (
    OverviewPages,
    TopicPages,
    RecordPages,
    GroupPages,
    TierPages,
    TransactionPages,
    ClusterPages,
    SecurityPages,
    SchedulePages,
    PipelinePages,
    LoginPages,
    ActionPages,
    ApiPages,
)
WRONG_REQUESTS: Mapping[type[Exception], int] = {
    WrongInput: 400,
    BodyTooLarge: 413,
    WrongToken: 403,
}
"""Failures whose text is a sentence for the reader, and the status of the answer."""
UNKNOWN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_GROUP_ID,
    # What a user may not see does not exist.
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)


def application(options: ConsoleOptions, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the ASGI application of a console. `stopping`: see Streams."""
    frame = PageFrame(options, stopping)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        frame.close()

    async def answer_failure(request: Request, failure: Exception) -> Response:
        if isinstance(failure, BrokerError) and failure.code in UNKNOWN:
            return frame.error(request, 404, "There is no such topic or group.")
        return frame.error(request, 502, f"{failure}.")

    async def answer_wrong_request(request: Request, wrong: Exception) -> Response:
        return frame.error(request, WRONG_REQUESTS[type(wrong)], f"{wrong}.")

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
            ClientError: answer_failure,
            **dict.fromkeys(WRONG_REQUESTS, answer_wrong_request),
            HTTPException: answer_refusal,
            NotLoggedIn: answer_not_logged_in,
            Exception: answer_defect,
        },
        lifespan=lifespan,
    )
    # Around all of it: pages of errors have the same headers.
    return RequestChecks(served, options.hosts)
