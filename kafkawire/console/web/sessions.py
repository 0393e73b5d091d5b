"""Sessions of users: their connections, cookies, signed tokens, and log-ins at a bounded rate.

Without `--login` there is one session for all, which cannot be reached from other sites: every
POST needs its token, and a page of another origin cannot read one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from kafkawire.client.errors import LoginRefused
from kafkawire.client.security import ClientSecurity
from kafkawire.console.web.viewer import Viewer

SESSION_S, IDLE_S = 8 * 3600, 3600
"""The longest life of a session, and how long it lasts without a request of its user."""
MAX_SESSIONS = 50
"""Sessions at the same time; one more ends the one that was used least recently."""
IDLE_CLUSTERS = 2
"""Connections to the cluster that a session without requests keeps."""
PLAN_S = 600
"""How long a plan can be applied; a plan of yesterday should be read again."""
MAX_USED = 1000
"""Changes of one session in PLAN_S."""
MAX_FAILURES, FAILURES_S = 5, 60
"""Failed log-ins of one address in this time; then it waits."""
MAX_ADDRESSES = 10_000
"""Addresses whose failures are counted; the oldest is forgotten."""
MAX_NAME = 1000
"""Characters of a user name and of a password."""
DEFAULT_MECHANISM = "SCRAM-SHA-512"
"""Unless the console logs in with another one: it does not show the broker the password."""
WRONG = "The user or the password is wrong."
Clock = Callable[[], float]


class NotLoggedIn(Exception):
    """A request has no session, or it has ended."""


class LoginFailed(Exception):
    """A log-in was refused; the text is one sentence. `status`: of the answer."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class WrongToken(Exception):
    """A token is missing, of another session, used, or too old; the text is one sentence."""


class UserSession:
    """A user with connections, and a secret that signs the tokens of their forms. `user`: "" if
    there is no log-in."""

    def __init__(self, viewer: Viewer, user: str, clock: Clock) -> None:
        self.viewer = viewer
        self.user = user
        self.created = self.used = clock()
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._spent: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def form_token(self) -> str:
        """Return the token that every form of this session has."""
        return self._sign(b"form")

    def check_form(self, token: str) -> None:
        """Raise WrongToken unless a form came from a page of this session."""
        if not hmac.compare_digest(token.encode(), self.form_token.encode()):
            raise WrongToken("The form is not of this session: open its page again")

    def seal(self, content: Mapping[str, Any]) -> str:
        """Return a token with JSON that only this session can use, once, within PLAN_S."""
        stamped = {**content, "until": self._clock() + PLAN_S, "nonce": secrets.token_hex(16)}
        data = base64.urlsafe_b64encode(json.dumps(stamped).encode())
        return f"{data.decode()}.{self._sign(b'plan' + data)}"

    def unseal(self, token: str) -> dict[str, Any]:
        """Return the content of a token, which cannot be used again. WrongToken."""
        data, _, mark = token.partition(".")
        if not hmac.compare_digest(mark.encode(), self._sign(b"plan" + data.encode()).encode()):
            raise WrongToken("The plan is not of this session: make it again")
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(data))
        now, until = self._clock(), found.pop("until")
        with self._lock:
            self._spent = {nonce: end for nonce, end in self._spent.items() if end > now}
            if until <= now:
                raise WrongToken("The plan is too old: make it again")
            if found["nonce"] in self._spent:
                raise WrongToken("The plan was applied already: make it again")
            if len(self._spent) >= MAX_USED:
                raise WrongToken(f"The session made {MAX_USED} changes in a short time: wait")
            self._spent[found.pop("nonce")] = until
        return found

    def _sign(self, data: bytes) -> str:
        return hmac.digest(self._secret, data, "sha256").hex()

    def is_over(self, now: float) -> bool:
        """Return whether the session has ended at a time."""
        return now >= self.created + SESSION_S or now >= self.used + IDLE_S


