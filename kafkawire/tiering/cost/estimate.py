"""How many requests a day settings will cause, and what that costs, before they are applied. Pure.

The model follows the cutter and the uploader. Journals are cut when they are full, and at the
latest after half of the smallest `tiering.max.lag.ms` in them. Each cut makes one segment for each
large share of a partition, and shared segments for the others; each segment becomes an object.
Small ones are merged (kafkawire.tiering.cost.merge_model) if that saves money, and uploaded again;
those without a local file are downloaded for it. Uploads that end together share a manifest delta.

Topics with durability=s3 are also stored in log objects, which all of them on a broker share: one
after each `log.object.linger.ms` with records, or more often if it would be larger than
`log.object.bytes`. Log objects are deleted once their records are in segments.

The estimate assumes even traffic and ignores retries and compaction. A topic without traffic costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from kafkawire.log.segments.cut.cutter import SHARED_BYTES
from kafkawire.log.segments.cut.plan import JOB_PARTITIONS
from kafkawire.log.segments.cut.schedule import (
    CUT_PART,
    MIN_SCAN_INTERVAL_S,
    SCANS_AHEAD,
    SCANS_PER_LAG,
)
from kafkawire.log.segments.merge.plan import limits_of
from kafkawire.log.segments.store.grouping import LARGE_BYTES
from kafkawire.tiering.cost.merge_model import UNENDING_S, Merges, merges_of, pays, puts_of
from kafkawire.tiering.cost.prices import GIGABYTE, Prices

DAY_S = 86_400.0
MONTH_DAYS = 30
READ_BYTES = 4 << 20
"""A sequential reader requests one to eight mebibytes at a time."""
MIN_LINGER_S = 0.01
"""A shorter log.object.linger.ms is counted as this: the PUTs in progress at a time are bounded,
and each takes tens of milliseconds."""
MIN_BATCH_BYTES = 70
"""A batch of one small record: with less traffic there are fewer batches than lingers."""


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic's traffic and settings. `bytes_per_s`: of all its partitions, as stored; `kind`: its
    retention class; `retention_ms` and `local_ms` (local retention) -1: unlimited; `in_objects`:
    durability=s3."""

    topic: str
    partitions: int
    bytes_per_s: float
    copies: bool = True
    lag_ms: int = 300_000
    min_bytes: int = 8 << 20
    segment_bytes: int = 1 << 30
    retention_ms: int = 604_800_000
    kind: str = "delete/tiered/2^30ms"
    local_ms: int = -1
    in_objects: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """The settings of the broker that affect costs and sizes. `read_bytes_per_s`: read from the
    tier by clients; `buffer_bytes`: memory that requests, answers and the tier may take."""

    journal_bytes: int = 128 << 20
    journal_roll_ms: int = 600_000
    cut_interval_ms: int = 1_000
    part_bytes: int = 16 << 20
    manifest_fold: int = 64
    file_delete_delay_ms: int = 60_000
    object_linger_ms: int = 100
    object_bytes: int = 8 << 20
    unreleased_bytes: int = 1 << 30
    read_bytes_per_s: float = 0.0
    hot_bytes: int = 256 << 20
    recycle_bytes: int = 512 << 20
    check_interval_ms: int = 300_000
    warn_percent: int = 85
    buffer_bytes: int = 512 << 20
    max_loaded: int = 50_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated requests and bytes per day: PUTs by purpose, GETs, bytes uploaded. `cut_every_s`: 0
    if nothing is cut. `merge_bytes`: the part of `up_bytes` that merges write again; `log_bytes`:
    the part in log objects, of which `unreleased_bytes` are in the bucket at a time.
    `stored_bytes`: bytes of segments in the bucket once retention is in effect, -1: growing without
    limit. Costs are per month of 30 days; `log_cost` is the part of log objects."""

    cut_every_s: float = 0.0
    objects: float = 0.0
    object_bytes: float = 0.0
    segment_puts: float = 0.0
    merge_puts: float = 0.0
    manifest_puts: float = 0.0
    log_puts: float = 0.0
    gets: float = 0.0
    up_bytes: float = 0.0
    merge_bytes: float = 0.0
    log_bytes: float = 0.0
    unreleased_bytes: float = 0.0
    down_bytes: float = 0.0
    stored_bytes: float = 0.0
    requests_cost: float = 0.0
    transfer_cost: float = 0.0
    storage_cost: float = 0.0
    log_cost: float = 0.0

    @property
    def puts(self) -> float:
        return self.segment_puts + self.merge_puts + self.manifest_puts + self.log_puts

    @property
    def amplification(self) -> float:
        """How many times a byte is uploaded."""
        first = self.up_bytes - self.merge_bytes - self.log_bytes
        return self.up_bytes / first if first else 0.0


@dataclass(slots=True)
class CutSegments:
    """Segments of one cut: number, bytes and partitions of each, and one of the loads in them."""

    count: float
    size_bytes: float
    partitions: float
    load: TopicLoad


def estimate(loads: Sequence[TopicLoad], machine: Machine, prices: Prices) -> Estimate:
    """Estimate the requests and bytes of loads that share journals, segments and manifest."""
    flowing = [load for load in loads if load.bytes_per_s > 0]
    tiered = [load for load in flowing if load.copies]
    gets = machine.read_bytes_per_s * DAY_S / READ_BYTES
    down_bytes = machine.read_bytes_per_s * DAY_S
    every_s = cut_every_s(flowing, machine)
    if not tiered:
        return _add_costs(Estimate(gets=gets, down_bytes=down_bytes), prices)
    log = log_objects(flowing, machine)
    cuts = DAY_S / every_s
    made = segments_of_cut(tiered, every_s)
    count = sum(each.count for each in made)
    first_bytes = cuts * sum(each.count * each.size_bytes for each in made)
    segment_puts = cuts * sum(each.count * requests(each.size_bytes, machine) for each in made)
    merged = _Merged()
    for each in made:
        _merge(each, every_s, machine, prices, merged)
    # At most one delta a second; merged segments are published one by one.
    deltas = min(DAY_S, cuts * (_rounds(tiered, every_s) + merged.count))
    return _add_costs(
        Estimate(
            cut_every_s=every_s,
            objects=cuts * count,
            object_bytes=first_bytes / cuts / count,
            segment_puts=segment_puts,
            merge_puts=cuts * merged.puts,
            manifest_puts=deltas + 2 * deltas / machine.manifest_fold,
            log_puts=log.puts,
            # Each delta is read when the snapshot is written.
            gets=gets + cuts * merged.gets + deltas,
            up_bytes=first_bytes + cuts * merged.size_bytes + log.size_bytes,
            merge_bytes=cuts * merged.size_bytes,
            log_bytes=log.size_bytes,
            unreleased_bytes=log.unreleased_bytes,
            down_bytes=down_bytes + cuts * merged.down_bytes,
            stored_bytes=_estimate_stored_bytes(tiered),
        ),
        prices,
    )


@dataclass(frozen=True, slots=True)
class LogObjects:
    """PUTs and bytes of log objects a day, and the bytes that are not released at a time."""

    puts: float = 0.0
    size_bytes: float = 0.0
    unreleased_bytes: float = 0.0


def log_objects(flowing: Sequence[TopicLoad], machine: Machine) -> LogObjects:
    """Return the log objects of the loads with durability=s3. Each has one PUT, whatever its size;
    it is kept until the slowest of these topics is uploaded."""
    loads = [load for load in flowing if load.in_objects]
    if not loads:
        return LogObjects()
    bytes_per_s = sum(load.bytes_per_s for load in loads)
    by_time = 1 / max(MIN_LINGER_S, machine.object_linger_ms / 1000)
    by_time = min(by_time, bytes_per_s / MIN_BATCH_BYTES)
    lag_s = max(load.lag_ms for load in loads) / 1000
    return LogObjects(
        puts=DAY_S * max(by_time, bytes_per_s / machine.object_bytes),
        size_bytes=DAY_S * bytes_per_s,
        unreleased_bytes=min(bytes_per_s * lag_s, machine.unreleased_bytes),
    )


@dataclass(slots=True)
class _Merged:
    """The work that merges cause per cut."""

    count: float = 0.0
    puts: float = 0.0
    gets: float = 0.0
    size_bytes: float = 0.0
    down_bytes: float = 0.0


def merges_done(
    made: CutSegments, every_s: float, machine: Machine, prices: Prices
) -> Iterator[tuple[Merges, float]]:
    """Yield the merges of the segments of a cut, each with the share of its bytes that is read from
    the tier."""
    load = made.load
    kept_s = UNENDING_S if load.retention_ms < 0 else load.retention_ms / 1000
    # Segments of a cut are adjacent, so they are merged with one another, too.
    every_s /= made.count
    for one in merges_of(made.size_bytes, every_s, limits_of(load.kind), kept_s):
        away = _part_away(one, every_s, load, machine)
        size, inputs = int(one.size_bytes), round(one.inputs)
        # Segments that are not copied are merged whatever that costs.
        if load.copies and not pays(
            inputs, size, int(inputs * away), int(size * away), machine.part_bytes, prices
        ):
            return
        yield one, away


def _merge(
    made: CutSegments, every_s: float, machine: Machine, prices: Prices, total: _Merged
) -> None:
    for one, away in merges_done(made, every_s, machine, prices):
        per_cut = one.per_cut * made.count
        total.count += per_cut
        total.puts += per_cut * requests(one.size_bytes, machine)
        total.gets += per_cut * one.inputs * away
        total.size_bytes += per_cut * one.size_bytes
        total.down_bytes += per_cut * one.size_bytes * away


def _part_away(one: Merges, every_s: float, load: TopicLoad, machine: Machine) -> float:
    """Return the share of merged bytes that has no local file any more."""
    if load.local_ms < 0:
        return 0.0
    here_s = load.lag_ms / 1000 + (load.local_ms + machine.file_delete_delay_ms) / 1000
    return max(0.0, 1 - here_s / (every_s / one.per_cut))


def cut_every_s(flowing: Sequence[TopicLoad], machine: Machine) -> float:
    """Return the time between two cuts with constant traffic; 0 if nothing is tiered."""
    lags = [load.lag_ms / 1000 for load in flowing if load.copies]
    if not lags:
        return 0.0
    lag_s = min(lags)
    scan_interval_s = min(
        machine.cut_interval_ms / 1000, max(MIN_SCAN_INTERVAL_S, lag_s / SCANS_PER_LAG)
    )
    # Less a rounding error, which would make a whole number one more.
    scans = max(1, ceil(CUT_PART * lag_s / scan_interval_s - 1e-9) - SCANS_AHEAD)
    full_s = machine.journal_bytes / sum(load.bytes_per_s for load in flowing)
    return min(scans * scan_interval_s, full_s, machine.journal_roll_ms / 1000)


def requests(size_bytes: float, machine: Machine) -> float:
    """Return the PUTs of one object; of a multipart upload: create, parts, complete, check."""
    return puts_of(size_bytes, machine.part_bytes)


def segments_of_cut(loads: Sequence[TopicLoad], every_s: float) -> list[CutSegments]:
    made: list[CutSegments] = []
    shared: dict[str, tuple[float, int, TopicLoad]] = {}
    for load in loads:
        share = load.bytes_per_s / load.partitions * every_s
        if share >= LARGE_BYTES:
            parts = ceil(share / load.segment_bytes)
            made.append(CutSegments(load.partitions * parts, share / parts, 1, load))
        else:
            size, partitions, _ = shared.get(load.kind, (0.0, 0, load))
            size += share * load.partitions
            shared[load.kind] = size, partitions + load.partitions, load
    for size, partitions, load in shared.values():
        count = max(ceil(size / SHARED_BYTES), ceil(partitions / JOB_PARTITIONS))
        made.append(CutSegments(count, size / count, partitions / count, load))
    return made


def _rounds(tiered: Sequence[TopicLoad], every_s: float) -> int:
    """Return at how many times objects of one cut are uploaded: at once, or near their limit."""
    sizes = {load.kind: 0.0 for load in tiered}
    for load in tiered:
        sizes[load.kind] += load.bytes_per_s * every_s
    moments = set()
    for load in tiered:
        share = load.bytes_per_s / load.partitions * every_s
        size = share if share >= LARGE_BYTES else min(sizes[load.kind], SHARED_BYTES)
        moments.add(load.lag_ms if size < load.min_bytes else 0)
    return len(moments)


def _estimate_stored_bytes(tiered: Sequence[TopicLoad]) -> float:
    if any(load.retention_ms < 0 for load in tiered):
        return -1.0
    return sum(load.bytes_per_s * load.retention_ms / 1000 for load in tiered)


def _add_costs(found: Estimate, prices: Prices) -> Estimate:
    daily = prices.of_requests({"PUT": found.puts, "GET": found.gets})
    stored = found.stored_bytes
    # Without retention: the first month's uploads, half of them on average.
    if stored < 0:
        stored = (found.up_bytes - found.merge_bytes - found.log_bytes) * MONTH_DAYS / 2
    unreleased_cost = found.unreleased_bytes / GIGABYTE * prices.gb_month
    log_daily = prices.of_requests({"PUT": found.log_puts})
    log_daily += prices.of_transfer(found.log_bytes, 0)
    return replace(
        found,
        requests_cost=daily * MONTH_DAYS,
        transfer_cost=prices.of_transfer(found.up_bytes, found.down_bytes) * MONTH_DAYS,
        storage_cost=stored / GIGABYTE * prices.gb_month + unreleased_cost,
        log_cost=log_daily * MONTH_DAYS + unreleased_cost,
    )
