"""Plans: which bytes answer a read, found without touching them; and cutting them to whole batches.

Pure but for reading mapped journals' batch heads. kafkawire.log.partition.partition makes plans,
kafkawire.log.partition.reader follows them.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING

from kafkawire.codec.batches import HEAD_BYTES, PREFIX_BYTES
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.log.io.ports import Buffer
from kafkawire.log.partition.hot_index import HotIndex

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

MAX_RUNS = 4096
"""Stretches of one plan: each costs a third of a microsecond and more to send, so that one Fetch
of very small batches does not hold the loop for longer than one of large ones."""

_HEAD = Struct(">qi11xi")
"""Base offset, length and last offset delta at the start of a record batch."""
assert _HEAD.size <= HEAD_BYTES


class Plan:
    """Whole batches of one partition from `offset` on, below `end`.

    `runs` are (place, length) in offset order; `size_bytes` their sum; `hot` whether all of them
    are mapped, so that CommitLog.views may be used. If not, CommitLog.read must be, and
    `size_bytes` is an estimate until it has returned: the bytes then may be fewer.
    `journal` is the number of a journal whose index is not in memory: the runs are found there.
    `warm` says that it begins in a segment; how much it is there is an estimate too.
    `patience_s`: how long its reader waits for a remote tier; None: as long as it takes.
    """

    __slots__ = (
        "end",
        "first",
        "hot",
        "journal",
        "max_bytes",
        "offset",
        "partition",
        "patience_s",
        "runs",
        "size_bytes",
        "warm",
    )

    def __init__(
        self, partition: Partition, offset: int, max_bytes: int, end: int, first: bool
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.end = end
        self.first = first
        self.runs: list[tuple[int, int]] = []
        self.size_bytes = 0
        self.hot = True
        self.journal: int | None = None
        self.warm = False
        self.patience_s: float | None = None

    def become(self, other: Plan) -> None:
        """Go another way to the same batches: they have moved."""
        self.runs, self.size_bytes, self.hot = other.runs, other.size_bytes, other.hot
        self.journal, self.warm = other.journal, other.warm


def skip_before(buf: Buffer, start: int, stop: int, offset: int) -> int:
    """The position of the first batch of buf[start:stop] that ends after `offset`; `stop` if none.

    KafkaError(CORRUPT_MESSAGE) if a batch before it has a length that no batch can have.
    """
    while start < stop:
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
    """Where to cut buf[start:stop]: after the last whole batch within `max_bytes`, below `end`.

    With `first` one batch is taken whatever its size (KIP-74). The cut is before a batch with a
    length that no batch can have; KafkaError(CORRUPT_MESSAGE) if that is the first one.
    """
    at = start
    while at < stop:
        if stop - at < HEAD_BYTES:
            break
        base, length, _ = _HEAD.unpack_from(buf, at)
        after = at + length + PREFIX_BYTES
        if after < at + HEAD_BYTES or after > stop:
            break
        if base >= end or (after - start > max_bytes and not (first and at == start)):
            return at
        at = after
    else:
        return at
    if at == start:
        raise bad_batch(at)
    return at


def next_offset(buf: Buffer, start: int, stop: int, offset: int) -> int:
    """The offset after the last batch of buf[start:stop]; `offset` if there is none.

    `start` and `stop` are where batches begin and end, as `whole_batches` returns them;
    KafkaError(CORRUPT_MESSAGE) if they are not.
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
    """The error for stored bytes that are no record batch."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no complete batch begins at byte {position}")


def make_plan(partition: Partition, offset: int, max_bytes: int, end: int, first: bool) -> Plan:
    """Plan a read; see Partition.plan."""
    if not partition.log_start <= offset <= partition.next_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in {partition.log_start}..{partition.next_offset}",
        )
    plan = Plan(partition, offset, max_bytes, end, first)
    if offset >= end or (max_bytes <= 0 and not first):
        return plan
    if offset < partition.cut_offset:
        _plan_warm(plan)
        return plan
    index = partition.rows
    row = bisect_right(index.base, offset) - 1
    if row < 0 and partition.evicted and offset < partition.portions.end[partition.evicted - 1]:
        _plan_evicted(plan)
    elif row < 0 or offset >= index.base[row] + index.count[row]:
        raise damaged(partition, offset)
    else:
        _plan_rows(plan, index, row)
    return plan


def damaged(partition: Partition, offset: int) -> DamagedOffsets:
    """Acknowledged bytes that recovery found damaged or missing: there is no row for them."""
    rows, portions = partition.rows, partition.portions
    row, at = rows.find(offset) + 1, portions.find(offset) + 1
    following = [partition.high_watermark, *rows.base[row : row + 1]]
    if at < partition.evicted:
        following.append(portions.first[at])
    return DamagedOffsets(
        max(offset + 1, min(following)),
        f"{partition.topic}-{partition.index} is damaged at offset {offset}",
    )


def _plan_warm(plan: Plan) -> None:
    """It begins in a segment: CommitLog.read looks there, in a thread.

    How many bytes there are is estimated: a row's are taken to be spread evenly over its offsets.
    """
    partition, segments = plan.partition, plan.partition.segments
    plan.warm = True
    plan.hot = False
    size, offset = 0, plan.offset
    for at in range(segments.find(offset), len(segments)):
        if size >= plan.max_bytes or segments.base[at] >= plan.end:
            break
        base, end, length = segments.base[at], segments.end[at], segments.length[at]
        size += -(-length * (end - max(base, offset)) // (end - base))
    if size < plan.max_bytes and partition.cut_offset < plan.end:
        size += rest_of(plan, partition.cut_offset, size).size_bytes
    plan.size_bytes = min(size, max(plan.max_bytes, 1))


def rest_of(plan: Plan, offset: int, size_bytes: int) -> Plan:
    """The plan of what follows at `offset`, `size_bytes` being taken; empty where that is damaged,
    which is answered when a reader begins there."""
    first = plan.first and not size_bytes
    room = plan.max_bytes - size_bytes
    try:
        return make_plan(plan.partition, offset, room, plan.end, first)
    except KafkaError:
        if first:
            raise
        return Plan(plan.partition, offset, 0, offset, False)


def _plan_evicted(plan: Plan) -> None:
    """The rows are in a journal's index file: CommitLog.read looks there, in a thread."""
    partition = plan.partition
    portions = partition.portions
    at = portions.find(plan.offset)
    if at < 0 or plan.offset >= portions.end[at]:
        raise damaged(partition, plan.offset)
    plan.journal = portions.journal[at]
    plan.hot = False
    plan.size_bytes = min(portions.size[at], max(plan.max_bytes, 1))


