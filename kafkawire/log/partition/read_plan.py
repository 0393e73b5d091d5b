"""Plans of reads: which bytes to return, found without reading them; and cutting them to whole
batches.

Pure, except that it reads the batch heads of mapped journals. kafkawire.log.partition.partition
makes plans, kafkawire.log.partition.reader executes them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from kafkawire.codec.batches import HEAD_BYTES, PREFIX_BYTES
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import AbsentOffsets, DamagedOffsets, ErrorCode, KafkaError
from kafkawire.log.io.ports import Buffer
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal, Pins
from kafkawire.log.journal.index_columns import MAX_RUNS
from kafkawire.log.partition.state import HotRead, JournalRead, Plan, SegmentRead

if TYPE_CHECKING:
    from kafkawire.log.partition.state import AppendLog, LoadedPartition

__all__ = ["HotRead", "JournalRead", "Plan", "SegmentRead"]

_HEAD: Final = Struct(">qi11xi")
"""Base offset, length and last offset delta at the start of a record batch."""
assert _HEAD.size <= HEAD_BYTES


def skip_before(buf: Buffer, start: int, stop: int, offset: int) -> int:
    """Return the position of the first batch of buf[start:stop] that ends after `offset`; `stop` if
    none.

    KafkaError(CORRUPT_MESSAGE) if a batch before it has a length that no batch can have.
    """
    while start < stop:
        # Stored bytes may be damaged: no length is believed before it is checked.
        if stop - start < HEAD_BYTES:
            raise bad_batch(start)
        base, length, last_delta = _HEAD.unpack_from(buf, start)
        after = start + length + PREFIX_BYTES
        if after < start + HEAD_BYTES or after > stop:
            raise bad_batch(start)
        if base + last_delta >= offset:
            return start
        start = after
    return stop


def whole_batches(buf: Buffer, start: int, stop: int, end: int, max_bytes: int, first: bool) -> int:
    """Return where to cut buf[start:stop]: after the last whole batch within `max_bytes`, below
    `end`.

    With `first` at least one is taken. The cut is before a batch with a length that no batch can
    have; KafkaError(CORRUPT_MESSAGE) if that is the first one.
    """
    at = start
    while at < stop:
        if stop - at < HEAD_BYTES:
            break
        base, length, _ = _HEAD.unpack_from(buf, at)
        after = at + length + PREFIX_BYTES
        if after < at + HEAD_BYTES or after > stop:
            break
        # KIP-74: one batch, whatever its size, so that a consumer makes progress.
        if base >= end or (after - start > max_bytes and not (first and at == start)):
            return at
        at = after
    else:
        return at
    # Batches before it are returned; the damage is reported when a reader begins there.
    if at == start:
        raise bad_batch(at)
    return at


def next_offset(buf: Buffer, start: int, stop: int, offset: int) -> int:
    """Return the offset after the last batch of buf[start:stop]; `offset` if there is none.

    A batch begins at `start` and one ends at `stop`, as `whole_batches` returns them;
    KafkaError(CORRUPT_MESSAGE) if not.
    """
    at = start
    while at < stop:
        if stop - at < HEAD_BYTES:
            raise bad_batch(at)
        base, length, last_delta = _HEAD.unpack_from(buf, at)
        after = at + length + PREFIX_BYTES
        if after < at + HEAD_BYTES or after > stop:
            raise bad_batch(at)
        offset = base + last_delta + 1
        at = after
    return offset


def bad_batch(position: int) -> KafkaError:
    """Return the error for stored bytes that are no record batch."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no complete batch begins at byte {position}")


def make_plan(
    partition: LoadedPartition, offset: int, max_bytes: int, end: int, first: bool
) -> Plan:
    # The log end is a valid offset: nothing to read yet.
    if not partition.log_start <= offset <= partition.next_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in {partition.log_start}..{partition.next_offset}",
        )
    if offset >= end or (max_bytes <= 0 and not first):
        return HotRead(partition, offset, max_bytes, end, first, 0, [])
    # 1. In segments.
    if offset < partition.cut_offset:
        return _plan_segments(partition, offset, max_bytes, end, first)
    index = partition.rows
    row = bisect_right(index.base, offset) - 1
    # 2. In rolled journals whose rows are in index files alone.
    if (
        row < 0
        and partition.evicted
        and offset < partition.journal_extents.end[partition.evicted - 1]
    ):
        return _plan_evicted(partition, offset, max_bytes, end, first)
    # 3. In a gap: nothing else than damage makes one.
    if row < 0 or offset >= index.base[row] + index.count[row]:
        raise damage_error(partition, offset)
    # 4. In the journals, by the rows in memory.
    return _plan_rows(partition, offset, max_bytes, end, first, row)


