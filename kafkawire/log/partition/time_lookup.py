"""ListOffsets by time, and the times of records in the journals.

The running maximum of the index leads to the row, the batch heads lead to the batch, and only that
batch's records are decoded.

The index has for each batch the newest timestamp that its head names. Of a batch with more than
MAX_WALKED_RECORDS a producer may have computed that wrongly, so before records are deleted or
passed over by time, the rows of the journals with such batches are read once, and corrected. In
segments the heads themselves are right: the cut corrects them (kafkawire.log.segments.cut.job).
With record.validation=head nothing is corrected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.batches import NO_TIMESTAMP, BatchHead, iter_batches, payload
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.time_lookup import TimedOffset, TimedPiece, find_first_since
from kafkawire.codec.types import Buffer
from kafkawire.codec.validate import HEAD_ONLY
from kafkawire.codec.walk import MAX_WALKED_RECORDS, has_exact_time, newest_steps
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.read_plan import make_plan

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition, Plan

MAX_ROW_BYTES = 1 << 31
"""Limit of one read: a row is one MiB or one batch and always read whole."""
WARM_BYTES = 256 << 10
"""Bytes of a segment read at a time: the sparse index leads to within some KiB."""
READ_BYTES = 1 << 20
"""Bytes of evicted rows that are read at a time."""
ROWS_AT_ONCE = 4096
"""Rows that are passed over without a pause: a tenth of a millisecond."""
POOL, BYTES_AT_ONCE = "read", 64 << 10
"""Compressed batches larger than this are decompressed in a thread of this pool."""


class _PlannedPiece(TimedPiece):
    """Offsets of a loaded partition, read by one plan after another."""

    def __init__(self, partition: LoadedPartition, plan: Plan) -> None:
        self._partition = partition
        self._plan = plan
        self._buffers: list[Buffer] = []
        self.pause = partition.log.env.slices.give_way

    def bounds(self) -> tuple[int, int]:
        # Both may move during the search.
        return self._partition.log_start, min(self._plan.end, self._partition.high_watermark)

    @property
    def trusts_heads(self) -> bool:
        partition = self._partition
        return partition.log.validation == HEAD_ONLY or self._plan.offset < partition.cut_offset

    async def read_next(self) -> Sequence[Buffer]:
        plan = self._plan
        if self._buffers:
            after = _end_offset(self._buffers)
            if plan.end <= after:
                return ()
            if after <= plan.offset:
                text = f"the batch at offset {plan.offset} says that it ends at {after - 1}"
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
            plan = self._plan = _plan(self._partition, after, plan.end)
        if plan.offset >= self.bounds()[1]:
            return ()
        self._buffers = await self._partition.log.read(plan)
        return self._buffers

    def counts(self, head: BatchHead) -> bool:
        return True  # markers have times, too, as in Kafka

    async def unpack(self, buffer: Buffer, position: int, head: BatchHead) -> bytes:
        return await _unpack(self._partition.log.env, buffer, position, head)


async def offset_for_time(partition: LoadedPartition, timestamp: int) -> TimedOffset | None:
    """Return the first record at or after `timestamp`, or None.

    Searches between log start and high watermark (UnifiedLog.fetchOffsetByTimestamp). Rows that are
    not in memory are searched segment by segment, in their sparse indexes, and journal by journal,
    in their index files. KafkaError(CORRUPT_MESSAGE) for bytes that are no batches, OSError from
    the disk.
    """
    # First: rows with a wrong time would be passed over.
    await correct_times(partition)
    async for plan in _candidates(partition, timestamp):
        found = await find_first_since(_PlannedPiece(partition, plan), timestamp)
        if found is not None:
            return found
    return None


def _plan(partition: LoadedPartition, offset: int, end: int) -> Plan:
    warm = offset < partition.cut_offset
    size = WARM_BYTES if warm else MAX_ROW_BYTES
    return make_plan(partition, max(offset, partition.log_start), size, end, True)


async def _candidates(partition: LoadedPartition, timestamp: int) -> AsyncIterator[Plan]:
    """Yield plans of the ranges that may contain such a record, in offset order."""
    # Rows are cut and removed during the search: each step starts again at this offset.
    done = partition.log_start
    segments = partition.segments
    while done < partition.cut_offset:
        at = segments.find(done)
        done = segments.end[at]
        if segments.newest[at] >= timestamp:
            start = await partition.log.first_since(partition, at, timestamp)
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


def _end_offset(buffers: list[Buffer]) -> int:
    end = -1
    for _, head in iter_batches(buffers[-1]) if buffers else ():
        end = head.last_offset + 1
    return end


async def max_timestamp(partition: LoadedPartition) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record with the largest timestamp (KIP-734), or (-1,
    -1)."""
    await correct_times(partition)
    rows = partition.rows
    newest = max([rows.latest(), *partition.segments.newest])
    for at in range(partition.evicted):
        newest = max(newest, partition.journal_extents.newest[at])
    while newest >= 0:
        found = await offset_for_time(partition, newest)
        if found is not None:
            return found
        # Its record is not visible: below the log start or above the high watermark.
        newest = _next_lower(partition, newest)
    return -1, -1


