"""Warm reads: whole batches out of segments, by threads of their own pool.

A read goes on from one segment to the next, and from the last into the journals, within its
limits. Sparse indexes are kept for those that read on; the blocks of a stretch are checked when it
is read for the first time since its index was loaded. A bad one is named in the log once and
answered with KAFKA_STORAGE_ERROR; what lies before and behind it is served.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.segment import FormatError, SparseIndex
from log.env import Buffer, Env, File
from log.inflight import InFlight
from log.plan import Plan, rest_of, skip_before, whole_batches
from log.segments.store import Segment, SegmentStore
from offsets.storage import Mapping

if TYPE_CHECKING:
    from log.partition import Partition
    from log.reader import Reader

logger = logging.getLogger(__name__)

IN_FLIGHT_BYTES = 64 << 20
"""As for the journals (log.reader): a few Fetches of the largest usual size."""
INDEX_BYTES_AT_MOST = 16 << 20
"""Sparse indexes kept in memory: those of two gigabytes of segments that are being read."""
CHECKED_RANGES_AT_MOST = 64
"""Stretches of one partition and segment known to be sound; whoever jumps about more than that
has the first ones checked again."""
SLACK_BYTES = 8 << 10
"""Read beyond what is asked for: the block that holds `offset` begins before it."""
NAMED_AT_MOST = 1000
"""Damaged places named in the log, so that each is named once."""

_BASE_AND_LENGTH = Struct(">qi")
_OVERHEAD = 12
_LAST_DELTA = Struct(">i")
_LAST_DELTA_AT = 23


class WarmIndex:
    """The sparse index of one partition in one segment, and which of its blocks were checked."""

    __slots__ = ("checked", "index", "size_bytes")

    def __init__(self, index: SparseIndex, size_bytes: int) -> None:
        self.index = index
        self.size_bytes = size_bytes
        self.checked: list[tuple[int, int]] = []

    def damaged(self, position: int, data: memoryview) -> int | None:
        """Where the first bad block of `data`, whole blocks from `position` on, begins."""
        start, stop = position, position + len(data)
        if any(one <= start and stop <= other for one, other in self.checked):
            return None
        bad = self.index.damaged(position, data)
        stop = stop if bad is None else bad
        apart = []
        for one, other in self.checked:
            if one <= stop and start <= other:
                start, stop = min(one, start), max(other, stop)
            else:
                apart.append((one, other))
        self.checked = [*apart[-CHECKED_RANGES_AT_MOST + 1 :], (start, stop)]
        return bad

    def block_at(self, position: int) -> tuple[int, int]:
        """(position, length) of the block that begins at a position."""
        index = self.index
        at = bisect_left(range(len(index)), position, key=lambda at: index.block(at)[0])
        return index.block(at)[:2]


@dataclass(slots=True)
class Taken:
    """What one row gave: whole batches, the offset to go on at, whether that is the row's end."""

    batches: memoryview
    next_offset: int
    whole: bool


class DamagedSegment(Exception):
    """Bytes that are not what was written; the text says where in the segment."""


