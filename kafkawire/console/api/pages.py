"""The routes below /api: users, checks of parameters, errors as JSON, the list of operations."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from kafkawire.client.errors import BrokerError, ClientError, LoginRefused
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.api.declared import ApiOperation, openapi
from kafkawire.console.api.records import RecordApi
from kafkawire.console.api.sockets import RecordSockets
from kafkawire.console.api.topics import SubjectApi
from kafkawire.console.api.users import BasicUsers
from kafkawire.console.views.actions import Outdated
from kafkawire.console.views.plans import ChangeRefused, NotAllowed
from kafkawire.console.views.produce import ProducerBusy
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import WrongInput
from kafkawire.console.web.security import BodyTooLarge
from kafkawire.console.web.sessions import NotLoggedIn

FAILURES = (
    ClientError, WrongInput, HTTPException, BodyTooLarge, NotLoggedIn, NotAllowed, ChangeRefused,
    Outdated,
)  # fmt: skip
STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.UNKNOWN_MEMBER_ID: 409,  # a group that is reset has members
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_GROUP_ID: 400,
    ErrorCode.INVALID_PARTITIONS: 400,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_RECORD: 400,
    ErrorCode.INVALID_TIMESTAMP: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.POLICY_VIOLATION: 400,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
}
"""Statuses of the broker's errors; of others: 502."""


class ApiPages:
    """All operations of the API."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame
        self._users = BasicUsers(frame.options)
        frame.close_with(self._users.close)
        self._sockets = RecordSockets(frame)
        self._operations = [
            *RecordApi(frame, status_of).operations(),  # first: routes are tried in their order
            *SubjectApi(frame).operations(),
            self._sockets.operation(),
            ApiOperation(
                "GET", "/api/openapi.json", "describeApi", "This document", self.show_openapi,
                answers={200: ("OpenAPI 3.1", {"type": "object"})},
            ),
        ]  # fmt: skip

    def routes(self) -> list[BaseRoute]:
        """Return the routes, with one for each path that is not declared."""
        by_path: dict[str, dict[str, ApiOperation]] = {}
        for each in self._operations:
            if not each.socket:
                by_path.setdefault(each.path, {})[each.method] = each
        every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return [
            Route("/api", self.show_operations),
            WebSocketRoute(self._sockets.operation().path, self.open_socket),
            *(Route(path, self._endpoint(each), methods=every) for path, each in by_path.items()),
            Route("/api/{rest:path}", self._endpoint({}), methods=every),
        ]

    async def show_operations(self, request: Request) -> Response:
        """Serve the page with the list of operations."""
        return self._frame.page(
            request, "api.html", await self._frame.read_known(request), operations=self._operations
        )

    async def show_openapi(self, request: Request) -> Response:
        """Serve the OpenAPI document."""
        return JSONResponse(openapi(self._operations))

    async def open_socket(self, socket: WebSocket) -> None:
        """Open a WebSocket, or refuse it with a status."""
        try:
            await self._log_in(socket)
            check_params(socket, self._sockets.operation())
            await self._sockets.serve_socket(socket)
        except FAILURES as failure:
            await socket.send_denial_response(answer_failure(failure, "GET"))

    def _endpoint(self, by_method: dict[str, ApiOperation]) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            operation = by_method.get(request.method)
            try:
                if not by_method:
                    raise HTTPException(404, "There is no such operation")
                if operation is None or operation.handler is None:
                    allow = {"allow": ", ".join(by_method)}
                    raise HTTPException(405, "This path does not have the method", allow)
                await self._log_in(request)
                check_params(request, operation)
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if operation.body and kind not in operation.body:
                    allowed = " or ".join(operation.body)
                    raise HTTPException(415, f"The Content-Type must be {allowed}")
                return await operation.handler(request)
            except FAILURES as failure:
                return answer_failure(failure, request.method)

        return answer

    async def _log_in(self, connection: HTTPConnection) -> None:
        """Open the viewer of a request with a user; others have that of the pages."""
        header = connection.headers.get("authorization")
        if header is not None:
            connection.state.viewer = await self._users.viewer(header)


def check_params(connection: HTTPConnection, operation: ApiOperation) -> None:
    """Raise WrongInput for a parameter that an operation does not have, or has twice."""
    allowed = [each.name for each in operation.params]
    for name, value in connection.query_params.multi_items():
        if name not in allowed:
            names = ", ".join(allowed)
            raise WrongInput(name[:100], value, f"one of {names}" if names else "left out")
        if len(connection.query_params.getlist(name)) > 1:
            raise WrongInput(name, value, "given once")


def status_of(code: int) -> int:
    """Return the status for an error of the broker."""
    return STATUSES.get(ErrorCode(code), 502) if code in set(ErrorCode) else 502


def answer_failure(failure: Exception, method: str) -> Response:
    """Return the answer to a failure: one sentence."""
    headers: dict[str, str] = {}
    status, sentence = 502, str(failure)
    if isinstance(failure, HTTPException):
        status, sentence, headers = failure.status_code, failure.detail, dict(failure.headers or {})
    elif isinstance(failure, WrongInput):
        status = 400
    elif isinstance(failure, BodyTooLarge):
        status, sentence = 413, "The request is too large"
    elif isinstance(failure, LoginRefused | NotLoggedIn):
        sentence = sentence or "Log in with user and password of the broker"
        status, headers = 401, {"www-authenticate": 'Basic realm="kafkawire", charset="UTF-8"'}
    elif isinstance(failure, NotAllowed):
        status = 403
    elif isinstance(failure, ChangeRefused | Outdated):
        status = getattr(failure, "status", 409)
    elif isinstance(failure, ProducerBusy):
        status, headers = 503, {"retry-after": "1"}
    elif isinstance(failure, BrokerError):
        status = status_of(failure.code)
        if status == 403 and method == "GET":  # what a user may not see does not exist
            status, sentence = 404, "There is no such topic or group"
    return JSONResponse({"error": f"{sentence.rstrip('.')}."}, status, headers)
