"""The metrics page in Prometheus's text form, family by family.

Names follow Prometheus's conventions: `kafkawire_` first, base units (seconds, bytes), counters end
in `_total`. docs/metrics.md lists all families; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from kafkawire.server.metrics.broker import (
    backup_families,
    broker_families,
    cluster_families,
    hook_families,
    metadata_families,
)
from kafkawire.server.metrics.clients import client_families, quota_families
from kafkawire.server.metrics.durability import log_object_families, replica_families
from kafkawire.server.metrics.groups import group_families, share_families
from kafkawire.server.metrics.log import log_families, partition_families, topic_families
from kafkawire.server.metrics.schedules import schedule_families
from kafkawire.server.metrics.tier import tier_families
from kafkawire.server.metrics.transactions import transaction_families

if TYPE_CHECKING:
    from kafkawire.server.monitored import MonitoredServer


class _One:
    """A registry of a single metric family, as prometheus_client.generate_latest expects one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Yield the family."""
        return (self._family,)


def render(server: MonitoredServer) -> Iterator[bytes]:
    """Yield the page in pieces of a few milliseconds; the caller lets other tasks run in
    between."""
    for family in families(server):
        yield generate_latest(_One(family)) if family is not None else b""


def families(server: MonitoredServer) -> Iterator[Metric | None]:
    """Yield all families; None where others should run because the next one takes long."""
    broker = server.broker
    yield from broker_families(server)
    yield from metadata_families(server)
    yield from backup_families(server)
    yield from cluster_families(broker)
    yield from hook_families(broker)
    yield from quota_families(broker)
    yield from log_families(broker)
    yield from log_object_families(broker)
    yield from replica_families(broker)
    yield from topic_families(broker)
    yield from partition_families(broker)
    yield from group_families(broker)
    yield from transaction_families(broker)
    yield from schedule_families(broker)
    yield from share_families(broker)
    yield from tier_families(broker)
    yield from client_families(broker)
    yield from ProcessCollector(registry=None).collect()
