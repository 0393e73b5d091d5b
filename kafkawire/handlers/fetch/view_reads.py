"""Reads of view topics: the records of another topic that match a filter, with their offsets.

A view has no partitions. A Fetch plans a read of the source's partition, and its bytes pass a
filter before they are answered: batches with a match keep their offsets, producer and compression,
as after compaction, others are left out. At the end of a range without matches is a control batch
of one record. Clients do not show it, and continue after it. (An empty batch would do for most, but
librdkafka takes it for a fetch size that is too small: it doubles that, and reports an error after
eleven of them.) Control batches of the source are passed on to readers of committed records, as
they are, and so are the lists of aborted transactions.

One Fetch scans SCAN_BYTES of the sources. Batches are decompressed in threads, and their records
are read in slices of the event loop. Offsets that cannot match are not read, as far as the indexes
of the source show it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkawire.codec.batches import (
    CODEC_MASK,
    CONTROL,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHead,
    build_one,
    iter_batches,
    payload,
)
from kafkawire.codec.compression import compress
from kafkawire.codec.configs.view_rules import VIEW_FILTER
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.types import Buffer
from kafkawire.handlers.fetch.aborted import list_aborted
from kafkawire.log.append.long_batch import FREED_AT_ONCE_BYTES, POOL
from kafkawire.log.partition.read_plan import HotRead, aborted_in, make_plan, next_offset
from kafkawire.log.segments.compact.retain import rebuild_batch

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.partitions import ViewTopic
    from kafkawire.codec.fetch import FetchResult
    from kafkawire.codec.view_filter import Filter
    from kafkawire.log.partition.partition import Partition, Plan

SCAN_BYTES: Final = 16 << 20
"""Bytes of sources that one Fetch scans: they take up to half a second of the event loop, in
slices, and a client that waits 30 s for an answer gets one in time even if 20 others scan too."""
SCAN_S: Final = 0.5
"""The time after which a Fetch scans no more, and is answered with what it found."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of a source that are in memory at a time, for each partition: the usual fetch size."""
MAX_FILTERS = 1_000
"""Parsed filters, and offsets of times, that are kept. Beyond it they are found again."""

_RECORDS_AT_ONCE = 128
"""Records that are found in one step, in a tenth of a millisecond."""
_WORK_BYTES = 8_192
"""Bytes of records that a filter reads in one step, each with RECORD_WORK_BYTES added."""
_RECORD_WORK_BYTES = 256
_SEARCHED_BYTES = 1 << 20
_OFFSET, _EPOCH = Struct(">q"), Struct(">i")
_UNKNOWN_TYPE: Final = b"\0\0\xff\xff"
"""The key of a control record of a type that clients ignore (Kafka: ControlRecordType.UNKNOWN)."""


class ViewRead(NamedTuple):
    """The planned read of one partition. `filter` of the view."""

    result: FetchResult
    partition: Partition
    plan: Plan
    filter: Filter


class ScanBudget:
    """What is left of the bytes, and until when (in seconds of the monotonic clock) one Fetch may
    scan."""

    __slots__ = ("left_bytes", "until_s")

    def __init__(self, until_s: float) -> None:
        self.left_bytes = SCAN_BYTES
        self.until_s = until_s


class Matches:
    """What was found for one partition: `parts` of whole batches with `count` matching records.
    `next_offset`: that after the last batch; `epoch`: the leader epoch of the last scanned one."""

    __slots__ = ("count", "epoch", "next_offset", "parts", "size_bytes")

    def __init__(self, offset: int) -> None:
        self.parts: list[Buffer] = []
        self.size_bytes = self.count = 0
        self.next_offset = offset
        self.epoch = -1

    def add(self, batch: Buffer, head: BatchHead, count: int) -> None:
        self.parts.append(batch)
        self.size_bytes += len(batch)
        self.count += count
        self.next_offset = head.last_offset + 1


class Kept(NamedTuple):
    """Matching records of a batch: how many, their newest timestamp, their bytes."""

    records: int
    newest_ms: int
    body: bytearray


