"""Damaged ranges of the journals in offsets of a partition, and the bytes that are left of them.

A gap between two rows of a partition's index, or between its last row and its next offset, means
that acknowledged bytes are damaged there (kafkawire.log.partition.hot_index). Readers that need
everything that is left, such as the coordinators of groups, continue after the gap. Shell; called
by kafkawire.groups.load, and by kafkawire.log.manager to name the offsets of a missing journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafkawire.log.journal.file import Pins
from kafkawire.log.journal.format import HEAD_BYTES
from kafkawire.log.journal.losses import Loss
from kafkawire.offsets.catalog.port import SegmentCatalog

if TYPE_CHECKING:
    from kafkawire.log.partition.state import AppendLog, LoadedPartition

Range = tuple[int, int]
"""Offsets [first, end) of a partition."""
PARTITIONS_AT_ONCE = 1000
"""Partitions read in one round trip to the storage."""


def holes(partition: LoadedPartition) -> list[Range]:
    """Return the damaged ranges of a partition in memory, as far as its index rows and journal
    extents show them."""
    rows, extents = partition.rows, partition.journal_extents
    evicted = partition.evicted
    # Evicted rows first: they are older than those in memory. Only the extents show them.
    ranges = list(zip(extents.first[:evicted], extents.end[:evicted], strict=True))
    ranges += [(base, base + count) for base, count in zip(rows.base, rows.count, strict=True)]
    start = max(partition.cut_offset, partition.log_start)
    return list(find_uncovered(start, partition.next_offset, ranges))


def lacks_rows(partition: LoadedPartition) -> bool:
    """Return whether a partition in memory has no row for offsets between its last segment and its
    journals, as `holes` but without a list."""
    extents, rows, first = partition.journal_extents, partition.rows, partition.next_offset
    if partition.evicted:
        first = extents.first[0]
    elif len(rows.base):
        first = rows.base[0]
    return first > max(partition.cut_offset, partition.log_start)


async def lost_ranges(
    numbers: Iterable[int], partitions: Mapping[int, LoadedPartition], storage: SegmentCatalog
) -> list[Loss]:
    """Return offsets that were assigned and are stored nowhere. `partitions` are those in memory;
    the journals contain nothing of the others. Raises what the storage raises."""
    losses: list[Loss] = []
    absent: list[int] = []
    for number in numbers:
        if number in partitions:
            losses += [Loss(number, *part) for part in holes(partitions[number])]
        else:
            absent.append(number)
    for at in range(0, len(absent), PARTITIONS_AT_ONCE):
        for row in await storage.load_partitions(absent[at : at + PARTITIONS_AT_ONCE]):
            if row.checkpoint is None:
                continue
            # The journals contain nothing of it: its offsets end where its segments do.
            start = max([row.checkpoint.log_start, *(one.end_offset for one in row.mappings)])
            if row.checkpoint.next_offset > start:
                losses.append(Loss(row.number, start, row.checkpoint.next_offset))
    return losses


async def damaged_payloads(log: AppendLog, number: int, first: int, last: int) -> list[bytes]:
    """Read what is left of the damaged frames that held offsets [first, last) of a partition.

    Their content cannot be trusted. Raises OSError."""
    payloads: list[bytes] = []
    for loss in log.losses:
        journal = log.journals.by_number.get(loss.journal)
        if loss.number != number or journal is None or not first <= loss.first < last:
            continue
        pins = Pins()
        pins.add(journal)
        try:
            span = loss.start + HEAD_BYTES, loss.end - loss.start - HEAD_BYTES
            payloads += await log.env.offload.submit("read", journal.read, log.env.fs, [span])
        finally:
            pins.release()
    return payloads


def find_uncovered(start: int, end: int, ranges: Iterable[Range]) -> Iterable[Range]:
    """Yield the parts of [start, end) covered by none of the ranges, which are sorted by first
    offset."""
    for first, after in ranges:
        if start >= end:
            return
        if first > start:
            yield start, min(first, end)
        start = max(start, after)
    if start < end:
        yield start, end