class WarmReader:
    """See the module."""

    __slots__ = ("_env", "_in_flight", "_index_bytes", "_indexes", "_named", "_reader", "_store")

    def __init__(self, env: Env, store: SegmentStore, reader: Reader) -> None:
        self._env = env
        self._store = store
        self._reader = reader
        self._in_flight = InFlight(IN_FLIGHT_BYTES)
        self._indexes: dict[tuple[int, int], WarmIndex] = {}
        self._index_bytes = 0
        self._named: set[str] = set()

    async def read(self, plan: Plan) -> list[Buffer]:
        """The bytes of a plan that begins in a segment, cut to the whole batches it asks for.

        Sets plan.size_bytes. Raises OSError from the disk, KAFKA_STORAGE_ERROR for damage.
        """
        partition = plan.partition
        kept: list[Buffer] = []
        offset, size = plan.offset, 0
        while offset < min(plan.end, partition.cut_offset):
            room = plan.max_bytes - size
            first = plan.first and not kept
            if room <= 0 and not first:
                break
            try:
                taken = await self._take(partition, offset, plan.end, room, first)
            except (KafkaError, OSError):
                if kept:
                    break  # answered when the reader comes to it
                raise
            if len(taken.batches):
                kept.append(taken.batches)
                size += len(taken.batches)
            offset = taken.next_offset
            if not taken.whole:
                break
        if partition.cut_offset <= offset < plan.end:
            rest = rest_of(plan, offset, size)
            if rest.size_bytes:
                kept += await self._reader.read(rest)
                size += rest.size_bytes
        plan.size_bytes = size
        return kept

    async def since(self, partition: Partition, at: int, timestamp: int) -> int:
        """From which offset on row `at` of a partition may have a record at or after a time."""
        mapping = partition.segments.mapping(partition.number, at)
        async with self._store.opened(mapping.segment_id) as (segment, file):
            warm = await self._index(segment, file, mapping, partition)
            position = warm.index.since(timestamp)
            if position is None:
                return mapping.end_offset
            head = await self._env.offload.submit(
                "warm", file.pread, _BASE_AND_LENGTH.size, position
            )
        base: int = _BASE_AND_LENGTH.unpack(head)[0]
        return max(mapping.base_offset, base)

    async def _take(
        self, partition: Partition, offset: int, end: int, room: int, first: bool
    ) -> Taken:
        """Batches out of the one row that covers `offset`."""
        size = max(room, 0)
        await self._in_flight.take(size)
        try:
            if offset < partition.log_start:  # which has moved since the plan was made
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            at = partition.segments.find(offset)
            # From here to the pin nothing may be awaited: rows and files are exchanged.
            mapping = partition.segments.mapping(partition.number, at)
            if not mapping.length:
                return Taken(memoryview(b""), mapping.end_offset, True)
            async with self._store.opened(mapping.segment_id) as (segment, file):
                warm = await self._index(segment, file, mapping, partition)
                try:
                    return await self._env.offload.submit(
                        "warm", take, file, warm, mapping, offset, end, room, first
                    )
                except DamagedSegment as damage:
                    raise self._damaged(segment, partition, str(damage)) from damage
        finally:
            self._in_flight.give(size)

    async def _index(
        self, segment: Segment, file: File, mapping: Mapping, partition: Partition
    ) -> WarmIndex:
        key = mapping.segment_id, mapping.number
        warm = self._indexes.pop(key, None)
        if warm is None:
            try:
                warm = await self._env.offload.submit("warm", load_index, file, mapping)
            except DamagedSegment as damage:
                raise self._damaged(segment, partition, str(damage)) from damage
            other = self._indexes.pop(key, None)
            if other is not None:
                warm = other
            else:
                self._index_bytes += warm.size_bytes
        self._indexes[key] = warm
        while self._index_bytes > INDEX_BYTES_AT_MOST and len(self._indexes) > 1:
            oldest = next(iter(self._indexes))
            self._index_bytes -= self._indexes.pop(oldest).size_bytes
        return warm

    def _damaged(self, segment: Segment, partition: Partition, what: str) -> KafkaError:
        text = f"segment {segment.name}, {partition.topic}-{partition.index}: {what}"
        if text not in self._named and len(self._named) < NAMED_AT_MOST:
            self._named.add(text)
            logger.critical("%s. It cannot be read, everything else can", text)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)


def load_index(file: File, mapping: Mapping) -> WarmIndex:
    """Runs in a thread. DamagedSegment if the checksum does not fit."""
    body = file.pread(mapping.index_length, mapping.index_start)
    try:
        index = SparseIndex(
            body, mapping.start, mapping.length, mapping.base_offset, mapping.index_checksum
        )
    except FormatError as failure:
        raise DamagedSegment(str(failure)) from failure
    return WarmIndex(index, len(body))


def take(
    file: File, warm: WarmIndex, mapping: Mapping, offset: int, end: int, room: int, first: bool
) -> Taken:
    """Whole batches from `offset` on, below `end`, at most `room` bytes; runs in a thread.

    With `first` one batch whatever its size. DamagedSegment if the first block is not what was
    written.
    """
    stop = mapping.start + mapping.length
    position, length = warm.index.span(offset, max(room, 0) + SLACK_BYTES)
    while True:
        data = _read(file, warm, position, length)
        start = skip_before(data, 0, len(data), offset)
        if start < len(data) or position + length >= stop:
            break
        # Compaction left nothing of this block at or behind `offset`.
        position, length = warm.block_at(position + length)
    cut = whole_batches(data, start, len(data), end, room, first)
    whole = position + cut >= stop
    after = mapping.end_offset if whole else _next_offset(data, start, cut, offset)
    return Taken(data[start:cut], after, whole)


def _read(file: File, warm: WarmIndex, position: int, length: int) -> memoryview:
    """Sound blocks from `position` on: fewer than asked for if a later one is bad."""
    data = memoryview(file.pread(length, position))
    if len(data) != length:
        raise DamagedSegment(f"it ends before {position + length}")
    bad = warm.damaged(position, data)
    if bad == position:
        index = warm.index
        at = bisect_left(range(len(index)), bad, key=lambda at: index.block(at)[0])
        raise DamagedSegment(f"the batches at {bad}, from offset {index.block(at)[2]} on, are bad")
    return data if bad is None else data[: bad - position]


def _next_offset(data: memoryview, start: int, stop: int, offset: int) -> int:
    """The offset after the last batch of data[start:stop]; `offset` if there is none."""
    at = start
    while at < stop:
        base, length = _BASE_AND_LENGTH.unpack_from(data, at)
        offset = base + _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)[0] + 1
        at += length + _OVERHEAD
    return offset
