"""ListOffsets by time: from a timestamp to the first record at or after it.

The running maximum of the index leads to the row, the batch heads lead to the batch, and only that
batch's records are decoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Buffer
from kafkawire.log.partition.read_plan import Plan

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

MAX_ROW_BYTES = 1 << 31
"""Limit of one read: a row is one MiB or one batch and always read whole."""
WARM_BYTES = 256 << 10
"""Bytes of a segment read at a time: the sparse index leads to within some KiB."""


async def offset_for_time(partition: Partition, timestamp: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after `timestamp`, or None.

    Searches between log start and high watermark (UnifiedLog.fetchOffsetByTimestamp). Rows that are
    not in memory are searched segment by segment, in their sparse indexes, and journal by journal,
    in their index files. KafkaError(CORRUPT_MESSAGE) for bytes that are no batches, OSError from
    the disk.
    """
    async for plan in _candidates(partition, timestamp):
        while plan.offset < min(plan.end, partition.high_watermark):
            buffers = await partition.log.read(plan)
            found = _first_since(buffers, timestamp, partition.log_start, partition.high_watermark)
            if found is not None:
                return found
            after = _end_offset(buffers)
            if plan.end <= after or not buffers:
                break
            if after <= plan.offset:
                text = f"the batch at offset {plan.offset} says that it ends at {after - 1}"
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
            plan = _plan(partition, after, plan.end)
    return None


def _plan(partition: Partition, offset: int, end: int) -> Plan:
    warm = offset < partition.cut_offset
    size = WARM_BYTES if warm else MAX_ROW_BYTES
    return partition.plan(max(offset, partition.log_start), size, end, True)


async def _candidates(partition: Partition, timestamp: int) -> AsyncIterator[Plan]:
    """Yield plans of the ranges that may contain such a record, in offset order.

    Rows are cut and removed during the search, so each step starts again at an offset.
    """
    done = partition.log_start
    segments = partition.segments
    while done < partition.cut_offset:
        at = segments.find(done)
        done = segments.end[at]
        if segments.newest[at] >= timestamp:
            start = await partition.log.reader.segments.since(partition, at, timestamp)
            if start < done:
                yield _plan(partition, start, done)
    extents = partition.journal_extents
    while (at := extents.below(done)) < partition.evicted:
        start, done = max(done, extents.first[at]), extents.end[at]
        if extents.newest[at] >= timestamp and done > partition.log_start:
            yield _plan(partition, start, done)
    rows = partition.rows
    # The first match is nearly always right; the search continues after a row whose newest record
    # is below the log start or above the high watermark.
    row = rows.since(timestamp)
    while row < len(rows) and rows.base[row] < partition.high_watermark:
        end = rows.end_offset(row)
        if rows.newest[row] >= timestamp and end > done:
            done = end
            yield _plan(partition, rows.base[row], end)
            row = rows.find(end - 1)
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
    """Return (offset, timestamp) of the first record with the largest timestamp (KIP-734), or (-1,
    -1)."""
    rows = partition.rows
    newest = max([rows.latest(), *partition.segments.newest])
    for at in range(partition.evicted):
        newest = max(newest, partition.journal_extents.newest[at])
    while newest >= 0:
        found = await offset_for_time(partition, newest)
        if found is not None:
            return found
        newest = _next_lower(partition, newest)
    return -1, -1


def _next_lower(partition: Partition, newest: int) -> int:
    """Return the largest timestamp of a row below `newest`, whose record is not visible."""
    lower = [time for time in partition.rows.newest if time < newest]
    lower += [time for time in partition.segments.newest if time < newest]
    lower += [
        time for time in partition.journal_extents.newest[: partition.evicted] if time < newest
    ]
    return max(lower, default=-1)
