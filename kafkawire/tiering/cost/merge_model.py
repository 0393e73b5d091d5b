"""Closed-form model of kafkawire.log.segments.merge.plan for even traffic.
Pure.

Used by `kafkawire tier estimate`; a test compares it with the merge plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kafkawire.log.segments.merge.plan import (
    MIN_INPUTS,
    TWICE_BYTES,
    WHOLE_PART,
    MergeLimits,
    max_small,
)
from kafkawire.tiering.cost.prices import Prices

UNENDING_S = 30 * 86_400.0
"""Assumed age of records of a class with unlimited retention."""


@dataclass(frozen=True, slots=True)
class Merges:
    """Merges of one kind: their number per cut, and the segments and bytes of each."""

    per_cut: float
    inputs: float
    size_bytes: float


def merges_of(
    size_bytes: float, every_s: float, limits: MergeLimits, kept_s: float
) -> list[Merges]:
    """Return the merges of a class that gets a segment of `size_bytes` every `every_s` and keeps it
    for `kept_s`: first those of cut segments, then those of their results."""
    if size_bytes >= limits.small_bytes or size_bytes <= 0 or every_s <= 0:
        return []
    most = max_small(int(size_bytes * min(kept_s, UNENDING_S) / every_s))
    wanted = int(limits.target_bytes // size_bytes)
    if limits.span_ms:
        wanted = min(wanted, int(limits.span_ms / 1000 / every_s) + 1)
    if wanted <= most:
        return [_once(wanted, size_bytes)] if wanted >= min(MIN_INPUTS, 2) else []
    if most * size_bytes >= WHOLE_PART * limits.target_bytes:
        return [_once(most, size_bytes)]
    return _twice(wanted, most, size_bytes, limits)


def _once(inputs: int, size_bytes: float) -> Merges:
    return Merges(1 / inputs, inputs, inputs * size_bytes)


def _twice(wanted: int, most: int, size_bytes: float, limits: MergeLimits) -> list[Merges]:
    """First-level merges take the segments cut since the last merge; their results are merged again
    once they reach a target or half of the maximum."""
    firsts = taken = 0
    while taken + most - firsts < wanted and firsts < most // 2:
        taken += most - firsts
        firsts += 1
    total = min(wanted, taken + most - firsts)
    inputs = firsts + total - taken
    found = [
        Merges(firsts / total, taken / firsts, taken / firsts * size_bytes),
        Merges(1 / total, inputs, total * size_bytes),
    ]
    if total < wanted and total * size_bytes < min(TWICE_BYTES, limits.target_bytes):
        more = max(2, min(most // 2, ceil(limits.target_bytes / (total * size_bytes))))
        found.append(Merges(1 / total / more, more, more * total * size_bytes))
    return found


# Decide whether merging objects of the remote tier saves money. Pure.
#
# A merge reads objects without a local file once and writes the result once. It saves read
# requests, since every reader needs two per object, for its index and its data. At Amazon S3's list
# prices merging three objects into one saves money; where egress is charged, merges rarely do, and
# objects stay small. At zero prices every merge is worth it.


READS = 4
"""How often an object is read in its lifetime: by late consumers, Spark, scrubs, restores."""
REQUESTS_PER_READ = 2


def puts_of(size_bytes: float, part_bytes: int) -> int:
    """Requests to write one object: multipart create, parts, complete, check."""
    parts = ceil(size_bytes / part_bytes)
    return 1 if parts <= 1 else parts + 3


def pays(
    objects: int, size_bytes: int, fetched: int, fetched_bytes: int, part_bytes: int, prices: Prices
) -> bool:
    """Return whether one object of `size_bytes` saves more than reading the `fetched` objects
    without a local file (`fetched_bytes`) costs."""
    requests = {"GET": fetched, "PUT": puts_of(size_bytes, part_bytes), "DELETE": objects}
    price = prices.of_requests(requests) + prices.of_transfer(size_bytes, fetched_bytes)
    return price <= prices.of_requests({"GET": READS * REQUESTS_PER_READ * (objects - 1)})
