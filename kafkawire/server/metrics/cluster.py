"""Metric families of the cluster, as this broker knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import gauge, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


def cluster_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; None while partitions are counted."""
    catalog = broker.catalog
    silent = len(catalog.silent & catalog.brokers.keys())
    yield gauges(
        "brokers",
        "Registered brokers, according to this one: alive, or silent (no heartbeat for lease.ms, "
        "or shut down).",
        ["state"],
        ((["alive"], len(catalog.brokers) - silent), (["silent"], silent)),
    )
    led = 0
    for group in catalog.groups():
        if group.leader == broker.node_id:
            for size in catalog.sizes_of_group(group.id):
                led += size
                yield None
    yield gauge("partitions_led", "Partitions that this broker leads.", led)
    yield gauge(
        "moving_partitions",
        "Partitions of the cluster that are to be moved to another broker.",
        len(catalog.moves),
    )