def _plan_rows(plan: Plan, index: HotIndex, row: int) -> None:
    """Take rows while they fit. Mapped rows are cut to the batches asked for right here."""
    base, places, lengths, counts = index.base, index.place, index.length, index.count
    end, room, runs = plan.end, plan.max_bytes, plan.runs
    log = plan.partition.log
    place, length = places[row], lengths[row]
    plan.hot = hot = place >= log.journals.viewed_from
    if hot and base[row] < plan.offset:
        place, length = _skip(log, place, length, plan.offset)
    last = min(len(base), row + MAX_RUNS)
    while True:
        after = base[row] + counts[row]
        if hot and (length > room or after > end):
            length = _cut(log, place, length, end, room, plan.first and not runs, bool(runs))
            if length:
                runs.append((place, length))
                room -= length
            break
        if length > room and (runs or not plan.first):
            break
        runs.append((place, length))
        room -= length
        row += 1
        if row >= last or base[row] >= end or base[row] != after:
            break  # the last: a gap is damage, and answered when a reader comes to it
        place, length = places[row], lengths[row]
    plan.size_bytes = plan.max_bytes - room


def _skip(log: CommitLog, place: int, length: int, offset: int) -> tuple[int, int]:
    view, start = log.journals.mapped(place)
    at = skip_before(view, start, start + length, offset)
    return place + at - start, start + length - at


def _cut(
    log: CommitLog, place: int, length: int, end: int, room: int, first: bool, follows: bool
) -> int:
    """How many bytes of a mapped row fit. `follows`: with batches before it, damage at its start
    is reported only when a reader begins there."""
    view, start = log.journals.mapped(place)
    try:
        return whole_batches(view, start, start + length, end, room, first) - start
    except KafkaError:
        if follows:
            return 0
        raise
