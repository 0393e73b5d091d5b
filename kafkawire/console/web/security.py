"""Checks of every request, and headers of every response, in one place.

A console on localhost is reached by any page in the same browser. Three things keep such a page
out: the Host header must be a name of the console (against DNS rebinding), requests that change
something must come from the console's own pages (Origin and Sec-Fetch-Site), and others may link to
pages but not read them. Records are written by strangers, so a page may load and run only what the
console serves as a file.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_URL_BYTES = 8 << 10
"""Path and query; the longest have the positions of 200 partitions."""
MAX_BODY_BYTES = 2 << 20
"""A form, or a record of 1 MB as text."""
SAFE = ("GET", "HEAD")
STARTS = ("http.response.start", "websocket.http.response.start")
OF_BROWSERS = (
    "origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"
)  # fmt: skip
"""Headers of requests that a browser sends, at least one of them, unless it is a plain GET."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer a browser sends "Origin: null" with the forms of its own pages.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class BodyTooLarge(Exception):
    """A request has more than MAX_BODY_BYTES."""


class RequestChecks:
    """ASGI middleware. `hosts`: the names by which the console is reached, in lower case."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in STARTS:
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/static/"):  # no data, and checked by its ETag
                    headers["cache-control"] = "no-cache"
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refuse(scope)
        if refused is not None:
            status, sentence = refused
            response: Response = PlainTextResponse(f"{sentence}\n", status)
            if scope["path"].startswith("/api/"):
                response = JSONResponse({"error": sentence}, status)
            await response(scope, receive, send_with_headers)
            return
        bounded = _bound_body(receive) if scope["type"] == "http" else receive
        await self._app(scope, bounded, send_with_headers)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and sentence for a request that is refused."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or host_name(host) not in self._hosts:
            return 421, "The console is not served under this host name."
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > MAX_URL_BYTES:
            return 414, f"The URL has more than {MAX_URL_BYTES} bytes."
        if scope["path"].startswith("/api/") and not any(name in headers for name in OF_BROWSERS):
            # A program: browsers send Origin with each POST and each WebSocket, so that a page of
            # another site cannot do this; without a cookie it would have no user's rights either.
            return _refuse_length(headers)
        site = headers.get("sec-fetch-site", "same-origin")
        # A WebSocket is opened by GET, but is not read-only, and no policy of browsers guards it.
        if scope["type"] == "http" and scope["method"] in SAFE:
            # A link from elsewhere opens a page; scripts from elsewhere read nothing.
            opens = headers.get("sec-fetch-mode", "navigate") == "navigate"
            if site not in ("same-origin", "none") and not opens:
                return 403, "Pages of other origins may not read the console."
            return None
        origin = headers.get("origin") or headers.get("referer") or ""
        scheme = str(scope["scheme"]).replace("ws", "http", 1)
        if site != "same-origin" or not _same_origin(origin, scheme, host):
            return 403, "Only the console's own pages may change something."
        return _refuse_length(headers)


def _refuse_length(headers: Headers) -> tuple[int, str] | None:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length) > MAX_BODY_BYTES:
        return 413, f"The request has more than {MAX_BODY_BYTES} bytes."
    return None


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case; "" if it is invalid."""
    try:
        found = urlsplit(f"//{host}")
        _ = found.port  # ValueError
    except ValueError:
        return ""
    if found.path or found.query or found.fragment or found.username is not None:
        return ""
    return (found.hostname or "").lower()


def _same_origin(origin: str, scheme: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return (found.scheme, found.netloc.lower()) == (scheme, host.lower())


def _bound_body(receive: Receive) -> Receive:
    """Return `receive` that fails after MAX_BODY_BYTES, of a body without a length."""
    left = MAX_BODY_BYTES

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise BodyTooLarge(f"The request has more than {MAX_BODY_BYTES} bytes")
        return message

    return receive_bounded
