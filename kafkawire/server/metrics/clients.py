"""Metric families of what clients measure themselves and push (KIP-714)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import gauge, gauges
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
