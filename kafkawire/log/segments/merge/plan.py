"""Plan of a merge: pure decisions over segment rows and mappings.

Segments are merged when more than half of one is dead, when bytes of a deleted topic have stayed
long enough, and when many small ones become one (chosen by kafkawire.log.segments.merge.levels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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

    def removed(self, without: Iterable[int] = ()) -> list[SegmentRange]:
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
    have together at most `most_of(number)` bytes. So nothing of an input is left out. Inputs
    without mappings are left out: their outcome is not known yet.

    A generator, so that the event loop may run between its steps: the last value is the plan, those
    before it are None.
    """
    by_number: dict[int, list[SegmentRange]] = {}
    for done, mapping in enumerate(mappings, 1):
        by_number.setdefault(mapping.number, []).append(mapping)
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    needed = {mapping.segment_id for part in by_number.values() for mapping in part}
    longest: list[SegmentRange] = max(by_number.values(), key=len, default=[])
    inputs = _in_order([row for row in inputs if row.id in needed], longest)
    order = {row.id: at for at, row in enumerate(inputs)}
    first = [0] * len(inputs)  # the first possible input of a run that ends here
    for done, number in enumerate(sorted(by_number), 1):
        part = by_number[number]
        part.sort(key=lambda mapping: order[mapping.segment_id])
        _bound(part, order, first, most_of(number))
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
    """Sort the inputs so that those of one partition are in the order of its offsets: after a
    restart the order in which they were cut is not certain."""
    ids = [row.segment_id for row in sorted(part, key=lambda row: row.base_offset)]
    by_id = {row.id: row for row in inputs}
    wanted, known = iter(ids), set(ids)
    return [by_id[next(wanted)] if row.id in known else row for row in inputs]


def _bound(part: list[SegmentRange], order: dict[int, int], first: list[int], most: int) -> None:
    """Return the limit that one partition sets on inputs that can be merged together."""
    low = size = 0
    for at, mapping in enumerate(part):
        size += mapping.length
        if at and part[at - 1].end_offset != mapping.base_offset:
            low, size = at, mapping.length
        while low < at and size > most:
            size -= part[low].length
            low += 1
        if low:
            rank = order[mapping.segment_id]
            first[rank] = max(first[rank], order[part[low - 1].segment_id] + 1)


def _longest(first: Sequence[int]) -> tuple[int, int]:
    """Return the longest [start, stop) of which no input needs a later start; the oldest of
    them."""
    best, begin = (0, 0), 0
    for at, least in enumerate(first):
        begin = max(begin, least)
        if at + 1 - begin > best[1] - best[0]:
            best = begin, at + 1
    return best
