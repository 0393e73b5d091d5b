"""Log-in, log-out, and the rights of the user."""

from __future__ import annotations

import logging
import re

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from kafkawire.console.views.rights import describe_rights
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import client_of, read_form, text_param
from kafkawire.console.web.sessions import LoginFailed
from kafkawire.log_lines import shorten_for_log

MAX_LOGINS = 4
"""Log-ins at the same time: each waits for the broker, and the pages of others do not."""
OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
"""A path of the console: browsers take `//host` and `/\\host` as another site."""
logger = logging.getLogger(__name__)


class LoginPages:
    """Pages of a user."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame
        self._threads = CapacityLimiter(MAX_LOGINS)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/login", self.show_login, methods=["GET"]),
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            Route("/me", self.show_rights),
        ]

    async def show_login(self, request: Request) -> Response:
        """Serve the form of the log-in."""
        return self._form(request, text_param(request, "next"))

    def _form(
        self, request: Request, following: str, sentence: str = "", status: int = 200
    ) -> Response:
        if not self._frame.options.login:
            raise HTTPException(404)
        text = self._frame.render(
            "login.html", None, path=request.url.path, following=following, sentence=sentence
        )
        return HTMLResponse(text, status)

    async def log_in(self, request: Request) -> Response:
        """Begin a session under a new ID, and end the one that the browser has."""
        sessions, address = self._frame.sessions, client_of(request)
        if not sessions.login:
            raise HTTPException(404)
        form = await read_form(request)
        user, following = form.get("user", ""), form.get("next", "")
        try:
            identity = await to_thread.run_sync(
                lambda: sessions.log_in(user, form.get("password", ""), address),
                limiter=self._threads,
            )
        except LoginFailed as failed:
            # Not the name: it may be a password in the wrong field.
            logger.warning("A log-in from %s was refused: %s", address, failed)
            return self._form(request, following, str(failed), failed.status)
        sessions.end(request)
        logger.info("%s logged in from %s", shorten_for_log(user), address)
        found = following if OWN_PATH.fullmatch(following) else "/"
        response = RedirectResponse(found, 303)
        sessions.set_cookie(response, identity)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        sessions = self._frame.sessions
        session, form = sessions.find(request), await read_form(request)
        session.check_form(form.get("csrf", ""))
        sessions.end(request)
        logger.info("%s logged out from %s", shorten_for_log(session.user), client_of(request))
        response = RedirectResponse("/login" if sessions.login else "/", 303)
        sessions.set_cookie(response, "")
        return response

    async def show_rights(self, request: Request) -> Response:
        """Serve what the user may do."""
        user = self._frame.sessions.find(request).user
        known = await self._frame.read_known(request)
        found = await self._frame.ask(request, lambda cluster: describe_rights(cluster, user))
        return self._frame.page(request, "me.html", known, found=found, user=user)
