"""Choose the small segments to merge: size-tiered, so that no byte is written again and again.
Pure.

One plan for local segments and for objects of the remote tier. The small segments of one retention
class, in the order in which they were cut, wait until there are enough of them:

- together they have `target_bytes`: the oldest of them become one segment that is never merged
  again;
- there are as many as the class may have (`max_small`): those that were never merged become one,
  or, if most of them were merged once, those do. So the result of the last merge is left alone
  until there are many like it;
- nothing more can join them (their time span is full, or they are `IDLE_MS` old): they become one.

A byte is written once more if so many cuts make a target, else twice more. Three times happens only
where thousands of cuts make less than `TWICE_BYTES`: traffic of some hundred bytes a second.

A merged segment expires as a whole. So that no record outlives its retention by more than an eighth
of it, no longer span is merged; segments that expire soon are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kafkawire.log.segments.store.grouping import is_tiered, least_retention_ms

MIB = 1 << 20
MAX_SMALL = 112
"""Most small segments of a class that has a GiB or less, and inputs of one merge: with the 64 to 85
in a GiB that merges write, fewer than 200."""
MAX_INPUTS = 448
"""The same for a class of any size: an input takes a file handle while it is merged."""
WHOLE_PART = 0.75
"""A segment with this part of its target size is not merged again."""
MIN_INPUTS = 4
"""Least inputs of a merge to which no more segments will be added."""
MIN_GROWTH = 2.0
"""The total size of such a merge, in multiples of its largest input, at least."""
TWICE_BYTES = 4 * MIB
"""Size from which a segment merged twice is not merged again: 256 in a GiB, and no byte written
again."""
IDLE_MS = 3_600_000
"""When no segment of a class was cut for so long, no more are expected."""
INDEX_BYTES = 128 << 10
"""Usual bytes of a merged object in addition to its batches."""
SPANS = 8
"""Least number of merged segments in a retention time."""


class MergeCandidate(NamedTuple):
    """One segment: its needed bytes, when its newest part was cut (ms), and how often its bytes
    were merged."""

    id: int
    size_bytes: int
    made_ms: int
    merges: int = 0


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The size from which on a newly cut segment is never merged, the largest result of a merge,
    and its longest time span (ms)."""

    small_bytes: int
    target_bytes: int
    span_ms: int
    retention_ms: int

    def is_small(self, item: MergeCandidate) -> bool:
        """Return whether a segment is to be merged."""
        if item.merges == 0:
            return item.size_bytes < self.small_bytes
        whole = WHOLE_PART * self.target_bytes
        return item.size_bytes < (whole if item.merges == 1 else min(whole, TWICE_BYTES))


@lru_cache(maxsize=256)
def limits_of(kind: str) -> MergeLimits:
    """Return the limits of a retention class.

    An object of up to 16 MiB (`tier.part.bytes`) is one request to write, and below 6 MiB more than
    170 are in a GiB. A file costs a handle and a row in memory, and writing it again costs no
    transfer: so files become larger.
    """
    retention_ms = least_retention_ms(kind)
    small, target = (6 * MIB, 16 * MIB - INDEX_BYTES) if is_tiered(kind) else (64 * MIB, 128 * MIB)
    return MergeLimits(small, target, retention_ms // SPANS, retention_ms)


def max_small(class_bytes: int) -> int:
    """Return how many small segments a class of so many bytes may have."""
    return max(MAX_SMALL, min(MAX_INPUTS, MAX_SMALL * class_bytes >> 30))


def next_merge(
    items: Iterable[MergeCandidate], limits: MergeLimits, most: int, now_ms: int
) -> list[MergeCandidate]:
    """Return the segments of one class, oldest first, that are merged now; none if it is too early.
    `most`: how many small ones there may be."""
    oldest_ms = now_ms - limits.retention_ms + limits.span_ms
    small = [item for item in items if limits.is_small(item) and item.made_ms > oldest_ms]
    for run, is_full in _runs(small, limits.span_ms, most, now_ms):
        if sum(item.size_bytes for item in run) >= limits.target_bytes:
            found = _oldest(run, limits.target_bytes)
        elif len(run) >= most:
            found = _one_level(run)
        else:
            found = _rest(run) if is_full else []
        if found:
            return found
    return []


def _runs(
    small: Sequence[MergeCandidate], span_ms: int, most: int, now_ms: int
) -> Iterator[tuple[Sequence[MergeCandidate], bool]]:
    """Yield (run, whether nothing more can join it) of segments that may become one."""
    start = 0
    for at in range(1, len(small) + 1):
        full = at < len(small) and small[at].made_ms - small[start].made_ms > span_ms
        if full or at == len(small) or at - start == most:
            idle = small[at - 1].made_ms + min(IDLE_MS, span_ms) < now_ms
            yield small[start:at], full or idle
            start = at


def _oldest(run: Sequence[MergeCandidate], target_bytes: int) -> list[MergeCandidate]:
    """Return the oldest that together are at most a target; one that fits with none of its
    neighbours is skipped."""
    found: list[MergeCandidate] = []
    total = 0
    for item in run:
        if total + item.size_bytes > target_bytes:
            if len(found) > 1:
                return found
            found, total = [], 0
        found.append(item)
        total += item.size_bytes
    return found if len(found) > 1 else []


def _one_level(run: Sequence[MergeCandidate]) -> list[MergeCandidate]:
    """Return of too many the newest that were merged least, if they are half of those not above the
    next level: else that level is full."""
    never, once = _suffix(run, 0), _suffix(run, 1)
    if 2 * len(never) >= len(once) >= 2 * MIN_INPUTS:
        return never
    return once if 2 * len(once) >= len(run) else list(run)


def _suffix(run: Sequence[MergeCandidate], merges: int) -> list[MergeCandidate]:
    """Return the newest that were merged at most so often, without a gap."""
    start = len(run)
    while start and run[start - 1].merges <= merges:
        start -= 1
    return list(run[start:])


def _rest(run: Sequence[MergeCandidate]) -> list[MergeCandidate]:
    """Return the plan for a run that no other segment can join."""
    for found in (list(run), _suffix(run, 1), _suffix(run, 0)):
        if len(found) >= MIN_INPUTS and _growth(found) >= MIN_GROWTH:
            return found
    return []


def _growth(run: Sequence[MergeCandidate]) -> float:
    return sum(item.size_bytes for item in run) / max(1, *(item.size_bytes for item in run))
