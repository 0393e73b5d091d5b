"""ListOffsets by time: from a timestamp to the first record at or after it.

The running maximum of the index finds the row, the batch heads the batch, and only that batch's
records are decoded. Called by log.partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkawire.codec.batches import iter_batches, records
from log.env import Buffer
from log.plan import Plan

if TYPE_CHECKING:
    from log.partition import Partition

MAX_ROW_BYTES = 1 << 31
"""A row is one MiB or one batch: it is always read whole."""


async def offset_for_time(partition: Partition, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after `timestamp`, or None.

    Looks between log start and high watermark (UnifiedLog.fetchOffsetByTimestamp). Rows that are
    not in memory are looked for portion by portion, in their journals' index files.
    """
    for plan in _candidates(partition, timestamp):
        while plan.offset < partition.high_watermark:
            buffers = await partition.log.read(plan)
            found = _first_since(buffers, timestamp, partition.log_start, partition.high_watermark)
            if found is not None:
                return found
            after = _end_offset(buffers)
            if plan.end <= after or not buffers:
                break
            plan = partition.plan(after, MAX_ROW_BYTES, plan.end, True)
    return None


def _candidates(partition: Partition, timestamp: int) -> Iterator[Plan]:
    """Plans of the stretches that may hold such a record, in offset order."""
    portions = partition.portions
    evicted = partition.evicted
    old = zip(portions.first[:evicted], portions.end, portions.newest, strict=False)
    for first, end, newest in list(old):
        if newest >= timestamp and end > partition.log_start:
            yield partition.plan(max(first, partition.log_start), MAX_ROW_BYTES, end, True)
    rows = partition.rows
    # The first hit is nearly always right; a row whose newest record lies below the log start,
    # or was written after the high watermark, leads on to the next.
    row = rows.since(timestamp)
    while row < len(rows) and rows.base[row] < partition.high_watermark:
        if rows.newest[row] >= timestamp:
            end = rows.end_offset(row)
            yield partition.plan(max(rows.base[row], partition.log_start), MAX_ROW_BYTES, end, True)
        row += 1


def _first_since(
    buffers: list[Buffer], timestamp: int, log_start: int, high_watermark: int
) -> tuple[int, int] | None:
    for buffer in buffers:
        for position, head in iter_batches(buffer):
            if head.max_timestamp < timestamp:
                continue
            for record in records(buffer, position):
                if record.timestamp >= timestamp and record.offset >= log_start:
                    if record.offset >= high_watermark:
                        return None
                    return record.offset, record.timestamp
    return None


def _end_offset(buffers: list[Buffer]) -> int:
    end = -1
    for _, head in iter_batches(buffers[-1]) if buffers else ():
        end = head.last_offset + 1
    return end


async def max_timestamp(partition: Partition) -> tuple[int, int]:
    """(offset, timestamp) of the first record with the largest timestamp (KIP-734), or (-1, -1)."""
    rows = partition.rows
    newest = rows.latest()
    for at in range(partition.evicted):
        newest = max(newest, partition.portions.newest[at])
    while newest >= 0:
        found = await offset_for_time(partition, newest)
        if found is not None:
            return found
        newest = _next_lower(partition, newest)
    return -1, -1


def _next_lower(partition: Partition, newest: int) -> int:
    """The largest timestamp of a row below `newest`: that one's record is not visible."""
    lower = [time for time in partition.rows.newest if time < newest]
    lower += [time for time in partition.portions.newest[: partition.evicted] if time < newest]
    return max(lower, default=-1)
