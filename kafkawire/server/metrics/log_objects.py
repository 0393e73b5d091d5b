"""Metric families of log objects (topics with durability=s3); none without a remote tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import counter, gauge, histogram

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
