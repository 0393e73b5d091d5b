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

from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, cast

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
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import read_uvarint
from kafkawire.handlers.fetch.aborted import list_aborted
from kafkawire.log.append.long_batch import FREED_AT_ONCE_BYTES, POOL
from kafkawire.log.partition.read_plan import HotRead, aborted_in, make_plan, next_offset
from kafkawire.log.segments.compact.retain import rebuild_batch
from kafkawire.log.segments.file.writer import INDEX_KEYS

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.partitions import ViewTopic
    from kafkawire.codec.fetch import FetchResult
    from kafkawire.codec.view_filter import Filter, Needle
    from kafkawire.handlers.exchange import Peer
    from kafkawire.log.partition.partition import Partition, Plan

SCAN_BYTES: Final = 16 << 20
"""Bytes of sources that one Fetch scans: they take up to half a second of the event loop, in
slices, and a client that waits 30 s for an answer gets one in time even if 20 others scan too."""
SCAN_S: Final = 0.5
"""The time after which a Fetch scans no more, and is answered with what it found."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of a source that are in memory at a time, for each partition: the usual fetch size."""
MAX_KEPT = 1_000
"""Offsets of times, and hashes of keys, that are kept. Beyond it they are found again."""

MAX_KEYS: Final = 16
"""Keys that are searched in the key index of each segment. With more, all records are read."""

_RECORDS_AT_ONCE = 128
"""Records that are found in one step, in a tenth of a millisecond."""
_WORK_BYTES = 8_192
"""Bytes of records that a filter reads in one step, each with RECORD_WORK_BYTES added."""
_RECORD_WORK_BYTES = 256
_LENGTHS_AT_ONCE = 1_024
_SEARCHED_BYTES = 256 << 10
MAX_NEEDLES: Final = 8
"""With more it is faster to read all records than to search for each of them."""
_OFFSET, _EPOCH = Struct(">q"), Struct(">i")
_UNKNOWN_TYPE: Final = b"\0\0\xff\xff"
"""The key of a control record of a type that clients ignore (Kafka: ControlRecordType.UNKNOWN)."""


class ViewRead(NamedTuple):
    """The planned read of one partition; `filter`: the text of the view's."""

    result: FetchResult
    partition: Partition
    plan: Plan
    filter: str


class ScanBudget:
    """The bytes that one Fetch may still scan, and the time until which it may, in seconds of the
    monotonic clock."""

    __slots__ = ("left_bytes", "peer", "until_s")

    def __init__(self, peer: Peer, until_s: float) -> None:
        self.peer = peer
        self.left_bytes = SCAN_BYTES
        self.until_s = until_s


