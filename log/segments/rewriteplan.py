"""What a rewrite takes: pure decisions over segment rows and mappings.

Segments are rewritten when more than half of one is dead, when bytes of a deleted topic have stayed
long enough, and when a partition lies in too many of them. Merged are only segments of the same
class, and only small ones, so that what is large is not written again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Map
from dataclasses import dataclass, field

from log.segments.rows import SegmentRows
from offsets.storage import LIVE, Mapping, SegmentRow

SEGMENTS_PER_GIB = 32
SMALL_BYTES = 64 << 20
"""Segments below this are merged."""
MERGED_BYTES = 512 << 20
"""The most bytes of one rewrite: seconds of the worker's time, and little room on a full disk."""
MERGED_AT_MOST = 64
"""Inputs of one rewrite: a handle each."""
MERGED_MAPPINGS = 20_000
"""Mappings of one rewrite, but for those of its first two inputs: what one transaction takes."""
MAPPINGS_PER_STEP = 500
"""Mappings looked at between two turns of the loop: a millisecond."""


def is_half_dead(row: SegmentRow, payload_bytes: int) -> bool:
    """Whether more than half of a segment's batches is no longer needed."""
    return row.state == LIVE and 0 < 2 * row.live_bytes < payload_bytes


def too_many(rows: SegmentRows) -> bool:
    """Whether a partition lies in more segments than its bytes need."""
    return len(rows) > SEGMENTS_PER_GIB * max(1, sum(rows.length) >> 30)


def mergeable(rows: SegmentRows, by_id: Map[int, SegmentRow]) -> list[int]:
    """The longest run of a partition's small segments of one class, oldest first; fewer than two
    are none."""
    best: list[int] = []
    run: list[int] = []
    size, kind = 0, ""
    for segment_id in rows.segment:
        row = by_id.get(segment_id)
        small = row is not None and row.state == LIVE and row.live_bytes < SMALL_BYTES
        if row is None or not small:
            run = []
            continue
        if (
            row.retention_class != kind
            or size + row.live_bytes > MERGED_BYTES
            or len(run) == MERGED_AT_MOST
        ):
            run, size, kind = [], 0, row.retention_class
        run = [*run, segment_id]
        size += row.live_bytes
        if len(run) > len(best):
            best = run
    return best if len(best) > 1 else []


@dataclass(slots=True)
class Rewrite:
    """One rewrite: inputs in order, and by partition the mappings whose range becomes one."""

    inputs: list[SegmentRow]
    parts: dict[int, list[Mapping]] = field(default_factory=dict)

    def removed(self, without: Iterable[int] = ()) -> list[Mapping]:
        """The mappings the output stands for, but for partitions that are left out."""
        left_out = set(without)
        return [
            mapping
            for number, part in self.parts.items()
            if number not in left_out
            for mapping in part
        ]


def plan_rewrite(
    inputs: Sequence[SegmentRow], mappings: Iterable[Mapping]
) -> Iterator[Rewrite | None]:
    """Of each partition the longest run of its mappings that join, in the order of the inputs.

    What does not join stays where it is, and its segment with it. A generator, so that the loop
    may run between its steps: the last value is the plan, those before it are None.
    """
    order = {row.id: at for at, row in enumerate(inputs)}
    by_number: dict[int, list[Mapping]] = {}
    for done, mapping in enumerate(mappings, 1):
        by_number.setdefault(mapping.number, []).append(mapping)
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    rewrite = Rewrite(list(inputs))
    for done, number in enumerate(sorted(by_number), 1):
        part = sorted(by_number[number], key=lambda mapping: order[mapping.segment_id])
        rewrite.parts[number] = _longest_run(part)
        if done % MAPPINGS_PER_STEP == 0:
            yield None
    yield rewrite


def _longest_run(part: list[Mapping]) -> list[Mapping]:
    best: list[Mapping] = []
    run: list[Mapping] = []
    for mapping in part:
        if run and run[-1].end_offset != mapping.base_offset:
            run = []
        run.append(mapping)
        if len(run) > len(best):
            best = list(run)
    return best
