"""`kafkawire tier estimate` on a running broker: measures the traffic of its topics and estimates
costs with the current and with changed settings.

The rate of a partition is that of the last WINDOW_MS, by the timestamps of its records in segments
and journals. Partitions that are not in memory are idle and count as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from kafkawire.codec.configs.parse import whole_number
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    BrokerConfig,
    TopicConfig,
    check_topic,
    validate,
)
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.tiering.cost.estimate import Estimate, Machine, TopicLoad, estimate
from kafkawire.tiering.cost.prices import Prices, parse_prices

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering

WINDOW_MS = 24 * 3_600_000
TOPICS_NAMED = 20
"""Topics whose assumed traffic is listed in a result."""
SLICE = 500
"""Partitions processed per event-loop iteration: a few milliseconds."""
MACHINE_SETTINGS = (
    "journal.bytes",
    "journal.roll.ms",
    "cut.interval.ms",
    "tier.part.bytes",
    "tier.manifest.fold",
    "tier.prices",
    "log.object.linger.ms",
    "log.object.bytes",
    "log.unreleased.max.bytes",
)
"""Broker settings that the estimate uses."""
TOPIC_SETTINGS = (
    "remote.storage.enable",
    "remote.log.copy.disable",
    "tiering.max.lag.ms",
    "tiering.min.object.bytes",
    "retention.ms",
    "local.retention.ms",
    "segment.bytes",
    "durability",
)
"""Topic settings that the estimate uses."""
BUFFER_SETTINGS = ("inflight.bytes", "inflight.answer.bytes")
TIER_BUFFER_SETTINGS = ("tier.cache.bytes", "tier.upload.buffer.bytes")
SIZE_SETTINGS = (
    "hot.bytes",
    "recycle.bytes",
    "log.retention.check.interval.ms",
    "disk.warn.percent",
    "partitions.loaded.max",
    *BUFFER_SETTINGS,
    *TIER_BUFFER_SETTINGS,
)
"""Broker settings that only the sizes of disk and memory depend on."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Costs of the broker's traffic with the current settings and with others. `traffic`: the
    assumed traffic of each topic, busiest first; `read_bytes_per_s`: bytes that clients read from
    the tier."""

    now: Estimate
    then: Estimate
    currency: str
    traffic: list[TopicLoad]
    read_bytes_per_s: float


@dataclass(slots=True)
class _Traffic:
    partitions: int = 0
    bytes_per_s: float = 0.0
    configs: Mapping[str, str] = field(default_factory=dict)


def split_settings(
    changes: Mapping[str, str], more: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Split changes into (topic settings, broker settings), `more` among these. Raises ValueError
    for a setting that the estimate does not use."""
    known = (*TOPIC_SETTINGS, *MACHINE_SETTINGS, *more)
    for name in changes:
        if name not in known:
            raise ValueError(
                f"{name}: the estimate does not depend on it, but on {', '.join(known)}"
            )
    of_topics = {name: text for name, text in changes.items() if name in TOPIC_SETTINGS}
    of_broker = {name: text for name, text in changes.items() if name not in TOPIC_SETTINGS}
    return of_topics, of_broker


def machine_of(config: BrokerConfig, changes: Mapping[str, str], read_rate: float) -> Machine:
    """Return the broker settings with some of them changed. Raises ConfigError."""

    def number(name: str) -> int:
        row = BROKER_CONFIGS[name]
        return whole_number(
            validate(row, changes[name]) if name in changes else getattr(config, row.attribute)
        )

    buffers = (*BUFFER_SETTINGS, *(TIER_BUFFER_SETTINGS if config.tier_url else ()))
    return Machine(
        journal_bytes=number("journal.bytes"),
        journal_roll_ms=number("journal.roll.ms"),
        cut_interval_ms=number("cut.interval.ms"),
        part_bytes=number("tier.part.bytes"),
        manifest_fold=number("tier.manifest.fold"),
        file_delete_delay_ms=config.file_delete_delay_ms,
        object_linger_ms=number("log.object.linger.ms"),
        object_bytes=number("log.object.bytes"),
        unreleased_bytes=number("log.unreleased.max.bytes"),
        read_bytes_per_s=read_rate,
        hot_bytes=number("hot.bytes"),
        recycle_bytes=number("recycle.bytes"),
        check_interval_ms=number("log.retention.check.interval.ms"),
        warn_percent=number("disk.warn.percent"),
        buffer_bytes=sum(map(number, buffers)),
        max_loaded=number("partitions.loaded.max"),
    )


def typed_load(
    partitions: int,
    bytes_per_s: float,
    changes: Mapping[str, str],
    *,
    tier: str = "",
    read_rate: float = 0.0,
    more: Sequence[str] = (),
) -> tuple[TopicLoad, Machine, Prices]:
    """Return the traffic of a single topic on a broker with default settings, some of them changed,
    and this `tier.url`. `more`: see `split_settings`. ValueError."""
    of_topics, of_broker = split_settings(changes, more)
    broker = BrokerConfig({"tier.url": tier} if tier else {})
    check_topic(of_topics, broker.texts)
    load = load_of("", partitions, bytes_per_s, TopicConfig(of_topics, broker.texts))
    prices = parse_prices(of_broker.get("tier.prices", broker.tier_prices))
    return load, machine_of(broker, of_broker, read_rate), prices


def load_of(topic: str, partitions: int, bytes_per_s: float, config: TopicConfig) -> TopicLoad:
    return TopicLoad(
        topic=topic,
        partitions=partitions,
        bytes_per_s=bytes_per_s,
        copies=config.copies,
        lag_ms=config.tier_lag_ms,
        min_bytes=config.tier_min_bytes,
        segment_bytes=config.segment_bytes,
        retention_ms=config.retention_ms if config.cleanup_delete else -1,
        kind=retention_class(config),
        local_ms=config.local_retention_ms,
        in_objects=config.in_objects,
    )


