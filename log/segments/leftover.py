"""Segment files that no reader uses: what they hold, and whether it is anywhere else.

A cut or rewrite that a crash ended leaves a file whose row says STARTED; what it was made of is
still there, so it can be deleted. Under metadata that is older than the folder the same row may
belong to a file that is the only copy of its records: it is finished, and the offsets in it are
in no other segment and no journal. Such a file is never deleted. Called by log.segments.keeper
and log.fsck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafkawire.codec.segment import FormatError, PartitionEntry
from log.env import FileSystem
from log.segments.files import SegmentFile

if TYPE_CHECKING:
    from log.partition import Partition

Range = tuple[int, int]
MAX_SHOWN = 5
"""Partitions named in one message."""


def entries_of(fs: FileSystem, path: str) -> list[PartitionEntry]:
    """The partitions in a finished segment file; none for a file that is gone or was not
    finished. Raises OSError from the disk; runs in a thread."""
    try:
        file = SegmentFile(fs, path)
    except (FileNotFoundError, FormatError):
        return []
    try:
        return list(file.directory)
    finally:
        file.close()


def unaccounted(
    entries: Iterable[PartitionEntry], held: Callable[[PartitionEntry], list[Range] | None]
) -> list[tuple[PartitionEntry, Range]]:
    """The offset ranges of a segment file that are nowhere else. Pure.

    `held`: the ranges that are elsewhere of a partition, or were deleted on purpose; None: the
    partition's topic was deleted."""
    found = []
    for entry in entries:
        ranges = held(entry)
        if ranges is not None:
            for missing in uncovered(entry.base_offset, entry.end_offset, sorted(ranges)):
                found.append((entry, missing))
    return found


def describe(found: list[tuple[PartitionEntry, Range]]) -> str:
    """The ranges in words: `orders-0 offsets 0-99, orders-1 offsets 3-7`."""
    shown = [
        f"{entry.topic}-{entry.index} offsets {first}-{end - 1}"
        for entry, (first, end) in found[:MAX_SHOWN]
    ]
    more = [f"{len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    return ", ".join(shown + more)


def held_in_memory(partition: Partition) -> list[Range]:
    """The offset ranges of a loaded partition in its segments and journals, and those below its
    log start."""
    segments, portions, rows = partition.segments, partition.portions, partition.rows
    counted = zip(rows.base, rows.count, strict=True)
    return [
        (0, partition.log_start),
        *zip(segments.base, segments.end, strict=True),
        *zip(portions.first, portions.end, strict=True),
        *((base, base + count) for base, count in counted),
    ]


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
