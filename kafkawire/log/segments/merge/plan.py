"""Plans of merges: which segments are rewritten into one. Pure decisions over rows and mappings.

Segments are merged when more than half of one is dead, when bytes of a deleted topic have stayed
long enough, and when many small ones become one: `next_merge`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kafkawire.log.segments.store.grouping import is_tiered, least_retention_ms
from kafkawire.offsets.catalog.port import EVERYTHING, LIVE, SegmentRange, SegmentRow

MAX_MAPPINGS = 40_000
"""Mappings of one merge, except those of its first two inputs: the size of one transaction."""
MAPPINGS_PER_STEP = 500
"""Mappings checked between two iterations of the event loop: a millisecond."""


def is_half_dead(row: SegmentRow, payload_bytes: int) -> bool:
    """Return whether more than half of a segment's batches is no longer needed."""
    return row.state == LIVE and 0 < 2 * row.live_bytes < payload_bytes


def no_limit(_: int) -> int:
    """Set no limit on the bytes of a partition in a segment."""
    return EVERYTHING


@dataclass(slots=True)
class Rewrite:
    """One merge: inputs in order, and by partition the mappings whose range becomes one."""

    inputs: list[SegmentRow]
    parts: dict[int, list[SegmentRange]] = field(default_factory=dict)

    def list_replaced(self, without: Iterable[int] = ()) -> list[SegmentRange]:
        """Return the mappings that the output replaces, except for partitions that are left out."""
        left_out = set(without)
        return [
            mapping
            for number, part in self.parts.items()
            if number not in left_out
            for mapping in part
        ]


def plan_rewrite(
    inputs: Sequence[SegmentRow],
    mappings: Iterable[SegmentRange],
    most_of: Callable[[int], int] = no_limit,
) -> Iterator[Rewrite | None]:
    """Find the longest run of the inputs in which the mappings of every partition are adjacent, and
    have together at most `most_of(number)` bytes.

    A generator, so that the event loop may run between its steps: the last value is the plan, those
    before it are None.
    """
    by_number: dict[int, list[SegmentRange]] = {}
    for done, mapping in enumerate(mappings, 1):
        by_number.setdefault(mapping.number, []).append(mapping)
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    # Inputs without mappings are left out: their outcome is not known yet.
    needed = {mapping.segment_id for part in by_number.values() for mapping in part}
    # The partition in most inputs determines their order.
    longest: list[SegmentRange] = max(by_number.values(), key=len, default=[])
    inputs = _in_order([row for row in inputs if row.id in needed], longest)
    order = {row.id: at for at, row in enumerate(inputs)}
    first = [0] * len(inputs)  # the first possible input of a run that ends here
    for done, number in enumerate(sorted(by_number), 1):
        part = by_number[number]
        part.sort(key=lambda mapping: order[mapping.segment_id])
        _limit_by_partition(part, order, first, most_of(number))
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    start, stop = _longest(first)
    rewrite = Rewrite(list(inputs[start:stop]))
    for done, number in enumerate(sorted(by_number), 1):
        part = [row for row in by_number[number] if start <= order[row.segment_id] < stop]
        if part:
            rewrite.parts[number] = part
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    yield rewrite


def _in_order(inputs: Sequence[SegmentRow], part: Iterable[SegmentRange]) -> list[SegmentRow]:
    """Sort the inputs so that those of one partition are in the order of its offsets."""
    ids = [row.segment_id for row in sorted(part, key=lambda row: row.base_offset)]
    by_id = {row.id: row for row in inputs}
    # After a restart the order in which they were cut is not certain.
    wanted, known = iter(ids), set(ids)
    return [by_id[next(wanted)] if row.id in known else row for row in inputs]


def _limit_by_partition(
    part: list[SegmentRange], order: dict[int, int], first: list[int], most: int
) -> None:
    """Raise the limits `first` by what one partition sets on inputs that are merged together."""
    low = size = 0
    for at, mapping in enumerate(part):
        size += mapping.length
        # A gap: what is before cannot be in one segment with this.
        if at and part[at - 1].end_offset != mapping.base_offset:
            low, size = at, mapping.length
        # Too large: a later beginning leaves out the oldest.
        while low < at and size > most:
            size -= part[low].length
            low += 1
        if low:
            rank = order[mapping.segment_id]
            # A run with this input begins after the last one that cannot join it.
            first[rank] = max(first[rank], order[part[low - 1].segment_id] + 1)


def _longest(first: Sequence[int]) -> tuple[int, int]:
    """Return the longest [start, stop) of which no input needs a later start; the oldest of
    them."""
    best, begin = (0, 0), 0
    for at, least in enumerate(first):
        # A run that includes `at` must not begin before `least`.
        begin = max(begin, least)
        if at + 1 - begin > best[1] - best[0]:
            best = begin, at + 1
    return best


# Merges of small segments are size-tiered, so that no byte is written again and again: one plan for
# local segments and for objects of the remote tier. The small segments of one retention class, in
# the order in which they were cut, wait until there are enough of them:
#
# - together they have `target_bytes`: the oldest of them become one segment that is never merged
#   again;
# - there are as many as the class may have (`max_small`): those that were never merged become one,
#   or, if most of them were merged once, those do. So the result of the last merge is left alone
#   until there are many like it;
# - nothing more can join them (their time span is full, or they are `IDLE_MS` old): they become
#   one.
#
# A byte is written once more if so many cuts make a target, else twice more. Three times happens
# only where thousands of cuts make less than `TWICE_BYTES`: traffic of some hundred bytes a second.
#
# A merged segment expires as a whole. So that no record outlives its retention by more than an
# eighth of it, no longer span is merged; segments that expire soon are left alone.

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
    """Return the limits of a retention class."""
    retention_ms = least_retention_ms(kind)
    # An object of up to 16 MiB (`tier.part.bytes`) is one request to write, and below 6 MiB more
    # than 170 are in a GiB. A file costs a handle and a row in memory, and writing it again costs
    # no transfer: so files become larger.
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
    # Segments that expire soon are left alone.
    oldest_ms = now_ms - limits.retention_ms + limits.span_ms
    small = [item for item in items if limits.is_small(item) and item.made_ms > oldest_ms]
    for run, is_full in _runs(small, limits.span_ms, most, now_ms):
        # Enough for a target: never merged again.
        if sum(item.size_bytes for item in run) >= limits.target_bytes:
            found = _oldest(run, limits.target_bytes)
        # Too many, of which only one level is written again.
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
            # Nothing was cut for long: no more are expected.
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
            # At least two, or the merge would change nothing.
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
    # Half or more were never merged: the level above is not full yet.
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
    # All, or only those that were merged less: the growth must be worth it.
    for found in (list(run), _suffix(run, 1), _suffix(run, 0)):
        if len(found) >= MIN_INPUTS and _growth(found) >= MIN_GROWTH:
            return found
    return []


def _growth(run: Sequence[MergeCandidate]) -> float:
    return sum(item.size_bytes for item in run) / max(1, *(item.size_bytes for item in run))
