"""Latencies in pushed metrics: a reader of OpenTelemetry's MetricsData, which is protobuf. Pure.

Only the gauges in LATENCIES are read, everything else is skipped by its length. protobuf's own
parser would create an object for each of thousands of metrics, and be one more dependency.

    MetricsData      1: ResourceMetrics*
    ResourceMetrics  2: ScopeMetrics*
    ScopeMetrics     2: Metric*
    Metric           1: name, 5: Gauge
    Gauge            1: NumberDataPoint*
    NumberDataPoint  4: float64, 6: int64, both with a fixed length
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

MAX_FIELDS = 200_000
"""Maximum number of fields read: 0.2 s in a thread. A push of all metrics of a Java client has
10,000; more are not what a client sends."""

_PREFIX = b"org.apache.kafka."
_KINDS = {
    "producer.node.request.latency": ("producer", "request"),
    "producer.request.latency": ("producer", "request"),
    "producer.record.queue.time": ("producer", "queue"),
    "producer.produce.throttle.time": ("producer", "throttle"),
    "consumer.node.request.latency": ("consumer", "request"),
    "consumer.fetch.manager.fetch.latency": ("consumer", "fetch"),
    "consumer.fetch.manager.fetch.throttle.time": ("consumer", "throttle"),
    "consumer.coordinator.commit.latency": ("consumer", "commit"),
    "consumer.coordinator.rebalance.latency": ("consumer", "rebalance"),
}

_LEN, _VARINT, _FIXED64, _FIXED32 = 2, 0, 1, 5  # wire types
_DOUBLE, _LONG = Struct("<d"), Struct("<q")


class Latency(NamedTuple):
    """The measure of a value. `client`: producer or consumer; `stat`: avg or max."""

    client: str
    kind: str
    stat: str


LATENCIES = {
    _PREFIX + f"{name}.{stat}".encode(): Latency(*labels, stat)
    for name, labels in _KINDS.items()
    for stat in ("avg", "max")
}
"""By the name of the metric (KIP-714), which is in ms."""


class MalformedMetrics(ValueError):
    """Bytes that are not MetricsData, or too many fields."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_FIELDS

    def fields(self, start: int, end: int, *wanted: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number, start, end) of each wanted field of the message in data[start:end]."""
        at = start
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise MalformedMetrics(f"more than {MAX_FIELDS} fields")
            tag, at = self._varint(at, end)
            kind, size = tag & 7, 0
            if kind == _LEN:
                size, at = self._varint(at, end)
            elif kind == _VARINT:
                _, at = self._varint(at, end)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise MalformedMetrics(f"wire type {kind}")
            if size > end - at:
                raise MalformedMetrics("a field is longer than its message")
            if tag >> 3 in wanted and kind in (_LEN, _FIXED64):
                yield tag >> 3, at, at + size
            at += size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise MalformedMetrics("a number does not end")


def read_latencies(data: bytes) -> dict[Latency, float]:
    """Return the latencies in MetricsData, in seconds; of several values of one, as of several
    brokers, the highest. Raises MalformedMetrics."""
    reader = _Reader(data)
    found: dict[Latency, float] = {}
    for _, *resource in reader.fields(0, len(data), 1):
        for _, *scope in reader.fields(*resource, 2):
            for _, *metric in reader.fields(*scope, 2):
                _read_metric(reader, data, metric, found)
    return found


def _read_metric(
    reader: _Reader, data: bytes, metric: list[int], found: dict[Latency, float]
) -> None:
    latency: Latency | None = None
    gauges: list[tuple[int, int]] = []
    for number, at, to in reader.fields(*metric, 1, 5):
        if number == 1:
            latency = LATENCIES.get(data[at:to])
            if latency is None:
                return  # the name comes first: the values are skipped
        else:
            gauges.append((at, to))
    if latency is None:
        return
    for gauge in gauges:
        for _, *point in reader.fields(*gauge, 1):
            for number, at, to in reader.fields(*point, 4, 6):
                if to - at != 8:
                    raise MalformedMetrics("a value that has not 8 bytes")
                (value,) = (_DOUBLE if number == 4 else _LONG).unpack_from(data, at)
                if math.isfinite(value) and value >= 0:
                    found[latency] = max(found.get(latency, 0.0), value / 1000)
