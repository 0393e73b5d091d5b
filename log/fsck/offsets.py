"""Every offset from log start to log end must lie somewhere: in a segment below the cut, in a
journal above it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from log.fsck.journals import Range
from offsets.storage import Mapping, PartitionRow


def missing(
    row: PartitionRow, usable: set[int], held: Sequence[Range], next_named: int
) -> list[Range]:
    """The offset ranges of a partition that are nowhere.

    `usable`: segments whose files are there; `held`: its ranges in the journals; `next_named`: the
    next offset its naming frames know. A range that the journals hold beside a segment is no
    matter: readers take the segment's.
    """
    checkpoint = row.checkpoint
    start = checkpoint.log_start if checkpoint is not None else 0
    living = [mapping for mapping in row.mappings if mapping.end_offset > start]
    cut = living[-1].end_offset if living else start
    ends = [cut, next_named, *(end for _, end in held)]
    if checkpoint is not None:
        ends.append(checkpoint.next_offset)
    holes = list(uncovered(start, cut, _covered(living, usable)))
    return holes + list(uncovered(cut, max(ends), sorted(held)))


def _covered(living: Iterable[Mapping], usable: set[int]) -> list[Range]:
    return [(m.base_offset, m.end_offset) for m in living if m.segment_id in usable]


def uncovered(start: int, end: int, ranges: Iterable[Range]) -> Iterable[Range]:
    """What of [start, end) is in none of the ranges, which rise by their first offsets."""
    for first, after in ranges:
        if start >= end:
            return
        if first > start:
            yield start, min(first, end)
        start = max(start, after)
    if start < end:
        yield start, end