def mapped_views(
    journals: dict[int, Journal], plan: HotRead
) -> tuple[list[memoryview], Callable[[], None]]:
    """Return views of a hot plan's bytes, in order, and the function to call when they are no
    longer needed. `journals` by number."""
    pins = Pins()
    views: list[memoryview] = []
    number = -1
    view = memoryview(b"")
    for log_position, length in plan.runs:
        if log_position >> POSITION_BITS != number:
            number = log_position >> POSITION_BITS
            journal = journals[number]
            pins.add(journal)
            assert journal.view is not None, "hot journals are mapped"
            view = journal.view
        position = log_position & POSITION_MASK
        # A slice would be cut silently, and the response would announce more than it contains.
        assert position + length <= len(view), "a row lies in its journal"
        views.append(view[position : position + length])
    return views, pins


def aborted_in(plan: HotRead | JournalRead) -> list[Aborted]:
    """The aborted transactions that touch the bytes of a plan in the journals. Those from the last
    row's end on are left out; one that only touches its unread part may be among them, which does
    no harm: its marker is not below the plan's offset."""
    transactions = plan.partition.producers.transactions
    if transactions is None or not plan.size_bytes:
        return []
    return transactions.aborted.overlapping(plan.offset, _read_end(plan))


def aborted_listed(plan: HotRead | JournalRead) -> list[tuple[int, int]]:
    """Producer ID and first offset of `aborted_in`, for a Fetch."""
    transactions = plan.partition.producers.transactions
    if transactions is None or not plan.size_bytes:
        return []
    return transactions.aborted.list_for_fetch(plan.offset, _read_end(plan))


def _read_end(plan: HotRead | JournalRead) -> int:
    """An offset at or after the end of the bytes of a plan."""
    partition = plan.partition
    if plan.runs:
        # The row of the last run: later rows are not in the answer.
        place = plan.runs[-1][0]
        row = bisect_right(partition.rows.log_position, place) - 1
        return min(plan.end, partition.rows.end_offset(row)) if row >= 0 else plan.end
    if isinstance(plan, JournalRead):
        # The runs are not looked up yet: the extent's end bounds them.
        extents = partition.journal_extents
        return min(plan.end, extents.end[extents.find(plan.offset)])
    return plan.end


def damage_error(partition: LoadedPartition, offset: int) -> DamagedOffsets:
    """Return the error for offsets without a row: recovery found their acknowledged bytes damaged
    or missing, or the broker that led the partition before has them."""
    rows, extents = partition.rows, partition.journal_extents
    row, at = rows.find(offset) + 1, extents.find(offset) + 1
    following = [partition.high_watermark, *rows.base[row : row + 1]]
    # Extents from `evicted` on have their rows in memory.
    if at < partition.evicted:
        following.append(extents.first[at])
    # At least one further: a reader that continues there must make progress.
    end = max(offset + 1, min(following))
    if offset < partition.absent_end:
        return AbsentOffsets(
            end,
            f"{partition.topic}-{partition.index}: offset {offset} is in no segment and not at "
            "this broker, since its leader changed before it was cut",
        )
    return DamagedOffsets(end, f"{partition.topic}-{partition.index} is damaged at offset {offset}")


