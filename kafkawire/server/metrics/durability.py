"""Metric families of log objects (topics with durability=s3) and of replication (topics with
durability=replicated). There are none without a remote tier, or before replication is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import counter, gauge, gauges, histogram

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


def log_object_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families."""
    if broker.log.object_logs is None:
        return
    objects = broker.log.commit_log.object_sink
    for name, words, value in (
        ("log_objects_stored", "Log objects stored.", objects.stored_objects),
        ("log_object_bytes_stored", "Bytes of the log objects stored.", objects.stored_bytes),
        ("log_objects_released",
         "Log objects deleted, because their records are in segments of the remote tier.",
         objects.released_objects),
        ("log_object_failed_puts", "Attempts to store a log object that failed and are repeated.",
         objects.failed_puts),
    ):  # fmt: skip
        yield counter(name, words, value)
    yield histogram(
        "log_object_put_seconds", "Duration of storing a log object, one attempt.", objects.seconds
    )
    yield gauge(
        "log_object_unstored_bytes",
        "Bytes written to topics with durability=s3 that are in no log object yet, so not "
        "acknowledged.",
        objects.queue.size_bytes,
    )
    yield gauge(
        "log_object_unreleased_bytes",
        "Bytes of log objects that are needed; bounded by log.unreleased.max.bytes.",
        objects.unreleased_bytes,
    )
    yield gauge(
        "log_object_refusing",
        "1 while produces to topics with durability=s3 are refused: log objects cannot be stored, "
        "or too many wait for uploads of segments.",
        objects.refusal is not None,
    )


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
