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
    integers. `connections_closed` by reason, `log_ins` by mechanism and result, `denials` by
    operation and type of resource. `redirects`: partitions of Fetches for which a client was sent
    to a broker of its rack, `replica_bytes`: of `fetched_bytes`, those of partitions that another
    broker leads. `errors`: (API name, error code) -> number of answers, for
    Produce and Fetch per partition. `loop_lag`: delays of the event loop. `latency` by API key
    (`took`).
    """

    __slots__ = (
        "connections_closed",
        "connections_refused",
        "denials",
        "errors",
        "fetched_bytes",
        "fetches",
        "heartbeats",
        "latency",
        "log_ins",
        "loop_lag",
        "produces",
        "received_bytes",
        "redirects",
        "replica_bytes",
        "requests",
    )

    def __init__(self) -> None:
        self.connections_closed: dict[str, int] = {}
        self.connections_refused = 0
        self.log_ins: dict[tuple[str, str], int] = {}
        self.denials: dict[tuple[str, str], int] = {}
        self.produces = 0
        self.fetches = 0
        self.heartbeats = 0
        self.received_bytes = 0
        self.fetched_bytes = 0
        self.redirects = 0
        self.replica_bytes = 0
        self.loop_lag = Histogram()
        self.latency: dict[int, Histogram] = {}
        self.requests: dict[int, int] = {}
        self.errors: dict[tuple[str, int], int] = {}

    def took(self, api_key: int, seconds: float) -> None:
        """Add the latency of a request."""
        found = self.latency.get(api_key)
        if found is None:
            found = self.latency[api_key] = Histogram()
        found.add(seconds)

    def logged_in(self, mechanism: str, result: str) -> None:
        """Count the end of a log-in."""
        key = mechanism, result
        self.log_ins[key] = self.log_ins.get(key, 0) + 1

    def count_denial(self, operation: str, resource_type: str) -> None:
        """Count a refusal by the authorizer."""
        key = operation, resource_type
        self.denials[key] = self.denials.get(key, 0) + 1

    def count_error(self, api: str, code: int) -> None:
        """Count one error response."""
        key = api, code
        self.errors[key] = self.errors.get(key, 0) + 1


MAX_TOPICS = 200
"""Topics with series of their own: 600 series, which Prometheus keeps for hours."""
MAX_COUNTED = 10_000
"""Topics that are counted separately until it is known whether they have traffic: a megabyte."""


class TopicTraffic:
    """Bytes and records appended to a topic, bytes of its batches answered to Fetches. Its
    partitions refer to it."""

    __slots__ = ("in_bytes", "in_records", "out_bytes")

    def __init__(self) -> None:
        self.in_bytes = 0
        self.in_records = 0
        self.out_bytes = 0

    def add(self, other: TopicTraffic) -> None:
        self.in_bytes += other.in_bytes
        self.in_records += other.in_records
        self.out_bytes += other.out_bytes

    @property
    def any(self) -> bool:
        """Whether something was counted."""
        return bool(self.in_bytes or self.out_bytes)


class Traffic:
    """Bytes and records of all topics of a broker.

    Counters of a metrics page must never decrease, and Prometheus must not get a series for each of
    a million topics. So the first MAX_TOPICS topics with traffic are reported by name from then on,
    all others together; a topic never changes from one to the other.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, TopicTraffic] = {}
        self._named: dict[str, TopicTraffic] = {}
        self._rest = TopicTraffic()
        self._full = False

    def counters_of_topic(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic."""
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= MAX_COUNTED:
                return self._rest
            found = self._by_topic[topic] = TopicTraffic()
        return found

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic: its series end, or stay counted among the others."""
        found = self._by_topic.pop(topic, None)
        if found is not None and self._named.pop(topic, None) is None:
            self._rest.add(found)

    def report(self) -> tuple[dict[str, TopicTraffic], TopicTraffic]:
        """Return the counters of the topics that are reported by name, and the sum of all
        others."""
        others = TopicTraffic()
        others.add(self._rest)
        for topic, found in self._by_topic.items():
            if topic in self._named or not found.any:
                continue
            if not self._full and len(self._named) < MAX_TOPICS:
                self._named[topic] = found
            else:
                self._full = True  # a name that becomes free is not given to another topic
                others.add(found)
        return self._named, others
