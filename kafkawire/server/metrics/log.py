"""Metric families of the log: write batches, commits, journals, segments, loaded partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.metric_counters import MAX_TOPICS
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.server.metrics.families import (
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    within_bound,
)

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.maintenance.disk_watch import DiskWatch
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metric_counters import TopicTraffic

OTHERS = "(others)"
STATES = {STARTED: "started", LIVE: "live", DELETING: "deleting"}


def log_families(broker: Broker) -> Iterator[Metric]:
    """Yield the metric families of this module."""
    log = broker.log.commit_log
    yield counter("log_appended_bytes", "Bytes of record batches written.", log.appended_bytes)
    yield counter("log_appended_records", "Records written.", log.appended_records)
    yield counter("log_write_batches", "Write batches of the commit log.", log.write_batches)
    yield histogram("log_write_seconds", "Duration of a write batch.", log.writer.seconds)
    yield histogram("log_commit_seconds", "Duration of an fsync.", log.disk_sink.seconds)
    yield gauge(
        "log_failed",
        "1 after a failed fsync: no records are accepted until the broker is restarted.",
        log.failed is not None,
    )
    yield gauge(
        "log_refusing",
        "1 while Produce requests are refused because the disk is full or busy, another broker "
        "owns the remote tier, or broker.read.only is true.",
        log.refusal is not None,
    )
    yield from _disk(broker.log.upkeep.disk)
    journals = broker.log.journals
    yield gauge("journals", "Journals of the commit log.", sum(1 for _ in journals))
    yield gauge(
        "journal_bytes",
        "Size of all journals on disk, including preallocated ones.",
        journals.size_bytes(),
    )
    store = broker.log.segments.store
    states = Counter(segment.row.state for segment in store.by_id.values())
    yield gauges(
        "segments",
        "Segments by state.",
        ["state"],
        (([name], states[state]) for state, name in STATES.items()),
    )
    size = sum(segment.row.size_bytes for segment in store.by_id.values())
    live = sum(segment.row.live_bytes for segment in store.by_id.values())
    yield gauge("segment_bytes", "Bytes of all segments, local and remote.", size)
    yield gauge("segment_live_bytes", "Bytes of segments that can still be read.", live)
    rewriter = broker.log.segments.rewriter
    yield counter("segment_merges", "Merges of small segments into one.", rewriter.merges)
    yield counter(
        "segment_merged_bytes",
        "Bytes of batches rewritten by merges.",
        rewriter.merged_bytes,
    )
    yield gauge("loaded_partitions", "Partitions in memory.", len(broker.log.partitions))


def _disk(disk: DiskWatch) -> Iterator[Metric]:
    """Yield the size of the data folder's disk; without samples until it is measured."""
    measured = disk.size_bytes > 0
    for name, words, value in (
        ("disk_bytes", "Size of the disk with the data folder, measured every 5 seconds.",
         disk.size_bytes),
        ("disk_free_bytes", "Free space of the disk with the data folder.", disk.free_bytes),
    ):  # fmt: skip
        yield gauges(name, words, [], [([], value)] if measured else [])


def topic_families(broker: Broker) -> Iterator[Metric]:
    """Yield the traffic of each topic; of all topics above a limit together as (others)."""
    named, others = broker.log.loader.traffic.report()
    rows = sorted(named.items())
    if others.any:
        rows.append((OTHERS, others))
    first = f"the first {MAX_TOPICS} topics with traffic, all others together as {OTHERS}."
    for name, words, value in (
        ("topic_in_bytes", "Bytes of record batches appended to a topic", _in_bytes),
        ("topic_in_records", "Records appended to a topic", _in_records),
        ("topic_out_bytes", "Bytes of a topic's record batches answered to Fetches", _out_bytes),
    ):
        found = (([topic], value(traffic)) for topic, traffic in rows)
        yield counters(name, f"{words}: {first}", ["topic"], found)


def _in_bytes(traffic: TopicTraffic) -> int:
    return traffic.in_bytes


def _in_records(traffic: TopicTraffic) -> int:
    return traffic.in_records


def _out_bytes(traffic: TopicTraffic) -> int:
    return traffic.out_bytes


def partition_families(broker: Broker) -> Iterator[Metric]:
    """Yield families of each loaded partition, unless there are too many."""
    loaded = broker.log.partitions.values()
    labels = ["topic", "partition"]
    for name, words, value in (
        ("partition_log_start_offset", "First offset of a partition.", _log_start),
        ("partition_high_watermark", "High watermark of a partition.", _high_watermark),
        ("partition_size_bytes", "Bytes of a partition.", _size_bytes),
    ):
        found = (([each.topic, str(each.index)], value(each)) for each in loaded)
        yield gauges(name, words, labels, within_bound(found))


def _log_start(partition: Partition) -> int:
    return partition.log_start


def _high_watermark(partition: Partition) -> int:
    return partition.high_watermark


def _size_bytes(partition: Partition) -> int:
    return partition.size_bytes