class Matches:
    """The matches of one partition: `parts` of whole batches with `count` matching records.
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
        self._since: dict[tuple[int, int, int], int] = {}
        self._hashes: dict[frozenset[bytes], frozenset[int]] = {}
        self._catalog = broker.catalog

    def find(self, view: ViewTopic, index: int, leader_epoch: int) -> Partition:
        """Return the partition of the source. Raises as PartitionTable.find."""
        return self._table.find(view.source, index, leader_epoch)

    def begin(self, peer: Peer) -> ScanBudget:
        """Return what a Fetch of a client that begins to scan may use."""
        return ScanBudget(peer, self._env.clock.monotonic() + SCAN_S)

    async def read(
        self, view: ViewRead, budget: ScanBudget, patience_s: float, *, committed: bool
    ) -> tuple[int, int]:
        """Set the matching records in the result, for a reader of `committed` records with the
        aborted transactions. Return up to which offset the source was scanned, and the number of
        matches. Raises KafkaError and OSError if nothing could be read."""
        plan, end = view.plan, view.plan.end
        # In a thread: see parse_filter. It was checked when it was set.
        wanted = await self._env.offload.submit("files", _parse, view.filter)
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
                start, stop = await self._skip(view, wanted, offset, budget)
                if start > offset:
                    # The marker of an aborted transaction may be skipped, and its client would take
                    # the next one of the producer for aborted: the next Fetch has a new list.
                    if aborted:
                        break
                    offset, found.epoch = start, -1
                    continue
                piece = make_plan(view.partition, offset, PIECE_BYTES, stop, True)
                after = await self._scan(
                    view, wanted, piece, found, aborted, budget.peer, patience_s, committed
                )
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

    async def _skip(
        self, view: ViewRead, wanted: Filter, offset: int, budget: ScanBudget
    ) -> tuple[int, int]:
        """Return the first offset from `offset` on that may match, and an end of the offsets after
        it that may, too."""
        partition, end = view.partition, view.plan.end
        keys, since_ms, _ = wanted.hints
        if since_ms is not None:
            known_as = partition.number, partition.leader_epoch, since_ms
            first = self._since.get(known_as)
            if first is None:
                at = await partition.offset_for_time(since_ms)
                if at is None:
                    return end, end
                if len(self._since) >= MAX_KEPT:
                    self._since.clear()
                first = self._since[known_as] = at[0]
            offset = max(offset, min(first, end))
        if keys is not None and len(keys) <= MAX_KEYS and offset < partition.cut_offset:
            topic = self._catalog.by_id.get(partition.topic_id)
            if topic is not None and topic.configs.get(INDEX_KEYS) == "true":
                return await self._skip_by_key(view, keys, offset, budget)
        return offset, end

    async def _skip_by_key(
        self, view: ViewRead, keys: frozenset[bytes], offset: int, budget: ScanBudget
    ) -> tuple[int, int]:
        """Do as `_skip` with the key indexes of segments, until the time is over."""
        partition, end = view.partition, view.plan.end
        hashes = self._hashes.get(keys)
        if hashes is None:
            if len(self._hashes) >= MAX_KEPT:
                self._hashes.clear()
            hashes = self._hashes[keys] = frozenset(map(key_hash, keys))
        segments = partition.segments
        while offset < min(end, partition.cut_offset):
            at = segments.find(offset)
            if at >= len(segments):
                break
            row_end = segments.mapping(partition.number, at).end_offset
            for first, stop in await self._log.reader.segments.key_ranges(partition, at, hashes):
                if offset < stop:
                    return max(offset, first), min(stop, end)
            offset = min(row_end, end)
            if self._env.clock.monotonic() >= budget.until_s:
                break
        return offset, end

    async def _scan(
        self,
        view: ViewRead,
        wanted: Filter,
        piece: Plan,
        found: Matches,
        aborted: list[Aborted],
        peer: Peer,
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
                        await self._filter(wanted, batch, head, found, peer)
                    found.epoch = head.leader_epoch
                offset = next_offset(buffer, 0, len(buffer), offset)
        finally:
            if release is not None:
                release()
        return offset

    async def _filter(
        self, wanted: Filter, batch: memoryview, head: BatchHead, found: Matches, peer: Peer
    ) -> None:
        """Add the matching records of one batch. Raises CORRUPT_MESSAGE, ConnectionError."""
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
            kept = await self._env.slices.run(
                _while_connected(keep_records(data, head, wanted), peer)
            )
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


def _parse(text: str) -> Filter:
    from kafkawire.codec.view_filter import parse_filter

    return parse_filter(text)


def _unpack(batch: memoryview, head: BatchHead) -> bytes:
    return bytes(payload(batch, 0, head))


def _while_connected(steps: Generator[None, None, Kept], peer: Peer) -> Generator[None, None, Kept]:
    """Run the steps while the client is connected: a batch may have millions of records, and a
    client that has waited too long asks again."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Kept", end.value)
        if peer.closed:
            raise ConnectionError("the client of a Fetch is gone")
        yield


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
    needles = wanted.hints.needles
    base_ms = head.base_timestamp
    append_ms = head.max_timestamp if head.attributes & LOG_APPEND_TIME else None
    count, newest_ms, body, work = 0, NO_TIMESTAMP, bytearray(), 0
    if needles is None or len(needles) > MAX_NEEDLES:
        chunks = _all_records(data, head.count)
    else:
        chunks = _records_with(data, needles)
    for columns in chunks:
        begin = columns.start
        for at, stop in enumerate(columns.stops):
            if wanted.matches(Row(columns, at, base_ms, append_ms)):
                count += 1
                body += data[begin:stop]
                time = base_ms + read_time_delta(data, begin) if append_ms is None else append_ms
                newest_ms = max(newest_ms, time)
            work += _RECORD_WORK_BYTES + stop - begin
            begin = stop
            if work > _WORK_BYTES:
                work = 0
                yield
        yield
    return Kept(count, newest_ms, body)


def _all_records(data: bytes, count: int) -> Iterator[RecordColumns]:
    """Yield the records of a batch, some at a time. IndexError for damaged bytes."""
    begin = 0
    while count > 0:
        columns = RecordColumns(data, begin)
        columns.read(len(data), min(count, _RECORDS_AT_ONCE))
        count -= len(columns.stops)
        begin = columns.stop
        yield columns
    if begin != len(data):
        raise IndexError("bytes are left after the last record")


def _find(data: bytes, needle: Needle, begin: int, end: int) -> int:
    """Return where a needle is in data[begin:end], `end` if it is not."""
    if isinstance(needle, bytes):
        found = data.find(needle, begin, end)
        return end if found < 0 else found
    match = needle.search(data, begin, end)
    return end if match is None else match.start()


def _records_with(data: bytes, needles: frozenset[Needle]) -> Iterator[RecordColumns]:
    """Yield the records of a batch that may have one of the needles, one at a time, and nothing
    after each step without one. Of the others only the lengths are read, which takes a fifth of the
    time. IndexError for damaged bytes."""
    end, begin, searched = len(data), 0, 0
    nothing = RecordColumns(data, 0)
    hits = dict.fromkeys(needles, -1)
    while begin < end:
        # 1. The next needle. Where none is in what has been searched, the record at its end, in
        # which one may be, is taken for one that has it.
        searched = max(searched, min(end, begin + _SEARCHED_BYTES))
        for needle, known in hits.items():
            if known < begin:
                hits[needle] = _find(data, needle, begin, searched)
        hit = min(hits.values(), default=end)
        if hit >= end:
            return
        # 2. The record that it is in.
        while not (step := _walk(data, begin, hit))[1]:
            begin = step[0]
            yield nothing
        columns = RecordColumns(data, step[0])
        columns.read(end, 1)
        begin = columns.stop
        yield columns


def _walk(data: bytes, begin: int, hit: int) -> tuple[int, bool]:
    """Return where the record begins that has the byte at `hit`, from the beginning of one on, and
    True; False if it is further away than one step."""
    for _ in range(_LENGTHS_AT_ONCE):
        pos, length = begin + 1, data[begin]
        if length > 0x7F:
            length, pos = read_uvarint(data, begin)
        stop = pos + (length >> 1)
        if stop > hit:
            return begin, True
        begin = stop
    return begin, False
