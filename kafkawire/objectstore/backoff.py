"""Exponential backoff with jitter and an upper bound. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

FIRST_S = 0.5
"""The first delay, as in Kafka's remote log manager (task.retry.backoff.ms)."""
MAX_DOUBLINGS = 16
"""Maximum number of doublings, beyond any bound in use."""


def wait_s(failures: int, at_most_s: float, jitter: float) -> float:
    """Return the delay after `failures` consecutive failures. `jitter` is uniform in [0, 1) and
    reduces the delay by up to half, so that clients that failed together do not retry together."""
    whole = FIRST_S * 2.0 ** min(max(0, failures - 1), MAX_DOUBLINGS)
    return min(at_most_s, whole) * (1 - jitter / 2)


def waits_s(attempts: int, at_most_s: float, jitter: Callable[[], float]) -> Iterator[float]:
    """Yield the delay before each attempt after the first, for this number of attempts."""
    for failures in range(1, attempts):
        yield wait_s(failures, at_most_s, jitter())
