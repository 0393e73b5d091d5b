"""Metric families of quotas: what clients use, their limits and delays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.security.quotas.alterations import CONNECTIONS
from kafkawire.security.quotas.sensors import Label
from kafkawire.server.metrics.families import MAX_SERIES, counters, gauge, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

LABELS = ("quota", "user", "client_id", "ip")


def quota_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families of this module."""
    sensors = broker.quotas.sensors
    count = len(sensors)
    found = list(sensors.all()) if count <= MAX_SERIES else []
    yield gauge("quota_counters", "Counters of clients with quotas that were used in the last "
                "hour; the families below have a series for each if there are at most 1,000.",
                count)  # fmt: skip
    yield gauges(
        "quota_rate",
        "Use of a quota per second, over its window: bytes, percent of the time of the event loop, "
        "partitions or connections. `user` or `client_id` is empty where all share the quota.",
        LABELS,
        ((_labels(label), rate) for label, _, rate in found),
    )
    yield gauges(
        "quota_limit",
        "The limit of `quota_rate`.",
        LABELS,
        ((_labels(label), sensor.limit) for label, sensor, _ in found),
    )
    yield counters(
        "quota_throttled",
        "Requests after which a client was muted for a quota, and refused connections.",
        LABELS,
        ((_labels(label), sensor.throttled) for label, sensor, _ in found),
    )
    yield counters(
        "quota_throttle_seconds",
        "How long clients were muted for a quota, as answered in throttle_time_ms.",
        LABELS,
        ((_labels(label), sensor.throttled_ms / 1000) for label, sensor, _ in found),
    )


def _labels(label: Label) -> Sequence[str]:
    if label.key == CONNECTIONS:
        return label.key, "", "", label.client_id
    return label.key, label.user, label.client_id, ""
