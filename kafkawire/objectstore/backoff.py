"""Exponential backoff with jitter and an upper bound, and the repetition of requests. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from kafkawire.objectstore.errors import StoreError

T = TypeVar("T")

FIRST_S = 0.5
"""The first delay, as in Kafka's remote log manager (task.retry.backoff.ms)."""
MAX_DOUBLINGS = 16
"""Maximum number of doublings, beyond any bound in use."""


def wait_s(failures: int, at_most_s: float, jitter: float) -> float:
    """Return the delay after `failures` consecutive failures. `jitter` is uniform in [0, 1) and
    reduces the delay by up to half, so that clients that failed together do not retry together."""
    whole = FIRST_S * 2.0 ** min(max(0, failures - 1), MAX_DOUBLINGS)
    return min(at_most_s, whole) * (1 - jitter / 2)


class Attempts:
    """The attempts of one call: whether another one may help, and how long to wait before it.

    `jitter` is uniform in [0, 1); `limit`: the number of attempts, None: as many as it takes.
    `report` gets the first failure that may pass."""

    __slots__ = ("_failures", "_jitter", "_limit", "_max_wait_s", "_report")

    def __init__(
        self,
        jitter: Callable[[], float],
        max_wait_s: float,
        limit: int | None = None,
        report: Callable[[StoreError], object] = lambda failure: None,
    ) -> None:
        self._jitter = jitter
        self._max_wait_s = max_wait_s
        self._limit = limit
        self._report = report
        self._failures = 0

    def wait_after(self, failure: StoreError) -> float:
        """Count a failed attempt; return the delay before the next one, in seconds. Raises the
        failure if another attempt would not help or the limit is reached."""
        self._failures += 1
        if not failure.retryable or self._failures == self._limit:
            raise failure
        if self._failures == 1:
            self._report(failure)
        return wait_s(self._failures, self._max_wait_s, self._jitter())


def retry(request: Callable[[], T], attempts: Attempts, sleep: Callable[[float], object]) -> T:
    """Repeat a blocking request until it succeeds; return its result. Raises StoreError."""
    while True:
        try:
            return request()
        except StoreError as failure:
            delay_s = attempts.wait_after(failure)
        sleep(delay_s)


async def retry_async(
    request: Callable[[], Awaitable[T]],
    attempts: Attempts,
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """Repeat a request like `retry`, without blocking."""
    while True:
        try:
            return await request()
        except StoreError as failure:
            delay_s = attempts.wait_after(failure)
        await sleep(delay_s)