class FailureLimit:
    """At most MAX_FAILURES failed log-ins of an address in FAILURES_S, to pages and by programs. An
    attempt counts when it begins, so that many at the same time are bounded, too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: OrderedDict[str, list[float]] = OrderedDict()

    def begin(self, address: str) -> None:
        """Count an attempt. LoginFailed, and nothing is counted, if the address has to wait."""
        network, now = _network(address), self._clock()
        with self._lock:
            found = [at for at in self._times.pop(network, []) if at > now - FAILURES_S]
            self._times[network] = found
            if len(self._times) > MAX_ADDRESSES:
                self._times.popitem(last=False)
            if len(found) >= MAX_FAILURES:
                raise LoginFailed("Too many log-ins failed: wait a minute.", 429)
            found.append(now)

    def succeed(self, address: str) -> None:
        """Do not count the last attempt of an address."""
        with self._lock:
            if found := self._times.get(_network(address)):
                found.pop()


class Sessions:
    """The sessions of a console. `security`: how the broker is reached; `login`: whether users log
    in, or share one session under the name in `security`; `secure`: whether browsers use TLS."""

    def __init__(
        self,
        server: str,
        security: ClientSecurity,
        may_change: bool,
        *,
        login: bool = False,
        secure: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.login = login
        # Browsers accept this prefix only for cookies of one host that are sent over TLS.
        self.cookie = "__Host-kafkawire" if secure else "kafkawire"
        self._secure = secure
        self._server = server
        self._security = security
        self._may_change = may_change
        self._clock = clock
        self.failures = FailureLimit(clock)
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, UserSession] = OrderedDict()
        self._shared: UserSession | None = None
        if not login:
            viewer = Viewer(server, security, may_change)
            self._shared = UserSession(viewer, security.user, clock)

    def find(self, request: HTTPConnection) -> UserSession:
        """Return the session of a request. NotLoggedIn."""
        if self._shared is not None:
            return self._shared
        with self._lock:
            self._end_expired()
            key = _key(request.cookies.get(self.cookie, ""))
            session = self._found.get(key)
            if session is None:
                raise NotLoggedIn
            if _is_of_user(request):
                session.used = self._clock()
                self._found.move_to_end(key)
            return session

    def log_in(self, user: str, password: str, address: str) -> str:
        """Log in at the broker, and return the ID of a new session. It blocks. LoginFailed for a
        wrong password or too many of them, ClientError if the broker does not answer."""
        self.failures.begin(address)
        security = security_of(self._security, user, password)
        valid = all(0 < len(text) <= MAX_NAME and "\0" not in text for text in (user, password))
        if not valid:
            raise LoginFailed(WRONG, 403)
        viewer = Viewer(self._server, security, self._may_change, IDLE_CLUSTERS)
        try:
            with viewer.pool.lend():
                pass
        except LoginRefused:
            viewer.close()
            # Neither whether the user exists, nor what the broker says about it.
            raise LoginFailed(WRONG, 403) from None
        self.failures.succeed(address)
        identity = secrets.token_urlsafe(32)
        with self._lock:
            self._end_expired()
            while len(self._found) >= MAX_SESSIONS:
                self._found.popitem(last=False)[1].viewer.close()
            self._found[_key(identity)] = UserSession(viewer, user, self._clock)
        return identity

    def end(self, request: Request) -> None:
        """End the session of a request, if it has one."""
        with self._lock:
            session = self._found.pop(_key(request.cookies.get(self.cookie, "")), None)
        if session is not None:
            session.viewer.close()

    def set_cookie(self, response: Response, identity: str) -> None:
        """Send the ID of a session to a browser; "": remove it."""
        response.set_cookie(
            self.cookie, identity, max_age=SESSION_S if identity else 0, path="/",
            secure=self._secure, httponly=True, samesite="strict",
        )  # fmt: skip

    def _end_expired(self) -> None:
        now = self._clock()
        for key in [key for key, each in self._found.items() if each.is_over(now)]:
            self._found.pop(key).viewer.close()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            found, self._found = [*self._found.values()], OrderedDict()
        for session in (*found, *filter(None, [self._shared])):
            session.viewer.close()


def security_of(base: ClientSecurity, user: str, password: str) -> ClientSecurity:
    """Return how a user logs in at the broker."""
    mechanism = base.mechanism or DEFAULT_MECHANISM
    return replace(base, mechanism=mechanism, user=user, password=password)


def _key(identity: str) -> bytes:
    """Return what a session is stored under: the time of a look-up says nothing about the ID."""
    return hashlib.sha256(identity.encode()).digest()


def _is_of_user(request: HTTPConnection) -> bool:
    """Return whether a user made a request, and not an open page by itself: streams and plots."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return False
    mode = request.headers.get("sec-fetch-mode", "navigate")
    return mode == "navigate" or "hx-request" in request.headers


def _network(address: str) -> str:
    """Return an address, or the /64 network of IPv6, in which one user has all addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
