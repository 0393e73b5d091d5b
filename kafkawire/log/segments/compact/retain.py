"""Retention of records in compacted partitions (Kafka: Cleaner and
MemoryRecords.filterTo; KIP-58, KIP-98, KIP-534).

It reads whole batches in two passes. `OffsetMapBuilder` puts the keys of the dirty part into an
OffsetMap until that is full; the offset where it stopped is where the clean part will end.
`Cleaner` then reads everything below: a record stays if the map has no later one of its key; a
tombstone stays until its batch's delete horizon, which the first cleaning that keeps it sets
(attribute bit 6, and the base timestamp is that horizon); data of an aborted transaction is
removed, its marker when nothing of it is left and a horizon has passed. Base and last offset,
producer and sequence of a batch never change. Batches that keep all records stay as they are, byte
for byte.

A batch whose records cannot be read stays as it is. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop
from itertools import islice
from operator import lt

from kafkawire.codec.batches import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEAD,
    HEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHead,
    resum,
    unpacked_limit,
)
from kafkawire.codec.compression import compress, decompress
from kafkawire.codec.control import ABORT, COMMIT, EMPTY, Aborted, read_marker
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.segment.format import DamagedBatch
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import put_varint, read_uvarint, read_varlong
from kafkawire.crc32c import crc32c
from kafkawire.log.segments.compact.messages import Stats
from kafkawire.log.segments.compact.offset_map import MAX_OFFSETS, OffsetMap

# Transactions. `Fates` reads ahead: which were aborted, and which are still open where it stopped.
# `Cleaned` follows the cleaning and decides for each batch whether it may be removed (Kafka:
# CleanedTransactionMetadata): data of an aborted transaction at once, a marker when no data of its
# transaction was found any more.


class Fates:
    """The ends of transactions, read ahead of the batches. `aborted`: those that ended; `opened`:
    first offset of those that did not, by producer id."""

    __slots__ = ("aborted", "opened")

    def __init__(self) -> None:
        self.aborted: list[Aborted] = []
        self.opened: dict[int, int] = {}

    def add_batch(self, data: Buffer, at: int, head: BatchHead) -> None:
        """Add the next batch."""
        if head.attributes & CONTROL:
            kind = read_marker(data, at, head).kind
            if kind >= 0:
                first = self.opened.pop(head.producer_id, None)
                if first is not None and kind == ABORT:
                    self.aborted.append(Aborted(head.producer_id, first, head.last_offset))
        # A batch without records has no data that could be aborted.
        elif head.attributes & TRANSACTIONAL and head.count:
            self.opened.setdefault(head.producer_id, head.base_offset)


class Cleaned:
    """Transaction state of the batches already cleaned. `kept`: the aborted transactions that
    readers must still know."""

    __slots__ = ("_aborted", "_committed", "_met", "_waiting", "kept")

    def __init__(self, aborted: list[Aborted]) -> None:
        # By first offset: a transaction counts from there on, as the batches are read.
        self._waiting = [(first, last, producer_id) for producer_id, first, last in aborted]
        heapify(self._waiting)
        self._aborted: dict[int, Aborted] = {}
        self._met: set[int] = set()
        self._committed: set[int] = set()
        self.kept: list[Aborted] = []

    def _reach(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            first, last, producer_id = heappop(self._waiting)
            self._aborted.setdefault(producer_id, Aborted(producer_id, first, last))

    def data(self, head: BatchHead) -> bool:
        """Return whether a batch of records belongs to an aborted transaction."""
        if not head.attributes & TRANSACTIONAL:
            return False
        self._reach(head.last_offset)
        if head.producer_id in self._aborted:
            # Data was found: it is removed, and its marker stays for now.
            self._met.add(head.producer_id)
            return True
        # Not aborted, so its commit marker still has data.
        self._committed.add(head.producer_id)
        return False

    def control(self, data: Buffer, at: int, head: BatchHead) -> bool:
        """Return whether no data of a control batch's transaction is left before it."""
        self._reach(head.last_offset)
        kind = read_marker(data, at, head).kind
        producer_id = head.producer_id
        if kind == ABORT:
            aborted = self._aborted.pop(producer_id, None)
            met = producer_id in self._met
            self._met.discard(producer_id)
            # The marker stays, and readers of the output must know the transaction.
            if aborted is not None and met:
                self.kept.append(aborted)
                return False
            return True
        if kind == COMMIT:
            left = producer_id in self._committed
            self._committed.discard(producer_id)
            # Without data nothing needs the marker.
            return not left
        return kind == EMPTY