class ViewReads:
    """Reads views for Fetches; one for the life of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._table = broker.table
        self._log = broker.log.commit_log
        self._memory = broker.answer_memory
        self._env = broker.env
        self._filters: dict[str, Filter] = {}
        self._since: dict[tuple[int, int, int], int] = {}

    def find(self, view: ViewTopic, index: int, leader_epoch: int) -> Partition:
        """Return the partition of the source. Raises as PartitionTable.find."""
        return self._table.find(view.source, index, leader_epoch)

    def filter_of(self, view: ViewTopic) -> Filter | None:
        """Return the filter of a view; None if it has all records."""
        text = view.view.configs.get(VIEW_FILTER, "")
        if not text:
            return None
        found = self._filters.get(text)
        if found is None:
            from kafkawire.codec.view_filter import parse_filter

            if len(self._filters) >= MAX_FILTERS:
                self._filters.clear()
            found = self._filters[text] = parse_filter(text)  # it was checked when it was set
        return found

    def begin(self) -> ScanBudget:
        """Return what a Fetch that begins to scan may use."""
        return ScanBudget(self._env.clock.monotonic() + SCAN_S)

    async def read(
        self, view: ViewRead, budget: ScanBudget, patience_s: float, *, committed: bool
    ) -> tuple[int, int]:
        """Set the matching records in the result, for a reader of `committed` records with the
        aborted transactions. Return up to which offset the source was scanned, and the number of
        matches. Raises KafkaError and OSError if nothing could be read."""
        plan, end = view.plan, view.plan.end
        offset, found = plan.offset, Matches(plan.offset)
        aborted: list[Aborted] = []
        self._memory.add_bytes(PIECE_BYTES)
        try:
            while (
                offset < end
                and found.size_bytes < plan.size_bytes
                and budget.left_bytes > 0
                and self._env.clock.monotonic() < budget.until_s
            ):
                start = await self._skip(view, offset)
                if start > offset:
                    # The marker of an aborted transaction may be skipped, and its client would take
                    # the next one of the producer for aborted: the next Fetch has a new list.
                    if aborted:
                        break
                    offset, found.epoch = start, -1
                    continue
                piece = make_plan(view.partition, offset, PIECE_BYTES, end, True)
                after = await self._scan(view, piece, found, aborted, patience_s, committed)
                if after <= offset:  # a remote tier has not answered yet
                    break
                budget.left_bytes -= piece.size_bytes
                offset = after
        except (KafkaError, OSError):
            if offset == plan.offset:
                raise
            # Reported when the reader gets there.
        finally:
            self._memory.release(PIECE_BYTES)
        result = view.result
        result.records = [*found.parts]
        if offset > found.next_offset:
            result.records.append(make_skip(offset, found.epoch))
        result.size_bytes = sum(map(len, result.records))
        if aborted:
            result.aborted = list_aborted(aborted)
        return offset, found.count

    async def _skip(self, view: ViewRead, offset: int) -> int:
        """Return the first offset from `offset` on that may match."""
        since_ms, partition = view.filter.hints.since_ms, view.partition
        if since_ms is not None:
            key = partition.number, partition.leader_epoch, since_ms
            first = self._since.get(key)
            if first is None:
                end = view.plan.end
                at = await partition.offset_for_time(since_ms)
                if at is None:
                    return max(offset, end)
                if len(self._since) >= MAX_FILTERS:
                    self._since.clear()
                first = self._since[key] = at[0]
            offset = max(offset, min(first, view.plan.end))
        return offset

    async def _scan(
        self,
        view: ViewRead,
        piece: Plan,
        found: Matches,
        aborted: list[Aborted],
        patience_s: float,
        committed: bool,
    ) -> int:
        """Read a piece of the source and add its matches; return the offset after it."""
        release: Callable[[], None] | None = None
        buffers: Sequence[Buffer]
        if isinstance(piece, HotRead):
            if committed:
                aborted += aborted_in(piece)
            buffers, release = self._log.views(piece)
        else:
            buffers = await self._log.read(piece, patience_s, aborted if committed else None)
        offset = piece.offset
        try:
            for buffer in buffers:
                for at, head in iter_batches(buffer):
                    await self._env.slices.give_way()
                    batch = memoryview(buffer)[at : at + head.size_bytes]
                    if head.attributes & CONTROL:
                        if committed:
                            found.add(bytes(batch), head, 0)
                    elif head.count:
                        await self._filter(view.filter, batch, head, found)
                    found.epoch = head.leader_epoch
                offset = next_offset(buffer, 0, len(buffer), offset)
        finally:
            if release is not None:
                release()
        return offset

    async def _filter(
        self, wanted: Filter, batch: memoryview, head: BatchHead, found: Matches
    ) -> None:
        """Add the matching records of one batch. Raises CORRUPT_MESSAGE."""
        since_ms = wanted.hints.since_ms
        if since_ms is not None and head.max_timestamp < since_ms:
            return
        codec = head.attributes & CODEC_MASK
        submit = self._env.offload.submit
        held = 0
        try:
            if codec or len(batch) > FREED_AT_ONCE_BYTES:
                data = [await submit(POOL, _unpack, batch, head)]
            else:
                data = [_unpack(batch, head)]
            held = len(data[0])
            self._memory.add_bytes(held)
            kept = await self._env.slices.run(keep_records(data, head, wanted))
            # Freeing 64 MiB takes milliseconds: in the thread.
            if held > FREED_AT_ONCE_BYTES:
                await submit(POOL, data.clear)
        except (KafkaError, IndexError) as damage:
            text = f"the batch at offset {head.base_offset} cannot be read: {damage}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None
        finally:
            self._memory.release(held)
        if kept.records == head.count:
            found.add(bytes(batch), head, kept.records)
        elif kept.records:
            body: Buffer = kept.body
            if codec:
                body = await submit(POOL, compress, codec, kept.body)
            newest, base = kept.newest_ms, head.base_timestamp
            part = rebuild_batch(head, head.attributes, base, newest, kept.records, body)
            found.add(part, head, kept.records)


def _unpack(batch: memoryview, head: BatchHead) -> bytes:
    return bytes(payload(batch, 0, head))


def make_skip(end: int, leader_epoch: int) -> bytearray:
    """Return the control batch with which clients continue at offset `end`."""
    batch = build_one(_UNKNOWN_TYPE, None, NO_TIMESTAMP, attributes=CONTROL)
    _OFFSET.pack_into(batch, 0, end - 1)
    _EPOCH.pack_into(batch, LEADER_EPOCH_AT, leader_epoch)
    return batch


def keep_records(
    unpacked: list[bytes], head: BatchHead, wanted: Filter
) -> Generator[None, None, Kept]:
    """Return the matching records of a batch, whose records section is the only element of
    `unpacked`; in short steps. IndexError for damaged bytes."""
    from kafkawire.codec.view_filter import Row

    (data,) = unpacked
    matches, needles = wanted.matches, wanted.hints.needles
    base_ms = head.base_timestamp
    append_ms = head.max_timestamp if head.attributes & LOG_APPEND_TIME else None
    count, newest_ms, body = 0, NO_TIMESTAMP, bytearray()
    if needles is not None and not (yield from _contains(data, needles)):
        return Kept(count, newest_ms, body)
    begin, left, work = 0, head.count, 0
    while left > 0:
        columns = RecordColumns(data, begin)
        columns.read(len(data), min(left, _RECORDS_AT_ONCE))
        left -= len(columns.stops)
        yield
        if needles is not None and not _has_any(data, begin, columns.stop, needles):
            begin = columns.stop
            continue
        for at, stop in enumerate(columns.stops):
            if (needles is None or _has_any(data, begin, stop, needles)) and matches(
                Row(columns, at, base_ms, append_ms)
            ):
                count += 1
                body += data[begin:stop]
                time = base_ms + read_time_delta(data, begin) if append_ms is None else append_ms
                newest_ms = max(newest_ms, time)
            work += _RECORD_WORK_BYTES + stop - begin
            begin = stop
            if work > _WORK_BYTES:
                work = 0
                yield
    if begin != len(data):
        raise IndexError("bytes are left after the last record")
    return Kept(count, newest_ms, body)


def _has_any(data: bytes, begin: int, stop: int, needles: frozenset[bytes]) -> bool:
    return any(data.find(needle, begin, stop) >= 0 for needle in needles)


def _contains(data: bytes, needles: frozenset[bytes]) -> Generator[None, None, bool]:
    """Return whether one of the needles is in the data, in short steps."""
    longest = max(map(len, needles), default=0)
    for begin in range(0, len(data), _SEARCHED_BYTES):
        if _has_any(data, begin, begin + _SEARCHED_BYTES + longest, needles):
            return True
        yield
    return False
