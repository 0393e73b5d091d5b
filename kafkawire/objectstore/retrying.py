"""A wrapper around the port that retries failed calls, for callers that can block.

The broker schedules its own retries, because it has other work meanwhile; commands use the same
policy through kafkawire.tiering.store.retrying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kafkawire.objectstore.backoff import Attempts, retry
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import ConditionFailed
from kafkawire.objectstore.port import Listed, Objects, Stored, pages

T = TypeVar("T")

ATTEMPTS = 6
"""Attempts per request, its body included: about 15 seconds."""
MAX_WAIT_S = 20.0


class RetryingObjects:
    """Objects of `inner`, with up to ATTEMPTS attempts per call while that may help.

    `sleep` waits some seconds; `jitter` is uniform in [0, 1).
    """

    def __init__(
        self, inner: Objects, sleep: Callable[[float], object], jitter: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._sleep = sleep
        self._jitter = jitter

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        return self._repeat(lambda: self._inner.get(key, start, length, call))

    def head(self, key: str, call: Call) -> Stored:
        return self._repeat(lambda: self._inner.head(key, call))

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return a page of the objects with this prefix, by key."""
        return self._repeat(lambda: self._inner.list(prefix, after, limit, call))

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        """Yield all objects with this prefix, by key; each page is retried separately."""
        return pages(self, prefix, call)

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        """Store a small object atomically, if the condition is met. A failed condition is ignored
        if an earlier attempt stored the object and only its response was lost."""
        attempts = 0

        def attempt() -> Stored:
            nonlocal attempts
            attempts += 1
            return self._inner.put(key, data, if_match, if_absent, call)

        try:
            return self._repeat(attempt)
        except ConditionFailed:
            if attempts == 1:
                raise
            found, etag = self.get(key, 0, None, call)
            if found != data:
                raise
            return Stored(etag, len(found))

    def delete(self, keys: Sequence[str], call: Call) -> int:
        return self._repeat(lambda: self._inner.delete(keys, call))

    def _repeat(self, request: Callable[[], T]) -> T:
        return retry(request, Attempts(self._jitter, MAX_WAIT_S, ATTEMPTS), self._sleep)
