"""Check that every offset from log start to log end is stored: in a segment below the cut, in a
journal above it; and how far it is tiered. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkawire.log.partition.damaged_ranges import Range, find_uncovered
from kafkawire.offsets.catalog.port import PartitionRow, SegmentRange


def find_missing(
    row: PartitionRow, usable: set[int], held: Sequence[Range], next_offset: int
) -> list[Range]:
    """Return the offset ranges of a partition that are stored nowhere.

    `usable`: segments whose files exist; `held`: its ranges in the journals; `next_offset`: its
    next offset.
    """
    checkpoint = row.checkpoint
    start = checkpoint.log_start if checkpoint is not None else 0
    living = [mapping for mapping in row.mappings if mapping.end_offset > start]
    cut = cut_end(row)
    # Below the cut without the journals: readers use the segment, also if a journal has the range.
    holes = list(find_uncovered(start, cut, _list_covered(living, usable)))
    return holes + list(find_uncovered(cut, max(cut, next_offset), sorted(held)))


def cut_end(row: PartitionRow) -> int:
    """Return where the segments of a partition end: offsets from here on are in the journals."""
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    return max(start, row.mappings[-1].end_offset) if row.mappings else start


def stored_end(row: PartitionRow) -> int:
    checkpoint = row.checkpoint
    ends = [mapping.end_offset for mapping in row.mappings]
    return max([0, *ends]) if checkpoint is None else max([checkpoint.next_offset, *ends])


def _list_covered(living: Iterable[SegmentRange], usable: set[int]) -> list[Range]:
    return [(m.base_offset, m.end_offset) for m in living if m.segment_id in usable]


def find_beyond(row: PartitionRow) -> list[str]:
    """Check how far a partition is tiered; return the problems as sentences. Pure."""
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    cut = max([start, *(mapping.end_offset for mapping in row.mappings)])
    problems = []
    if row.dispatch_offset > cut:
        problems.append(
            f"its dispatch offset {row.dispatch_offset} is beyond its segments, which end at {cut}"
        )
    if not 0 <= row.commit_offset <= row.dispatch_offset:
        problems.append(
            f"its commit offset {row.commit_offset} is not between 0 and its dispatch offset, "
            f"{row.dispatch_offset}"
        )
    return problems
