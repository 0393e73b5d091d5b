"""How many requests a day settings will cause, and what that costs, before they are applied. Pure.

The arithmetic is that of the cutter and the uploader. Journals are cut when they are full, and at
the latest when half of the least `tiering.max.lag.ms` in them is over; each cut makes segments, one
of each large share of a partition and shared ones of the others; each segment is an object. What is
merged later is uploaded once more. Uploads that end together share a delta of the manifest.

It is an estimate for traffic that flows evenly: it knows neither retries nor cleaning. A topic
without traffic costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from log.segments.cutplan import JOB_PARTITIONS
from log.segments.cutting import SHARED_BYTES
from log.segments.grouping import LARGE_BYTES
from log.segments.rewriteplan import SEGMENTS_PER_GIB, SMALL_BYTES
from log.segments.timing import CUT_PART, LOOK_AT_LEAST_S, LOOKS_AHEAD, LOOKS_PER_LAG
from tiering.prices import GIGABYTE, Prices

DAY_S = 86_400.0
MONTH_DAYS = 30
READ_BYTES = 4 << 20
"""A sequential reader asks for one to eight mebibytes at a time."""


@dataclass(frozen=True, slots=True)
class Load:
    """A topic's traffic and settings. `bytes_per_s`: of all its partitions, as they are stored;
    `kind`: its retention class; `retention_ms` -1: for ever."""

    topic: str
    partitions: int
    bytes_per_s: float
    copies: bool = True
    lag_ms: int = 300_000
    min_bytes: int = 8 << 20
    segment_bytes: int = 1 << 30
    retention_ms: int = 604_800_000
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the broker's settings say. `read_bytes_per_s`: read from the tier."""

    journal_bytes: int = 128 << 20
    journal_roll_ms: int = 600_000
    cut_interval_ms: int = 1_000
    part_bytes: int = 16 << 20
    manifest_fold: int = 64
    read_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Per day: PUTs by what they are for, GETs, bytes up. `cut_every_s`: 0 if nothing is cut.
    `stored_bytes`: what lies in the bucket when retention has set in, -1: more every day. Money is
    a month's of 30 days."""

    cut_every_s: float = 0.0
    objects: float = 0.0
    object_bytes: float = 0.0
    segment_puts: float = 0.0
    merge_puts: float = 0.0
    manifest_puts: float = 0.0
    gets: float = 0.0
    up_bytes: float = 0.0
    stored_bytes: float = 0.0
    requests_cost: float = 0.0
    transfer_cost: float = 0.0
    storage_cost: float = 0.0

    @property
    def puts(self) -> float:
        """All of them."""
        return self.segment_puts + self.merge_puts + self.manifest_puts


def estimate(loads: Sequence[Load], machine: Machine, prices: Prices) -> Estimate:
    """What these loads cause together: they share journals, segments and manifest."""
    flowing = [load for load in loads if load.bytes_per_s > 0]
    tiered = [load for load in flowing if load.copies]
    gets = machine.read_bytes_per_s * DAY_S / READ_BYTES
    every_s = cut_every_s(flowing, machine)
    if not tiered:
        return _priced(Estimate(gets=gets), machine, prices)
    cuts = DAY_S / every_s
    made = _objects(tiered, every_s)
    merges = [(count * cuts / SEGMENTS_PER_GIB, _merged(size)) for count, size in made]
    segment_puts = cuts * sum(count * requests(size, machine) for count, size in made)
    merge_puts = sum(count * requests(size, machine) for count, size in merges if size)
    merged = sum(count for count, size in merges if size)
    # A round a second at most; merged segments come one by one.
    deltas = min(DAY_S, cuts * _rounds(tiered, every_s) + merged)
    count = sum(count for count, _ in made)
    up_bytes = cuts * sum(count * size for count, size in made)
    return _priced(
        Estimate(
            cut_every_s=every_s,
            objects=cuts * count,
            object_bytes=up_bytes / cuts / count,
            segment_puts=segment_puts,
            merge_puts=merge_puts,
            manifest_puts=deltas + 2 * deltas / machine.manifest_fold,
            gets=gets,
            up_bytes=up_bytes + sum(count * size for count, size in merges),
            stored_bytes=_stored(tiered),
        ),
        machine,
        prices,
    )