OFFSET_MAX = _INT64_MAX = (1 << 63) - 1

Unreadable = (KafkaError, IndexError)
LastBatch = tuple[int, int]
"""State of a producer: epoch, base offset of its last batch (-1: only a marker is known)."""


def head_at(data: bytes, pos: int, end: int, following: int) -> BatchHead:
    """Return the head of the batch at `pos` in data[:end], with its CRC checked. DamagedBatch if it
    is not what was written.

    `following`: the least offset it may have.
    """
    # As the builder of segments checks: a damaged batch must not be taken for records.
    if end - pos >= HEAD_BYTES:
        head = BatchHead(HEAD.unpack_from(data, pos))
        stop = pos + head.size_bytes
        if (
            head.magic == MAGIC
            and HEAD_BYTES <= head.size_bytes <= end - pos
            and head.base_offset >= following
            and head.last_delta >= 0
            and head.count >= 0
            and crc32c(memoryview(data)[pos + CRC_FROM : stop]) == head.crc
        ):
            return head
    raise DamagedBatch(0, pos, following)


def read_columns(data: bytes, pos: int, head: BatchHead) -> RecordColumns:
    """Return the records of the batch at `pos`. Raises one of `Unreadable`. Headers are not
    checked."""
    start, stop = pos + HEAD_BYTES, pos + head.size_bytes
    codec = head.codec
    if codec:
        packed = memoryview(data)[start:stop]
        # A bound for what a few bytes can unpack to.
        data = bytes(decompress(codec, packed, unpacked_limit(head.size_bytes)))
        start, stop = 0, len(data)
    columns = RecordColumns(data, start)
    columns.read(stop, head.count)
    if columns.stop != stop:
        raise IndexError("extra bytes after the last record")
    deltas = columns.deltas
    # The map needs rising offsets.
    if not all(map(lt, deltas, islice(deltas, 1, None))):
        raise IndexError("the record offsets do not increase")
    if deltas and (deltas[0] < 0 or deltas[-1] > head.last_delta):
        raise IndexError("the offset of a record is not in the batch")
    return columns


class UnknownFate(Exception):
    """A transaction was found whose outcome has not been read ahead."""


class Scanner:
    """The pass before, where there are transactions: finds which were aborted."""

    __slots__ = ("fates", "next_offset")

    def __init__(self) -> None:
        self.fates = Fates()
        self.next_offset = 0

    def scan(self, data: bytes, stop: int) -> None:
        """Read the next whole batches, in data[:stop]. DamagedBatch."""
        pos = 0
        while pos < stop:
            head = head_at(data, pos, stop, self.next_offset)
            self.fates.add_batch(data, pos, head)
            self.next_offset = head.last_offset + 1
            pos += head.size_bytes

    def stable(self) -> int:
        """The offset below which every transaction has ended, as far as was read."""
        return min(self.fates.opened.values(), default=self.next_offset)


class OffsetMapBuilder:
    """The first pass, below `stop`. `end`: the offset up to which the map has all keys.

    Without `aborted`, which a Scanner finds, it ends before the first transaction.
    """

    __slots__ = ("_cleaned", "_next_offset", "_offsets", "_stop", "end")

    def __init__(
        self, offsets: OffsetMap, aborted: list[Aborted] | None = None, stop: int = OFFSET_MAX
    ) -> None:
        self._offsets = offsets
        self._cleaned = None if aborted is None else Cleaned(aborted)
        self._stop = stop
        self._next_offset = 0
        self.end = offsets.base

    def index(self, data: bytes, stop: int) -> bool:
        """Read the next whole batches, in data[:stop]; False if nothing after them is needed.

        DamagedBatch for one that is not what was written, UnknownFate.
        """
        pos = 0
        while pos < stop:
            head = head_at(data, pos, stop, self._next_offset)
            # A transaction is open from here on.
            if head.last_offset >= self._stop:
                return False
            # The map is full: this batch is not in it, so the clean part ends before.
            if not self._is_aborted(data, pos, head) and not self._put(data, pos, head):
                return False
            self.end = self._next_offset = head.last_offset + 1
            pos += head.size_bytes
        return True

    def _is_aborted(self, data: bytes, pos: int, head: BatchHead) -> bool:
        if not head.attributes & (CONTROL | TRANSACTIONAL):
            return False
        if self._cleaned is None:
            # The caller runs a Scanner, then tries again.
            if head.count:
                raise UnknownFate
            return False
        if head.attributes & CONTROL:
            self._cleaned.control(data, pos, head)
            return False
        return self._cleaned.data(head)

    def _put(self, data: bytes, pos: int, head: BatchHead) -> bool:
        offsets = self._offsets
        if head.attributes & CONTROL or not head.count:
            return True
        # A batch is added whole or not at all; an empty map takes one of any size, since the
        # unpacked size of one batch is bounded.
        if not offsets.has_room(head.count):
            return False
        # The offset would not fit into a slot.
        if head.last_offset - offsets.base >= MAX_OFFSETS - 1:
            return False
        try:
            records = read_columns(data, pos, head)
        except Unreadable:
            return True  # it will stay as it is, and replaces nothing
        offsets.put(records.keys, records.deltas, head.base_offset)
        return True


