"""The routes below /api: users, checks of parameters, errors as JSON, the list of operations."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from kafkawire.client.errors import LoginRefused
from kafkawire.console.api.declared import ApiOperation, openapi
from kafkawire.console.api.records import RecordApi
from kafkawire.console.api.sockets import RecordSockets
from kafkawire.console.api.topics import SubjectApi
from kafkawire.console.api.users import BasicUsers
from kafkawire.console.web import failures
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import WrongInput, client_of
from kafkawire.console.web.sessions import LoginFailed, NotLoggedIn

FAILURES: tuple[type[Exception], ...] = (
    *failures.FAILURES, HTTPException, NotLoggedIn, LoginFailed
)  # fmt: skip


class ApiPages:
    """All operations of the API."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame
        self._users = BasicUsers(frame.options, frame.sessions.failures)
        frame.close_with(self._users.close)
        self._sockets = RecordSockets(frame)
        self._operations = [
            *RecordApi(frame).operations(),  # first: routes are tried in their order
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
            connection.state.viewer = await self._users.viewer(header, client_of(connection))


def check_params(connection: HTTPConnection, operation: ApiOperation) -> None:
    """Raise WrongInput for a parameter that an operation does not have, or has twice."""
    allowed = [each.name for each in operation.params]
    for name, value in connection.query_params.multi_items():
        if name not in allowed:
            names = ", ".join(allowed)
            raise WrongInput(name[:100], value, f"one of {names}" if names else "left out")
        if len(connection.query_params.getlist(name)) > 1:
            raise WrongInput(name, value, "given once")


def answer_failure(failure: Exception, method: str) -> Response:
    """Return the answer to a failure: one sentence."""
    headers: dict[str, str] = {}
    if isinstance(failure, HTTPException):
        status, sentence, headers = failure.status_code, failure.detail, dict(failure.headers or {})
    elif isinstance(failure, LoginFailed):
        status, sentence = failure.status, str(failure)
    elif isinstance(failure, LoginRefused | NotLoggedIn):
        status, sentence = 401, str(failure) or "Log in with user and password of the broker"
        headers = {"www-authenticate": 'Basic realm="kafkawire", charset="UTF-8"'}
    else:
        status, sentence = failures.explain_failure(failure, hide=method == "GET")
        if status == 503:
            headers = {"retry-after": "1"}
    return JSONResponse({"error": f"{sentence.rstrip('.')}."}, status, headers)
