"""Users that log in with each request (`Authorization: Basic`): the broker's SASL users."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from anyio import to_thread

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import LoginRefused
from kafkawire.client.security import ClientSecurity
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.sessions import FailureLimit, security_of
from kafkawire.console.web.viewer import Viewer

MAX_USERS = 50
"""Users with open connections; the one that was used least recently makes room."""
CHECK_S = 300.0
"""After this time the broker checks a password again: it may have been changed."""
MAX_LOG_INS = 4
"""Log-ins at the same time: each is a connection, and some work for the broker."""
MAX_HEADER = 1024
"""Characters of user and password together, encoded."""
WRONG_USER = "User or password is wrong"


@dataclass
class _Known:
    viewer: Viewer
    checked: float


class BasicUsers:
    """Opens and keeps a viewer for each user. A header that is known costs no log-in."""

    def __init__(
        self,
        options: ConsoleOptions,
        failures: FailureLimit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._failures = failures
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._log_ins = asyncio.Semaphore(MAX_LOG_INS)

    async def viewer(self, header: str, address: str) -> Viewer:
        """Return the viewer of an Authorization header from an address. LoginRefused; LoginFailed
        after too many wrong ones; other ClientErrors if the broker does not answer."""
        key = hashlib.blake2b(header.encode(), key=self._secret).digest()
        known = self._fresh(key)
        if known is not None:
            return known
        user, password = _parse(header)
        async with self._log_ins:
            known = self._fresh(key)  # another request of the same user was first
            if known is not None:
                return known
            self._failures.begin(address)
            try:
                security = await to_thread.run_sync(self._log_in, user, password)
            except LoginRefused:
                self._known.pop(key, None)
                raise LoginRefused(WRONG_USER) from None
            self._failures.succeed(address)
        found = self._known.get(key)
        if found is None:
            options = self._options
            found = _Known(Viewer(options.server, security, options.allow_changes), 0.0)
            self._known[key] = found
        found.checked = self._clock()
        while len(self._known) > MAX_USERS:
            _, old = self._known.popitem(last=False)
            old.viewer.pool.close()  # its producer ends by itself, after what waits
        return found.viewer

    def close(self) -> None:
        """Close all connections."""
        for known in self._known.values():
            known.viewer.close()
        self._known.clear()

    def _fresh(self, key: bytes) -> Viewer | None:
        known = self._known.get(key)
        if known is None or self._clock() - known.checked >= CHECK_S:
            return None
        self._known.move_to_end(key)
        return known.viewer

    def _log_in(self, user: str, password: str) -> ClientSecurity:
        """Return how the user logs in, when the broker has accepted it. LoginRefused."""
        security = security_of(self._options.security, user, password)
        Cluster(self._options.server, security=security).close()
        return security


def _parse(header: str) -> tuple[str, str]:
    """Return user and password. LoginRefused."""
    kind, _, encoded = header.partition(" ")
    try:
        if kind.lower() != "basic" or len(encoded) > MAX_HEADER:
            raise ValueError
        user, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise LoginRefused("Authorization must be Basic, with user and password") from None
    if not (colon and user and password) or "\0" in user + password:
        raise LoginRefused("Authorization must be Basic, with user and password")
    return user, password
