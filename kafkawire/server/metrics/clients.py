"""Metric families of clients: what they measure themselves and push (KIP-714), and their quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.security.quotas.alterations import CONNECTIONS
from kafkawire.security.quotas.sensors import Label
from kafkawire.server.metrics.families import MAX_SERIES, counters, gauge, gauges
from kafkawire.server.metrics.log import OTHERS

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.telemetry.otlp import Latency


MAX_CLIENTS = 100
"""Client ids with series of their own: up to 1,600 series, with producer and consumer of each."""
MAX_NAME_CHARS = 100
"""Characters shown of a client id, which can have 32,767 bytes."""
SLICE = 500
"""Instances read in one event-loop iteration: two milliseconds."""


def client_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; none before a client asks which metrics are wanted. None: let other tasks
    run."""
    if "telemetry" not in broker.__dict__:
        return
    by_client: dict[str, dict[Latency, float]] = {}
    instances, count = broker.telemetry.instances(), 0
    while part := list(islice(instances, SLICE)):
        count += len(part)
        for client_id, latencies in part:
            if latencies:
                name = client_id[:MAX_NAME_CHARS]
                if name not in by_client and len(by_client) >= MAX_CLIENTS:
                    name = OTHERS
                highest = by_client.setdefault(name, {})
                for latency, seconds in latencies.items():
                    highest[latency] = max(highest.get(latency, 0.0), seconds)
        yield None
    yield gauge("client_instances", "Clients that asked which metrics to push.", count)
    yield gauges(
        "client_latency_seconds",
        "What clients measured and pushed last (KIP-714): `kind` is request, queue (a record, "
        "until it is sent), throttle, fetch, commit or rebalance, `stat` avg or max. The highest "
        f"value for a client id and all brokers, of the first {MAX_CLIENTS} client ids, and of "
        f"all others together as {OTHERS}.",
        ["client_id", "client", "kind", "stat"],
        (
            ([name, *latency], seconds)
            for name, latencies in sorted(by_client.items())
            for latency, seconds in sorted(latencies.items())
        ),
    )


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
