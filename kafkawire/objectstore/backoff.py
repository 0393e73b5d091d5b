"""How long to wait after a failure: twice as long each time, within a bound, with jitter. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

FIRST_S = 0.5
"""The first wait: what Kafka's remote log manager begins with (task.retry.backoff.ms)."""
MAX_DOUBLINGS = 16
"""Beyond any bound; keeps the power small."""


def wait_s(failures: int, at_most_s: float, jitter: float) -> float:
    """Seconds to wait after so many failures in a row; `jitter` is uniform in [0, 1) and takes up
    to half of the wait away, so that what failed together is not tried again together."""
    whole = FIRST_S * 2.0 ** min(max(0, failures - 1), MAX_DOUBLINGS)
    return min(at_most_s, whole) * (1 - jitter / 2)


def waits_s(attempts: int, at_most_s: float, jitter: Callable[[], float]) -> Iterator[float]:
    """Yield the seconds to wait before each attempt after the first, of so many in all."""
    for failures in range(1, attempts):
        yield wait_s(failures, at_most_s, jitter())