def _plan_segments(
    partition: LoadedPartition, offset: int, max_bytes: int, end: int, first: bool
) -> SegmentRead:
    """Plan a read that begins in a segment: CommitLog.read reads it, in a thread."""
    segments = partition.segments
    size = 0
    # As if a row's bytes were spread evenly over its offsets: an estimate for the limit of a Fetch,
    # without a read.
    for at in range(segments.find(offset), len(segments)):
        if size >= max_bytes or segments.base[at] >= end:
            break
        base, stop, length = segments.base[at], segments.end[at], segments.length[at]
        size += -(-length * (stop - max(base, offset)) // (stop - base))
    if size < max_bytes and partition.cut_offset < end:
        plan = SegmentRead(partition, offset, max_bytes, end, first, 0, [])
        size += rest_of(plan, partition.cut_offset, size).size_bytes
    # At least 1, so that the plan is not taken for an empty one.
    size = min(size, max(max_bytes, 1))
    return SegmentRead(partition, offset, max_bytes, end, first, size, [])


def rest_of(plan: SegmentRead, offset: int, size_bytes: int) -> Plan:
    """Plan the read of what follows at `offset` after `size_bytes` were taken; empty where that is
    damaged, which is reported when a reader begins there."""
    first = plan.first and not size_bytes
    room = plan.max_bytes - size_bytes
    try:
        return make_plan(plan.partition, offset, room, plan.end, first)
    # What was taken is returned; a reader that begins there gets the error.
    except KafkaError:
        if first:
            raise
        return HotRead(plan.partition, offset, 0, offset, False, 0, [])


def _plan_evicted(
    partition: LoadedPartition, offset: int, max_bytes: int, end: int, first: bool
) -> JournalRead:
    """Plan a read of rows in a journal's index file: CommitLog.read finds them, in a thread."""
    extents = partition.journal_extents
    at = extents.find(offset)
    if at < 0 or offset >= extents.end[at]:
        raise damage_error(partition, offset)
    size = min(extents.size[at], max(max_bytes, 1))
    return JournalRead(partition, offset, max_bytes, end, first, size, [], extents.journal[at])


def _plan_rows(
    partition: LoadedPartition, offset: int, max_bytes: int, end: int, first: bool, row: int
) -> HotRead | JournalRead:
    """Take rows while they fit."""
    index = partition.rows
    base, log_positions, lengths, counts = index.base, index.log_position, index.length, index.count
    log = partition.log
    room = max_bytes
    runs: list[tuple[int, int]] = []
    log_position, length = log_positions[row], lengths[row]
    # Only verified bytes may be sent from a mapping, and their heads be read here.
    hot = log_position >= log.journals.viewed_from
    # It begins with a batch at the offset.
    aligned = base[row] == offset
    if hot and base[row] < offset:
        log_position, length = _skip(log, log_position, length, offset)
    last = min(len(base), row + MAX_RUNS)
    while True:
        after = base[row] + counts[row]
        # The last mapped row is cut to whole batches here; unmapped ones are cut after the read.
        if hot and (length > room or after > end):
            length = _cut(log, log_position, length, end, room, first and not runs, bool(runs))
            if length:
                runs.append((log_position, length))
                room -= length
            break
        # Unmapped rows are whole, or not taken: cutting needs their bytes.
        if length > room and (runs or not first):
            break
        runs.append((log_position, length))
        room -= length
        row += 1
        if row >= last or base[row] >= end or base[row] != after:
            break  # the last: a gap is damage, reported when a reader gets there
        log_position, length = log_positions[row], lengths[row]
    size = max_bytes - room
    if hot:
        return HotRead(partition, offset, max_bytes, end, first, size, runs, None, True)
    whole = aligned and size <= max_bytes and base[row - 1] + counts[row - 1] <= end
    return JournalRead(partition, offset, max_bytes, end, first, size, runs, None, whole)


def _skip(log: AppendLog, log_position: int, length: int, offset: int) -> tuple[int, int]:
    view, start = log.journals.find_hot_view(log_position)
    at = skip_before(view, start, start + length, offset)
    return log_position + at - start, start + length - at


def _cut(
    log: AppendLog, log_position: int, length: int, end: int, room: int, first: bool, follows: bool
) -> int:
    """Return how many bytes of a mapped row fit. `follows`: there are batches before it, so damage
    at its start is reported only when a reader begins there."""
    view, start = log.journals.find_hot_view(log_position)
    try:
        return whole_batches(view, start, start + length, end, room, first) - start
    except KafkaError:
        if follows:
            return 0
        raise
