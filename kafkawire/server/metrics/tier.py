"""Metric families of the remote tier: requests, bytes, errors, upload lag, cold reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import (
    counter,
    counters,
    gauge,
    gauges,
    histograms,
    within_bound,
)
from kafkawire.tiering.read.block_cache import EvictionReason
from kafkawire.tiering.upload.scheduler import Reason

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.partition.partition import Partition
    from kafkawire.tiering.service import Tiering


TOPICS_SHOWN = 100
"""Topics with a cost series of their own: Prometheus would keep a thousand with all."""


def tier_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families; none without a tier."""
    tiering = broker.tiering
    if tiering is None:
        return
    yield from _state(tiering)
    yield from _requests(tiering)
    yield from _waiting(tiering)
    yield from _cold(tiering)
    copied = [each for each in broker.log.partitions.values() if each.config.copies]
    yield gauge(
        "tier_lag_records",
        "Records not yet uploaded to the remote tier, of all tiered partitions in memory.",
        sum(map(_behind, copied)),
    )
    yield gauges(
        "tier_partition_lag_records",
        "Records of a tiered partition not yet uploaded to the remote tier.",
        ["topic", "partition"],
        within_bound(([each.topic, str(each.index)], _behind(each)) for each in copied),
    )


def _behind(partition: Partition) -> int:
    start = max(partition.commit_offset, partition.log_start)
    return max(0, partition.high_watermark - start)


def _state(tiering: Tiering) -> Iterator[Metric]:
    yield gauge(
        "tier_attached",
        "1 while the bucket is reachable and owned by this broker.",
        tiering.state == "attached",
    )
    yield gauge(
        "tier_paused", "1 while an operator has paused uploads.", bool(tiering.dispatcher.paused)
    )
    yield gauge(
        "tier_promise_missed_topics",
        "Topics whose records have waited for upload longer than tiering.max.lag.ms.",
        len(tiering.upload_lag.missed),
    )
    yield counter(
        "tier_promise_missed",
        "Times that a topic's upload lag exceeded tiering.max.lag.ms.",
        tiering.upload_lag.episodes,
    )
    yield gauge(
        "tier_last_upload_timestamp_seconds",
        "Unix time of the last successful segment upload; 0: none since the start.",
        tiering.meter.uploaded_ms / 1000,
    )
    yield gauge(
        "tier_month_cost",
        "Cost of this month's requests and bytes by tier.prices, in its currency.",
        tiering.spending.sum_month_costs(),
    )
    yield gauges(
        "tier_topic_month_cost",
        "Cost of this month's requests and bytes by topic: the dearest 100 topics, of all "
        "others together as (others), of owner and manifest as (cluster).",
        ["topic"],
        (([topic], cost) for topic, cost in tiering.spending.dearest(TOPICS_SHOWN)),
    )


def _requests(tiering: Tiering) -> Iterator[Metric]:
    meter = tiering.meter
    yield counters("tier_requests", "Requests by kind.", ["kind"], _by_name(meter.requests))
    yield counters(
        "tier_errors", "Failed requests by error class.", ["class"], _by_name(meter.errors)
    )
    yield histograms(
        "tier_operation_seconds",
        "Duration of calls to the bucket by operation, including the wait for a connection.",
        "operation",
        ((name, found) for name, found in meter.seconds.items() if any(found.counts)),
    )
    yield counter("tier_uploaded_bytes", "Bytes uploaded to the bucket.", meter.in_bytes)
    yield counter("tier_downloaded_bytes", "Bytes downloaded from the bucket.", meter.out_bytes)
    yield counters(
        "tier_failed_uploads",
        "Failed uploads by reason.",
        ["what"],
        (([fault.value], number) for fault, number in tiering.dispatcher.failures.items()),
    )


def _waiting(tiering: Tiering) -> Iterator[Metric]:
    """Return the age of waiting segments; records in the journals are as old as their journal."""
    now = tiering.env.clock.monotonic()
    candidates = list(tiering.dispatcher.candidates.values())
    reasons = Counter(tiering.dispatcher.why(each.segment_id, now).reason for each in candidates)
    yield gauges(
        "tier_waiting_segments",
        "Segments waiting for upload, by the reason for waiting.",
        ["reason"],
        (([reason.value], reasons[reason]) for reason in Reason if reasons[reason]),
    )
    yield gauge(
        "tier_waiting_bytes",
        "Bytes of segments waiting for upload.",
        sum(each.size_bytes for each in candidates),
    )
    timing, journals = tiering.log.segments.cutter.timing, tiering.log.journals
    since = [each.since for each in candidates]
    since += [timing.held_since(journal.number) for journal in journals]
    yield gauge(
        "tier_lag_seconds",
        "Age of the oldest record that is waiting for upload.",
        max(0.0, now - min([*since, now])),
    )


def _cold(tiering: Tiering) -> Iterator[Metric]:
    counts, caches = tiering.cold.counts, tiering.cold.caches
    yield gauge(
        "tier_cache_bytes",
        "Size of the cache of remote data (tier.cache.bytes); 0 before the first cold read.",
        sum(each.slots * each.block_bytes for each in caches),
    )
    yield gauge(
        "tier_cache_used_bytes",
        "Bytes of the cache of remote data in blocks that are not free.",
        sum(each.used * each.block_bytes for each in caches),
    )
    yield counters(
        "tier_cache_evictions",
        "Blocks evicted from the cache of remote data by reason: passed (by all readers), "
        "needed_later (than all others), unused (the longest, with no known reader).",
        ["reason"],
        (
            ([reason.value], sum(each.evicted[reason] for each in caches))
            for reason in EvictionReason
        ),
    )
    for name, words, value in (
        ("tier_cache_hits", "Block reads served from the cache.", counts.hits),
        ("tier_cache_misses", "Block reads not found in the cache.", counts.misses),
        ("tier_read_requests", "GET requests of cold reads.", counts.requests),
        ("tier_read_bytes", "Bytes downloaded by cold reads.", counts.bytes_read),
        (
            "tier_hedged_reads",
            "Hedged GET requests sent because the first one was slow.",
            counts.hedged,
        ),
        (
            "tier_hedges_won",
            "Hedged GET requests that completed before the first one.",
            counts.hedges_won,
        ),
        ("tier_failed_reads", "Failed GET requests of cold reads.", counts.failed),
        (
            "tier_late_reads",
            "Cold reads answered with no records because the data was not downloaded in time.",
            counts.late,
        ),
        ("tier_missing_objects", "Objects missing in the bucket.", counts.gone),
        ("tier_damaged_blocks", "Downloaded blocks with a wrong checksum.", counts.damaged),
        (
            "tier_local_fallbacks",
            "Failed remote reads that were served from a local file.",
            tiering.log.segments.warm.fallbacks,
        ),
    ):
        yield counter(name, words, value)


def _by_name(counted: Counter[str]) -> Iterator[tuple[list[str], int]]:
    return (([name], number) for name, number in sorted(counted.items()))
