"""The keys of an issuer of tokens: read from a file or an https URL, cached, refreshed.

A token whose key is not known makes the keys be read again, at most once in MIN_INTERVAL_S whatever
clients send. When they cannot be read, the ones read before stay, with a log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from kafkawire.security.sasl.tokens import Key, KeyRows, parse_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""Size of a key set: a hundred keys with certificates take less."""
MIN_INTERVAL_S = 10.0
"""Time between two attempts to read the keys, Kafka's longest delay between retries."""
TIMEOUT_S = 10.0
"""For connecting and for each read: a log-in that waits has 30 s."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Read(Protocol):
    """Reads the key set from its source, in a thread: each key takes a millisecond to import."""

    def __call__(self) -> Awaitable[KeyRows]: ...


class KeySource:
    """Finds keys by id. `refresh_s`: how long keys are used before they are read again."""

    def __init__(self, where: str, read: Read, now: Callable[[], float], refresh_s: float) -> None:
        self._where = where
        self._read = read
        self._now = now
        self._refresh_s = refresh_s
        self._keys: dict[str | None, Key] = {}
        self._read_at: float | None = None  # the last success
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()

    async def find(self, kid: str | None) -> Key | None:
        """Return a key. Without an id: the only key, if there is one."""
        now = self._now()
        old = self._read_at is None or now - self._read_at >= self._refresh_s
        if old or self._get(kid) is None:
            await self._refresh(now)
        return self._get(kid)

    def _get(self, kid: str | None) -> Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refresh(self, asked_at: float) -> None:
        async with self._reading:
            tried = self._tried_at
            if tried is not None and (tried >= asked_at or self._now() - tried < MIN_INTERVAL_S):
                return
            self._tried_at = self._now()
            try:
                rows = await self._read()
            except (OSError, ValueError) as wrong:
                logger.error(
                    "the keys of the token issuer cannot be read from %s (%s): log-ins with "
                    "OAUTHBEARER use the %d keys read before; the next attempt is in %d s",
                    self._where, wrong, len(self._keys), MIN_INTERVAL_S,
                )  # fmt: skip
                return
            self._keys = dict(rows)
            self._read_at = self._tried_at


def check_source(text: str) -> str:
    """Return the scheme of the location of a key set: https, http (loopback only) or file. Raises
    ValueError with one sentence."""
    parts = urlsplit(text)
    if parts.scheme == "https" and parts.hostname:
        return "https"
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return "http"
    if parts.scheme == "file" or text.startswith("/"):
        return "file"
    raise ValueError(
        "it must be an https:// URL, a file:// URL, the absolute path of a file, or an http:// URL "
        "of this machine's loopback address"
    )


def read_keys(text: str) -> KeyRows:
    """Read the keys from their location; waits. Raises OSError or ValueError."""
    return parse_keys(read_source(text))


def read_source(text: str) -> bytes:
    """Read a key set from its location; waits. Raises OSError or ValueError."""
    if check_source(text) == "file":
        path = text if text.startswith("/") else urlsplit(text).path
        with open(path, "rb") as file:
            found = file.read(MAX_BYTES + 1)
    else:
        found = _download(text)
    if len(found) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return found


def _download(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """Refuse redirects: the location is a setting, checked before it is used."""

        def redirect_request(self, *_: object) -> None:
            return None

    try:
        with build_opener(NoRedirects).open(url, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(MAX_BYTES + 1)
            return found
    except HTTPException as wrong:
        raise OSError(f"no answer of HTTP ({type(wrong).__name__})") from None
