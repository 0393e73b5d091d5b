"""Plan of the next cut: pure decisions over journals and partitions.

Rolled journals are cut oldest first, when everything in them is committed and their index is on the
disk. Of each partition the offsets between its cut offset and the last stable offset are cut; the
rest of a journal waits for a later cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kafkawire.codec.segment.lost import LostRange
from kafkawire.log.journal.file import Journal
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.given_up import skip_given_up
from kafkawire.log.segments.store.grouping import retention_class

JOB_BYTES = 256 << 20
"""Two journals of the usual size: bytes that were read stay in the page cache while they are
sorted."""
JOB_PARTITIONS = 10_000
"""Rows of one transaction: a tenth of a second of SQLite's time."""


@dataclass(slots=True)
class CutShare:
    """The part of a cut that belongs to one partition: offsets [start, end), about so many bytes;
    `kind`: its class; only partitions of one class share a segment."""

    partition: Partition
    start: int
    end: int
    size_bytes: int
    kind: str


def ready(journals: Iterable[Journal], committed: int) -> list[Journal]:
    """Return the rolled journals that may be cut now, oldest first, within a job's bytes."""
    found: list[Journal] = []
    room = JOB_BYTES
    for journal in journals:
        # The first that is not ready ends the plan: partitions are cut in the order of offsets.
        if not journal.rolled or not journal.indexed or journal.end_log_position > committed:
            break
        # Journals without live batches are recycled without a cut.
        if journal.live:
            # At least one, however large.
            if found and journal.end > room:
                break
            found.append(journal)
            room -= journal.end
    return found


def share_of(
    partition: Partition, last_journal: int, given_up: Sequence[LostRange] = ()
) -> CutShare | None:
    """Return the part of a partition in the journals up to `last_journal` that may be cut and fits
    into one segment by its topic's `segment.bytes`; None if there is none. A share ends where
    damage begins that is not in `given_up`."""
    extents = partition.journal_extents
    start = max(partition.cut_offset, partition.log_start)
    # Nothing at or after the last stable offset: the outcome of each transaction in a segment is
    # known when it is written.
    stable = min(partition.high_watermark, partition.last_stable_offset)
    size, end = 0, start
    for at in range(bisect_right(extents.journal, last_journal)):
        more = extents.size[at]
        if extents.end[at] <= start:
            continue
        # At least one extent, even if it is larger.
        if size and size + more > partition.config.segment_bytes:
            break
        # Damage ends the share, unless it is given up.
        whole = _sound_until(partition, end, extents.end[at], given_up)
        end = min(whole, stable)
        size += more
        if end < extents.end[at]:
            break
    # A given-up range at the end of the partition is in no journal: the share takes it.
    if given_up and not _holds_from(partition, end):
        end = max(end, min(skip_given_up(given_up, end), stable))
    # A frame is never divided, since rows are of frames.
    end = _within(partition, start, _frame_border(partition, end))
    if end <= start:
        return None
    return CutShare(partition, start, end, size, retention_class(partition.config))


def _holds_from(partition: Partition, offset: int) -> bool:
    """Return whether the journals contain anything of a partition from an offset on."""
    rows, extents = partition.rows, partition.journal_extents
    if len(rows) and rows.end_offset(len(rows) - 1) > offset:
        return True
    return len(extents) > 0 and extents.end[-1] > offset


def _sound_until(partition: Partition, start: int, end: int, given_up: Sequence[LostRange]) -> int:
    """Return where the first damaged range in [start, end) begins that was not given up, or
    `end`."""
    while True:
        damaged = _whole_until(partition, start, end)
        start = skip_given_up(given_up, damaged)
        # Damage begins at `damaged` and is not given up, or there is none.
        if damaged >= end or start == damaged:
            return damaged
        if start >= end:
            return end


def _whole_until(partition: Partition, start: int, end: int) -> int:
    """Return where the first damaged range in [start, end) begins, according to rows in memory."""
    rows = partition.rows
    if not len(rows) or rows.base[0] > start:
        # Rows that are not in memory: the job finds damage in them.
        return end if partition.evicted else start
    row, stop = rows.find(start), bisect_left(rows.base, end)
    # The usual case: counts add up, so there is no gap.
    if sum(rows.count[row:stop]) == rows.end_offset(stop - 1) - rows.base[row]:
        return max(start, min(end, rows.end_offset(stop - 1)))
    while row + 1 < stop and rows.base[row + 1] == rows.end_offset(row):
        row += 1
    return max(start, rows.end_offset(row))


def _frame_border(partition: Partition, offset: int) -> int:
    """The last offset up to `offset` at which no frame is divided: the last stable offset may lie
    within one, the high watermark never does."""
    rows = partition.rows
    row = rows.find(offset - 1)
    if row >= 0:
        return rows.base[row] if rows.base[row] < offset < rows.end_offset(row) else offset
    extents = partition.journal_extents
    at = extents.find(offset - 1)
    if at < 0 or at >= partition.evicted or extents.end[at] <= offset:
        return offset
    return extents.first[at]  # its rows are not in memory: all of it waits


def _within(partition: Partition, start: int, end: int) -> int:
    """Cut a share at the row with which it would exceed `segment.bytes`."""
    rows = partition.rows
    first, stop = max(0, rows.find(start)), bisect_left(rows.base, end)
    sizes = list(accumulate(rows.length[first:stop]))
    fits = bisect_right(sizes, partition.config.segment_bytes)
    if fits == len(sizes):
        return end
    # At least one row.
    return rows.end_offset(first + max(0, fits - 1))
