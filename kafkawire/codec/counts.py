"""Counters of the hot paths, plain integers that the metrics page reads.

A labelled counter of a metrics library costs more than a tenth of a request; adding to an
attribute costs nothing that can be measured. Nothing here is durable: all count since the start.
Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Bounds of the histograms of times, three to a factor of ten: from a write into the page cache
to a disk that hangs."""


class Histogram:
    """Histogram: number of values up to each of `bounds` and above the last one, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound as text, number of values up to it), cumulative as in Prometheus."""
        running = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            running += count
            found.append((bound, float(running)))
        return found


class Counts:
    """Counters of requests to one broker.

    `requests` by API key: those of hot handlers (`produces`, `fetches`, `heartbeats`) have separate
    integers. `connections_closed` by reason. `errors`: (API name, error code) -> number of answers,
    for Produce and Fetch per partition. `loop_lag_s` is the longest delay of the event loop since
    it was last read.
    """

    __slots__ = (
        "connections_closed",
        "connections_refused",
        "errors",
        "fetched_bytes",
        "fetches",
        "heartbeats",
        "loop_lag_s",
        "produces",
        "received_bytes",
        "requests",
    )

    def __init__(self) -> None:
        self.connections_closed: dict[str, int] = {}
        self.connections_refused = 0
        self.produces = 0
        self.fetches = 0
        self.heartbeats = 0
        self.received_bytes = 0
        self.fetched_bytes = 0
        self.loop_lag_s = 0.0
        self.requests: dict[int, int] = {}
        self.errors: dict[tuple[str, int], int] = {}

    def failed(self, api: str, code: int) -> None:
        """Count one error response."""
        key = api, code
        self.errors[key] = self.errors.get(key, 0) + 1