async def estimates(
    tiering: Tiering, topic: str | None, changes: Mapping[str, str], read_rate: float | None
) -> Estimates:
    """Estimate the costs of the broker's traffic with the current settings, and with `changes` (of
    one topic, or of all). `read_rate`: bytes a second read from the tier, None: the measured rate.
    Raises ValueError for changes that are not allowed."""
    of_topics, of_broker = split_settings(changes)
    texts = tiering.config.texts
    prices = parse_prices(of_broker.get("tier.prices", tiering.config.tier_prices))
    traffic = await measure(tiering)
    now, then = [], []
    for name, one in traffic.items():
        now.append(_load(name, one, one.configs, texts))
        changed = {**one.configs, **(of_topics if topic in (None, name) else {})}
        check_topic(changed, texts)
        then.append(_load(name, one, changed, texts))
    reads_now = _read_rate(tiering)
    before = machine_of(tiering.config, {}, reads_now)
    after = machine_of(tiering.config, of_broker, reads_now if read_rate is None else read_rate)
    present = parse_prices(tiering.config.tier_prices)
    return Estimates(
        estimate(now, before, present),
        estimate(then, after, prices),
        prices.currency,
        sorted(then, key=lambda load: -load.bytes_per_s),
        after.read_bytes_per_s,
    )


def _load(
    name: str, one: _Traffic, configs: Mapping[str, str], texts: Mapping[str, str]
) -> TopicLoad:
    return load_of(name, one.partitions, one.bytes_per_s, TopicConfig(configs, texts))


async def measure(tiering: Tiering) -> dict[str, _Traffic]:
    """Measure the traffic of each topic with partitions in memory."""
    now_ms = tiering.env.clock.now_ms()
    found: dict[str, _Traffic] = {}
    for at, partition in enumerate(list(tiering.log.partitions.values()), 1):
        one = found.setdefault(partition.topic, _Traffic())
        one.partitions += 1
        one.bytes_per_s += rate_of(partition, now_ms, _made_ms(tiering, partition, now_ms))
        if at % SLICE == 0:
            await tiering.env.slices.pause()
    # Topics may have been deleted during the pauses.
    by_name = tiering.catalog.by_name
    for name in list(found):
        if name in by_name:
            found[name].configs = by_name.facts_of(name).configs
        else:
            del found[name]
    return found


def rate_of(partition: Partition, now_ms: int, made_ms: int) -> float:
    """Return bytes a second over the last WINDOW_MS, or since its creation (`made_ms`)."""
    rows = partition.segments
    # Those in the journals, which are newer than all segments.
    size_bytes = max(0, partition.size_bytes - sum(rows.length))
    since_ms, oldest = made_ms, len(rows) - 1
    for at, newest, length in zip(count(), reversed(rows.newest), reversed(rows.length)):
        # If older records have expired, the oldest segment only shows when the next one began.
        if newest < now_ms - WINDOW_MS or (at == oldest and partition.log_start > 0):
            since_ms = max(since_ms, newest)
            break
        size_bytes += length
    since_ms = max(since_ms, now_ms - WINDOW_MS)
    return size_bytes * 1000 / max(1000, now_ms - since_ms)


def _made_ms(tiering: Tiering, partition: Partition, now_ms: int) -> int:
    """Return when the partition's topic was created; 0 if unknown."""
    name = partition.topic
    if name not in tiering.catalog.by_name:
        return now_ms
    return tiering.catalog.by_name.facts_of(name).created_ms


def _read_rate(tiering: Tiering) -> float:
    """Return bytes a second read from the tier for clients since the start."""
    # Without merges and the manifest: the estimate adds its own.
    meter = tiering.meter
    size_bytes = tiering.cold.counts.bytes_read
    return size_bytes * 1000 / max(1000, meter.now_ms() - meter.since_ms)


def describe_traffic(traffic: Sequence[TopicLoad], read_bytes_per_s: float) -> dict[str, Any]:
    """Return the traffic that an estimate assumes, for JSON; only the busiest topics by name."""
    flowing = [load for load in traffic if load.bytes_per_s > 0]
    return {
        "topics": [
            {
                "topic": load.topic,
                "partitions": load.partitions,
                "bytes_per_s": round(load.bytes_per_s, 1),
                "copied": load.copies,
            }
            for load in flowing[:TOPICS_NAMED]
        ],
        "flowing_topics": len(flowing),
        "bytes_per_s": round(sum(load.bytes_per_s for load in flowing), 1),
        "tier_read_bytes_per_s": round(read_bytes_per_s, 1),
        "window_hours": WINDOW_MS // 3_600_000,
    }


def as_values(found: Estimate) -> dict[str, Any]:
    return {
        "cut_every_s": round(found.cut_every_s, 1),
        "objects_a_day": round(found.objects),
        "object_bytes": round(found.object_bytes),
        "puts_a_day": round(found.puts),
        "segment_puts_a_day": round(found.segment_puts),
        "merge_puts_a_day": round(found.merge_puts),
        "manifest_puts_a_day": round(found.manifest_puts),
        "log_puts_a_day": round(found.log_puts),
        "gets_a_day": round(found.gets),
        "up_bytes_a_day": round(found.up_bytes),
        "write_amplification": round(found.amplification, 2),
        "stored_bytes": round(found.stored_bytes),
        "log_unreleased_bytes": round(found.unreleased_bytes),
        "requests_cost_a_month": found.requests_cost,
        "transfer_cost_a_month": found.transfer_cost,
        "storage_cost_a_month": found.storage_cost,
        "log_cost_a_month": found.log_cost,
    }
