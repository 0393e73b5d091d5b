"""Damaged ranges of the journals as readers meet them: where one ends, and the bytes left of it.

A hole between two rows of a partition's index, or between its last row and its next offset, means
that acknowledged bytes are damaged there (kafkawire.log.partition.hot_index). Who has to read
everything that is left, as the coordinators of groups, goes on after the hole. Shell; called by
kafkawire.groups.load, and by kafkawire.log.manager to name what a journal that is missing took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafkawire.log.journal.file import Pins
from kafkawire.log.journal.format import HEAD_BYTES
from kafkawire.log.journal.losses import Loss
from kafkawire.offsets.catalog.port import SegmentCatalog

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

Range = tuple[int, int]
"""Offsets [first, end) of a partition."""
PARTITIONS_AT_ONCE = 1000
"""Of one round trip to the storage."""


def holes(partition: Partition) -> list[Range]:
    """The damaged ranges of the journals that a partition in memory has, as far as rows in memory
    and shares of journals tell."""
    rows, portions = partition.rows, partition.portions
    evicted = partition.evicted
    ranges = list(zip(portions.first[:evicted], portions.end[:evicted], strict=True))
    ranges += [(base, base + count) for base, count in zip(rows.base, rows.count, strict=True)]
    start = max(partition.cut_offset, partition.log_start)
    return list(uncovered(start, partition.next_offset, ranges))


async def lost_ranges(
    numbers: Iterable[int], partitions: Mapping[int, Partition], storage: SegmentCatalog
) -> list[Loss]:
    """Offsets that lie nowhere though they were assigned. `partitions` are those in memory; of the
    others the journals hold nothing. Raises what the storage raises."""
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
            start = max([row.checkpoint.log_start, *(one.end_offset for one in row.mappings)])
            if row.checkpoint.next_offset > start:
                losses.append(Loss(row.number, start, row.checkpoint.next_offset))
    return losses


async def damaged_payloads(log: CommitLog, number: int, first: int, last: int) -> list[bytes]:
    """Read what is left of the damaged frames that held offsets [first, last) of a partition.

    Nothing in them may be trusted. Raises OSError."""
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


def uncovered(start: int, end: int, ranges: Iterable[Range]) -> Iterable[Range]:
    """The parts of [start, end) covered by none of the ranges, which are sorted by first offset."""
    for first, after in ranges:
        if start >= end:
            return
        if first > start:
            yield start, min(first, end)
        start = max(start, after)
    if start < end:
        yield start, end