class Cleaner:
    """The second pass, over [log start, `end`). `producers`: their known states, by producer id."""

    __slots__ = ("_delete_retention_ms", "_end", "_now_ms", "_offsets", "_producers", "cleaned",
                 "done", "next_offset", "stats")  # fmt: skip

    def __init__(
        self,
        offsets: OffsetMap,
        aborted: list[Aborted],
        producers: Mapping[int, LastBatch],
        end: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self.cleaned = Cleaned(aborted)
        self._producers = producers
        self._end = end
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self.next_offset = 0
        self.done = False
        self.stats = Stats()

    def clean(self, data: bytes, end: int) -> list[memoryview]:
        """Compact the next whole batches in data[:end]; unchanged parts are returned as views.

        DamagedBatch for one that is not what was written.
        """
        view, parts = memoryview(data), []
        run = pos = 0  # [run, pos) stays unchanged
        while pos < end:
            head = head_at(data, pos, end, self.next_offset)
            stop = pos + head.size_bytes
            if head.last_offset >= self._end:
                self.done = True
                break
            other = self._control(data, pos, head) if head.attributes & CONTROL else (
                self._data(data, pos, head)
            )  # fmt: skip
            # A replacement, or nothing: the unchanged run before it ends here.
            if other is not None:
                if pos > run:
                    parts.append(view[run:pos])
                if other:
                    parts.append(memoryview(other))
                run = stop
            self.next_offset = head.last_offset + 1
            pos = stop
        if pos > run:
            parts.append(view[run:pos])
        self.stats.bytes_read += pos
        self.stats.bytes_kept += sum(map(len, parts))
        return parts

    def _control(self, data: bytes, pos: int, head: BatchHead) -> bytearray | None:
        """Return None to keep the batch, empty to remove it, else its replacement."""
        may_go = self.cleaned.control(data, pos, head)
        # Emptied earlier, with its marker gone.
        if not head.count:
            return self._make_empty_batch(head)
        if not may_go:
            return None
        # KIP-534: the first cleaning that could remove it sets the horizon, a later one removes.
        if not head.attributes & DELETE_HORIZON:
            return self._with_horizon(data, pos, head)
        # Passed: consumers that read slowly have had the time.
        return self._make_empty_batch(head) if head.base_timestamp <= self._now_ms else None

    def _with_horizon(self, data: bytes, pos: int, head: BatchHead) -> bytearray | None:
        try:
            records = read_columns(data, pos, head)
            return self._rebuilt(head, records, list(range(head.count)), horizon=True)
        except Unreadable:
            self.stats.unreadable += 1
            return None

    def _data(self, data: bytes, pos: int, head: BatchHead) -> bytearray | None:
        """Do as `_control` for a batch of records."""
        stats = self.stats
        stats.read += head.count
        if self.cleaned.data(head) or not head.count:
            return self._make_empty_batch(head)
        try:
            records = read_columns(data, pos, head)
            kept = self._offsets.newest(records.keys, records.deltas, head.base_offset)
            horizon = False
            if records.nulls:
                kept, horizon = self._tombstones(head, records, kept)
            if len(kept) == head.count and not horizon:
                stats.kept += head.count
                return None
            stats.keyless += records.keys.count(None)
            if not kept:
                return self._make_empty_batch(head)
            built = self._rebuilt(head, records, kept, horizon)
        except Unreadable:
            stats.unreadable += 1
            stats.kept += head.count
            return None
        stats.kept += len(kept)
        return built

    def _tombstones(
        self, head: BatchHead, records: RecordColumns, kept: list[int]
    ) -> tuple[list[int], bool]:
        """Return the tombstones of `kept` that stay, and whether the batch needs a delete
        horizon."""
        nulls = set(records.nulls)
        if head.attributes & DELETE_HORIZON:
            # The horizon is the base timestamp of the batch.
            if head.base_timestamp <= self._now_ms:
                kept = [at for at in kept if at not in nulls]
            return kept, False
        return kept, not nulls.isdisjoint(kept)

    def _make_empty_batch(self, head: BatchHead) -> bytearray | None:
        """Return the head of a batch of which no record stays, if it is needed."""
        known = self._producers.get(head.producer_id) if head.producer_id >= 0 else None
        # The last batch of a known producer: its sequence number must survive.
        if known is not None and known[1] >= 0:
            wanted = known[1] == head.base_offset
        else:
            # Of a producer without batches, its marker with the known epoch.
            wanted = known is not None and bool(head.attributes & CONTROL) and (
                known[0] == head.producer_epoch
            )  # fmt: skip
        # The last batch of all covers the offsets up to the end.
        if not wanted and head.last_offset + 1 != self._end:
            return bytearray()
        if not head.count:
            return None
        attributes = head.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
        return rebuild_batch(head, attributes, NO_TIMESTAMP, head.max_timestamp, 0, b"")

    def _rebuilt(
        self, head: BatchHead, records: RecordColumns, kept: list[int], horizon: bool
    ) -> bytearray:
        """Return the batch with some of its records. IndexError if a timestamp does not fit into 64
        bits."""
        base, attributes = head.base_timestamp, head.attributes
        deltas = read_times(records, kept)
        newest = head.max_timestamp
        # The head's time is that of all records.
        if not attributes & LOG_APPEND_TIME:
            newest = base + max(deltas)
        # The base timestamp becomes the horizon, so all deltas move.
        if horizon:
            base = self._now_ms + self._delete_retention_ms
            attributes |= DELETE_HORIZON
            if attributes & LOG_APPEND_TIME:
                deltas = [newest - base] * len(kept)
            else:
                deltas = [head.base_timestamp + delta - base for delta in deltas]
            body = move_times(records, kept, deltas)
        else:
            body = join_records(records, kept)
        if (
            not -_INT64_MAX
            <= min(*deltas, newest, base)
            <= max(*deltas, newest, base)
            <= _INT64_MAX
        ):
            # The caller keeps the batch as it is.
            raise IndexError("a timestamp is out of range")
        packed = compress(attributes & CODEC_MASK, body)
        return rebuild_batch(head, attributes, base, newest, len(kept), packed)


def rebuild_batch(
    head: BatchHead,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    packed: bytes | bytearray | memoryview,
) -> bytearray:
    """Return a batch that replaces another: same offsets, producer, sequence, leader epoch."""
    out = bytearray(HEAD_BYTES)
    HEAD.pack_into(
        out, 0, head.base_offset, HEAD_BYTES - PREFIX_BYTES + len(packed), head.leader_epoch,
        MAGIC, 0, attributes, head.last_delta, base_timestamp, max_timestamp, head.producer_id,
        head.producer_epoch, head.base_sequence, count,
    )  # fmt: skip
    out += packed
    resum(out, 0, len(out))
    return out


def read_times(records: RecordColumns, kept: list[int]) -> list[int]:
    """Return the timestamp deltas of some records. IndexError for an invalid number."""
    data, stops, start = records.data, records.stops, records.start
    return [read_time_delta(data, stops[at - 1] if at else start) for at in kept]


def move_times(records: RecordColumns, kept: list[int], deltas: list[int]) -> bytearray:
    """Return the bytes of some records, with other timestamp deltas."""
    data, out = records.data, bytearray()
    for at, delta in zip(kept, deltas, strict=True):
        # Length and attributes, then the time delta, which is replaced; the rest is copied.
        _, pos = read_uvarint(data, records.record_start(at))
        _, rest = read_varlong(data, pos + 1)
        body = bytearray(data[pos : pos + 1])
        put_varint(body, delta)
        body += data[rest : records.stops[at]]
        put_varint(out, len(body))
        out += body
    return out


def join_records(records: RecordColumns, kept: list[int]) -> bytearray:
    """Return the bytes of some records, unchanged."""
    data, out = records.data, bytearray()
    first = last = -1
    for at in kept:
        # Adjacent records are copied together.
        if at != last + 1 or first < 0:
            if first >= 0:
                out += data[records.record_start(first) : records.stops[last]]
            first = at
        last = at
    if first >= 0:
        out += data[records.record_start(first) : records.stops[last]]
    return out