def _next_lower(partition: LoadedPartition, newest: int) -> int:
    """Return the largest timestamp of a row below `newest`."""
    lower = [time for time in partition.rows.newest if time < newest]
    lower += [time for time in partition.segments.newest if time < newest]
    lower += [
        time for time in partition.journal_extents.newest[: partition.evicted] if time < newest
    ]
    return max(lower, default=-1)


async def correct_times(partition: LoadedPartition) -> None:
    """Have the index name the newest timestamp of the records in each row below the high watermark.
    Rows that cannot be read keep what the heads say."""
    log = partition.log
    if log.validation == HEAD_ONLY or partition.timed_upto >= partition.high_watermark:
        return
    async with log.correcting:  # a second caller waits for the first, and then has nothing to do
        end = partition.high_watermark
        at = max(partition.timed_upto, partition.cut_offset, partition.log_start)
        while at < end and not partition.removed:
            extents = partition.journal_extents
            extent = extents.find(at)
            if 0 <= extent < partition.evicted and at < extents.end[extent]:
                at = await _correct_extent(partition, extent, at)
            else:
                at = await _correct_rows(partition, at)
            # It may have been cut, or the log start moved, meanwhile.
            at = max(at, partition.cut_offset, partition.log_start)
            partition.timed_upto = at


async def _correct_rows(partition: LoadedPartition, at: int) -> int:
    """Correct the next row from `at` on that needs it; return the offset after it."""
    rows = partition.rows
    row = rows.find(at)
    if row < 0 or rows.end_offset(row) <= at:
        row += 1  # a gap: damage
    counts, stop = rows.count, min(row + ROWS_AT_ONCE, len(rows))
    # Smaller batches were walked when they were appended: their heads are right.
    while row < stop and counts[row] <= MAX_WALKED_RECORDS:
        row += 1
    if row >= stop:
        await partition.log.env.slices.give_way()
        return rows.base[stop] if stop < len(rows) else partition.high_watermark
    first, end = rows.base[row], rows.end_offset(row)
    newest = await _newest_in(partition, first, end)
    # Again: the rows may have changed during the read.
    rows = partition.rows
    row = rows.find(first)
    if newest is not None and 0 <= row < len(rows) and rows.base[row] == first:
        rows.correct(row, newest)
        extents = partition.journal_extents
        # The extent of a rolled journal, whose rows are in memory, follows from them.
        extent = extents.find(first)
        if extent >= partition.evicted and first < extents.end[extent]:
            start, stop = rows.find(extents.first[extent]), rows.find(extents.end[extent] - 1) + 1
            extents.newest[extent] = max(rows.newest[max(start, 0) : stop])
    return end


async def _correct_extent(partition: LoadedPartition, extent: int, at: int) -> int:
    """Correct an extent whose rows were evicted, from `at` on; return the offset after it."""
    extents = partition.journal_extents
    journal, first, end = extents.journal[extent], extents.first[extent], extents.end[extent]
    newest = await _newest_in(partition, at, end)
    extents = partition.journal_extents
    extent = extents.find(at)
    if newest is not None and extent >= 0 and extents.journal[extent] == journal:
        if at > first:  # what is before it was corrected while its rows were in memory
            newest = max(newest, extents.newest[extent])
        extents.newest[extent] = newest
    return end


async def _newest_in(partition: LoadedPartition, start: int, end: int) -> int | None:
    """Return the newest timestamp of the batches with these offsets; None if they cannot be
    read."""
    newest, at = NO_TIMESTAMP, start
    try:
        while at < end:
            plan = make_plan(partition, max(at, partition.log_start), READ_BYTES, end, True)
            before = at
            for buffer in await partition.log.read(plan):
                for position, head in iter_batches(buffer):
                    newest = max(newest, await _newest(partition.log.env, buffer, position, head))
                    at = head.last_offset + 1
            # Nothing could be read, or a batch claims to end before it begins.
            if at <= before:
                return None
    except (KafkaError, OSError):
        return None
    return newest


async def _newest(env: Env, buffer: Buffer, position: int, head: BatchHead) -> int:
    if has_exact_time(head):
        return head.max_timestamp
    try:
        data = await _unpack(env, buffer, position, head)
        return await env.slices.run(newest_steps(data, head.count, head.base_timestamp))
    except (KafkaError, IndexError):  # of an earlier version, or with record.validation=head
        return head.max_timestamp


async def _unpack(env: Env, buffer: Buffer, position: int, head: BatchHead) -> bytes:
    """Return the decompressed records of a batch. KafkaError as for `payload`."""
    if head.codec and head.length > BYTES_AT_ONCE:
        return bytes(await env.offload.submit(POOL, payload, buffer, position, head))
    return bytes(payload(buffer, position, head))
