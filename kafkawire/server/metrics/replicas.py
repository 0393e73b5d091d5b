"""Metric families of replication (topics with durability=replicated); none before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import gauge, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


def replica_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families."""
    replication, log = broker.log.replication, broker.log.commit_log
    if replication is None or replication.in_sync is None:
        return
    yield gauge(
        "replicas_in_sync",
        "Replicas that acks=all waits for, the broker itself included (Kafka: ISR).",
        log.follower_sink.in_sync,
    )
    yield gauge(
        "replicas_wanted",
        "Replicas of a complete group (replica.group.size).",
        replication.in_sync.limits.wanted + 1,
    )
    yield gauge(
        "replica_unreplicated_bytes",
        "Bytes written to topics with durability=replicated that are not committed yet.",
        log.follower_sink.queue.size_bytes,
    )
    yield gauge(
        "replica_refusing",
        "1 while produces to topics with durability=replicated are refused: too few followers are "
        "in sync, or journals wait for uploads of segments.",
        log.follower_sink.refusal is not None,
    )
    yield gauges(
        "replica_lag_seconds",
        "For how long a follower, by the broker on its machine, has not had everything that was "
        "written then; above replica.lag.time.max.ms it is not in sync.",
        ["follower"],
        [([str(node)], seconds) for node, seconds in replication.lags().items()],
    )
