"""How long to wait after a failure: twice as long each time, within a bound, with jitter. Pure."""

from __future__ import annotations

FIRST_S = 0.5
"""The first wait: what Kafka's remote log manager begins with (task.retry.backoff.ms)."""
MAX_DOUBLINGS = 16
"""Beyond any bound; keeps the power small."""


def wait_s(failures: int, at_most_s: float, jitter: float) -> float:
    """Seconds to wait after so many failures in a row; `jitter` is uniform in [0, 1) and takes up
    to half of the wait away, so that what failed together is not tried again together."""
    whole = FIRST_S * 2.0 ** min(max(0, failures - 1), MAX_DOUBLINGS)
    return min(at_most_s, whole) * (1 - jitter / 2)