def cut_every_s(flowing: Sequence[Load], machine: Machine) -> float:
    """Between two cuts, when records flow all the time; 0: nothing is tiered."""
    lags = [load.lag_ms / 1000 for load in flowing if load.copies]
    if not lags:
        return 0.0
    lag_s = min(lags)
    look_s = min(machine.cut_interval_ms / 1000, max(LOOK_AT_LEAST_S, lag_s / LOOKS_PER_LAG))
    looks = max(1, ceil(CUT_PART * lag_s / look_s - 1e-9) - LOOKS_AHEAD)
    full_s = machine.journal_bytes / sum(load.bytes_per_s for load in flowing)
    return min(looks * look_s, full_s, machine.journal_roll_ms / 1000)


def requests(size_bytes: float, machine: Machine) -> float:
    """PUTs of one object: a large one is begun, sent in parts, finished and looked at."""
    parts = ceil(size_bytes / machine.part_bytes)
    return 1 if parts <= 1 else parts + 3


def _objects(tiered: Sequence[Load], every_s: float) -> list[tuple[float, float]]:
    """(how many, bytes of each) of one cut."""
    made: list[tuple[float, float]] = []
    shared: dict[str, tuple[float, int]] = {}
    for load in tiered:
        share = load.bytes_per_s / load.partitions * every_s
        if share >= LARGE_BYTES:
            parts = ceil(share / load.segment_bytes)
            made.append((load.partitions * parts, share / parts))
        else:
            size, partitions = shared.get(load.kind, (0.0, 0))
            shared[load.kind] = size + share * load.partitions, partitions + load.partitions
    for size, partitions in shared.values():
        count = max(ceil(size / SHARED_BYTES), ceil(partitions / JOB_PARTITIONS))
        made.append((count, size / count))
    return made


def _merged(size_bytes: float) -> float:
    """What a merge of segments of this size makes, on average: it takes in what earlier merges
    made until that is not small any more. 0: these are not merged, since a partition never lies in
    too many of them."""
    step = SEGMENTS_PER_GIB * size_bytes
    if step >= 1 << 30:
        return 0.0
    steps = max(1, ceil(SMALL_BYTES / step))
    return step * (steps + 1) / 2


def _rounds(tiered: Sequence[Load], every_s: float) -> int:
    """Moments at which objects of one cut are uploaded: at once, or when their lag is near."""
    sizes = {load.kind: 0.0 for load in tiered}
    for load in tiered:
        sizes[load.kind] += load.bytes_per_s * every_s
    moments = set()
    for load in tiered:
        share = load.bytes_per_s / load.partitions * every_s
        size = share if share >= LARGE_BYTES else min(sizes[load.kind], SHARED_BYTES)
        moments.add(load.lag_ms if size < load.min_bytes else 0)
    return len(moments)


def _stored(tiered: Sequence[Load]) -> float:
    if any(load.retention_ms < 0 for load in tiered):
        return -1.0
    return sum(load.bytes_per_s * load.retention_ms / 1000 for load in tiered)


def _priced(found: Estimate, machine: Machine, prices: Prices) -> Estimate:
    down = machine.read_bytes_per_s * DAY_S
    daily = prices.of_requests({"PUT": found.puts, "GET": found.gets})
    stored = found.stored_bytes
    if stored < 0:  # what the first month brings, half of it on average
        stored = found.up_bytes * MONTH_DAYS / 2
    return replace(
        found,
        requests_cost=daily * MONTH_DAYS,
        transfer_cost=prices.of_transfer(found.up_bytes, down) * MONTH_DAYS,
        storage_cost=stored / GIGABYTE * prices.gb_month,
    )
