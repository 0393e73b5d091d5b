"""The borders of a partition: its log start, and the cut between its segments and its journals.

Moving one removes, in one step, what is on the wrong side of it: index rows, journal extents,
segment rows. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.offsets.catalog.port import SegmentRange

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition


def move_log_start(partition: LoadedPartition, offset: int) -> list[int]:
    """Forget what is below a new log start; return the numbers of the rolled journals that contain
    nothing of this partition any more."""
    assert partition.log_start <= offset <= partition.next_offset, (
        "the log start moves within the log"
    )
    # SQL has the new border already.
    partition.log_start = offset
    # Never below the log start, even if an open transaction is.
    partition.last_stable_offset = max(partition.last_stable_offset, offset)
    segments = partition.segments
    if gone := segments.find(offset):
        partition.size_bytes -= segments.drop_front(gone)
        # Rows below the log start are deleted from SQL later.
        partition.log.trimmed[partition.number] = offset
    numbers = drop_journals(partition, offset)
    # Kafka keeps the epoch of the log start itself.
    while len(partition.epochs) > 1 and partition.epochs[1][1] <= offset:
        partition.epochs.pop(0)
    partition.mark_dirty()
    partition.notify_watchers()
    return numbers


def cut(partition: LoadedPartition, mappings: Sequence[SegmentRange]) -> list[int]:
    """Add the rows of new segments after the existing ones, and forget their batches in the
    journals; return the numbers of the rolled journals that contain nothing of this partition any
    more."""
    known = max(partition.log_start, partition.cut_offset)
    # Not those below a log start that moved meanwhile, nor those that the partition has since it
    # was loaded after the transaction.
    living = [row for row in mappings if row.end_offset > known]
    if not living:
        return []
    segments = partition.segments
    segments.splice(len(segments), len(segments), living)
    partition.cut_offset = living[-1].end_offset
    partition.size_bytes += sum(row.length for row in living)
    return drop_journals(partition, partition.cut_offset)


def replace(
    partition: LoadedPartition, added: Sequence[SegmentRange], removed: Sequence[SegmentRange]
) -> None:
    """Replace rows by rewritten ones of the same offsets."""
    segments = partition.segments
    old = {(row.base_offset, row.segment_id) for row in removed}
    indexes = [
        at for at in range(len(segments)) if (segments.base[at], segments.segment[at]) in old
    ]
    # The log start may have moved meanwhile.
    living = [row for row in added if row.end_offset > partition.log_start]
    if not indexes:
        return
    start, stop = indexes[0], indexes[-1] + 1
    before = sum(segments.length[start:stop])
    segments.splice(start, stop, living)
    partition.size_bytes += sum(row.length for row in living) - before


def drop_journals(partition: LoadedPartition, offset: int) -> list[int]:
    """Forget the batches in the journals below an offset; return the numbers of the journals that
    contain nothing of this partition any more."""
    if (transactions := partition.producers.transactions) is not None:
        # Aborted transactions that end below the cut are in the state of segments.
        transactions.aborted.drop_below(max(partition.cut_offset, partition.log_start))
    extents = partition.journal_extents
    gone = extents.below(offset)
    # Rows in memory are counted below; extents count only where rows are evicted.
    partition.size_bytes -= sum(extents.size[: min(gone, partition.evicted)])
    partition.evicted = max(0, partition.evicted - gone)
    numbers = extents.remove_oldest(gone)
    rows = partition.rows
    row = rows.find(offset)
    if row >= 0:
        # A row with the offset in its middle stays: readers skip its first batches.
        dead = row + 1 if rows.end_offset(row) <= offset else row
        partition.size_bytes -= sum(rows.length[:dead])
        rows.drop_front(dead)
    return numbers
