"""Record batches, format 2 (KIP-98): reading, walking and building them.

    0 base offset     i64   given by the broker          -.
    8 length          i32   of everything after it        | not covered
   12 leader epoch    i32   given by the broker           | by the CRC
   16 magic           i8    2                             |
   17 crc             u32   CRC-32C of 21..end           -'
   21 attributes      i16   0-2 codec, 3 log append time, 4 transactional, 5 control, 6 horizon
   23 last delta      i32   last offset - base offset
   27 base timestamp  i64   ms
   35 max timestamp   i64   ms; under log append time every record's timestamp
   43 producer id     i64   -1: none
   51 producer epoch  i16
   53 base sequence   i32
   57 count           i32
   61 records         with a codec: one compressed stream of them

The format of records is in `codec.record_columns`, which reads them.

All input is checked against its bounds, but fields that need not be interpreted are accepted; the
rules for producers are in `codec.validate`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import Final

from kafkawire.codec.compression import compress, decompress
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import put_varint, read_uvarint, read_varint
from kafkawire.crc32c import crc32c

HEAD: Final = Struct(">qiibIhiqqqhii")
HEAD_BYTES: Final = 61
PREFIX_BYTES: Final = 12  # base offset and length, which `length` does not count
CRC_FROM: Final = 21
MAGIC: Final = 2

BASE_OFFSET_AT, LENGTH_AT, LEADER_EPOCH_AT, MAGIC_AT, CRC_AT = 0, 8, 12, 16, 17
ATTRIBUTES_AT, LAST_DELTA_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT = 21, 23, 27, 35
PRODUCER_ID_AT, PRODUCER_EPOCH_AT, BASE_SEQUENCE_AT, COUNT_AT = 43, 51, 53, 57

# Where the fields are in a tuple of HEAD, for the hot paths that create no BatchHead.
BASE_OFFSET: Final = 0
LENGTH: Final = 1
LEADER_EPOCH: Final = 2
CRC: Final = 4
ATTRIBUTES: Final = 5
LAST_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
COUNT: Final = 12

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP: Final = -1
LAST_DELTA_MAX = (1 << 31) - 1
RECORD_BYTES_MIN: Final = 7  # seven fields of at least one byte

_RECORDS_AT_ONCE = 128
"""Records whose fields are found before the first is decoded: the first one is often enough."""
_UNPACKED_BYTES_MIN = 64 * 1024 * 1024
_CRC = Struct(">I")
_FRONT = Struct(">qiibI")  # the head fields that the CRC does not cover, and the CRC
_REST = Struct(">hiqqqhii")  # the others
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


class BatchHead:
    """The thirteen head fields by name, in the order of the bytes; `size_bytes` is all of it."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "last_delta",
        "leader_epoch",
        "length",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, fields: tuple[int, ...]) -> None:
        (
            self.base_offset,
            self.length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = fields

    @property
    def size_bytes(self) -> int:
        return self.length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


class Record:
    """One record with its absolute offset; `headers` keeps order and repeated keys. A header key
    that is not UTF-8 has surrogate escapes (`header_bytes`, `header_text`)."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.offset, self.timestamp, self.key, self.value, list(self.headers)) == (
            other.offset,
            other.timestamp,
            other.key,
            other.value,
            list(other.headers),
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Record({self.offset}, {self.timestamp}, {self.key!r}, {self.value!r})"


def read_head(buf: Buffer, pos: int = 0) -> BatchHead:
    """Return the head of the batch at `pos`. KafkaError(CORRUPT_MESSAGE) if there are fewer than 61
    bytes."""
    if len(buf) - pos < HEAD_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch head is cut off")
    return BatchHead(HEAD.unpack_from(buf, pos))


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHead]]:
    """Yield (position, head) of each complete batch of `buf`; an incomplete last one is left out.

    Raises KafkaError(CORRUPT_MESSAGE) at a length that no batch can have.
    """
    pos, end = 0, len(buf)
    while end - pos >= HEAD_BYTES:
        head = BatchHead(HEAD.unpack_from(buf, pos))
        if head.size_bytes < HEAD_BYTES:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {head.size_bytes} bytes")
        if head.size_bytes > end - pos:
            return
        yield pos, head
        pos += head.size_bytes


def unpacked_limit(size_bytes: int) -> int:
    """Return the maximum decompressed size of a batch of `size_bytes`.

    64 MiB is 64 times the default max.message.bytes, more than real data shrinks in a batch of that
    size; for larger batches four times their size is allowed too. One batch is decompressed at a
    time, so this also bounds the memory of a decompression bomb.
    """
    return max(_UNPACKED_BYTES_MIN, 4 * size_bytes)


def payload(buf: Buffer, pos: int, head: BatchHead) -> Buffer:
    """Return the decompressed records section of the batch at `pos`. KafkaError as for
    `decompress`."""
    packed = memoryview(buf)[pos + HEAD_BYTES : pos + head.size_bytes]
    if not head.attributes & CODEC_MASK:
        return packed
    return decompress(head.codec, packed, unpacked_limit(head.size_bytes))


def records(buf: Buffer, pos: int = 0) -> Iterator[Record]:
    """Return the records of the batch at `pos`, without checking its CRC.

    Raises KafkaError: CORRUPT_MESSAGE for invalid bytes, MESSAGE_TOO_LARGE for a decompression
    bomb.
    """
    head = read_head(buf, pos)
    if not HEAD_BYTES <= head.size_bytes <= len(buf) - pos or head.magic != MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "this is no whole batch of format 2")
    return records_in(bytes(payload(buf, pos, head)), head)


def records_in(data: bytes, head: BatchHead) -> Iterator[Record]:
    """Return the records of a batch whose decompressed records section is `data`.
    KafkaError(CORRUPT_MESSAGE) for invalid bytes, after the records before them."""
    base, base_time = head.base_offset, head.base_timestamp
    stamp = head.max_timestamp if head.attributes & LOG_APPEND_TIME else None
    begin, left, wrong = 0, head.count, None
    try:
        while left > 0:
            columns = RecordColumns(data, begin)
            try:
                columns.read(len(data), left if left < _RECORDS_AT_ONCE else _RECORDS_AT_ONCE)
            except IndexError as caught:
                wrong = caught  # raised after the records before it
            for stop, delta, key, at in zip(  # noqa: B905 (they have one length)
                columns.stops, columns.deltas, columns.keys, columns.values
            ):
                timestamp = base_time + read_time_delta(data, begin) if stamp is None else stamp
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = read_uvarint(data, at - 1)
                if size & 1:
                    value = None
                else:
                    size >>= 1
                    value = data[at : at + size]
                    at += size
                if at + 1 == stop and not data[at]:  # as most have none
                    yield Record(base + delta, timestamp, key, value, [])
                else:
                    yield Record(base + delta, timestamp, key, value, read_headers(data, at, stop))
                begin = stop
            if wrong is not None:
                raise wrong
            left -= _RECORDS_AT_ONCE
        if begin != len(data):
            raise IndexError("bytes are left after the last record")
    except IndexError as damage:
        text = f"a record is damaged: {damage}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None


def read_headers(data: bytes, at: int, stop: int) -> list[tuple[str, bytes | None]]:
    """Return the headers that must fill data[at:stop]."""
    count, at = read_varint(data, at)
    if not 0 <= count <= stop - at:
        raise IndexError(f"{count} headers do not fit")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(data, at, stop)
        if name is None:
            raise IndexError("a header has no key")
        header, at = _read_bytes(data, at, stop)
        headers.append((name.decode("utf-8", "surrogateescape"), header))
    if at != stop:
        raise IndexError("the length is not that of the fields")
    return headers


def _read_bytes(data: bytes, pos: int, stop: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        return None, pos
    if length > stop - pos:
        raise IndexError(f"a field of {length} bytes does not fit")
    return data[pos : pos + length], pos + length


def header_bytes(key: str) -> bytes:
    """Return the key of a header as it was received: Kafka's broker takes any bytes."""
    return key.encode("utf-8", "surrogateescape")


def header_text(key: str) -> str:
    """Return the key of a header as Java's clients show it, where text must be valid Unicode."""
    return key if key.isascii() else header_bytes(key).decode("utf-8", "replace")


def put_record(out: bytearray, record: Record, delta: int, time_delta: int) -> None:
    """Append one record in wire format."""
    body = bytearray(1)
    put_varint(body, time_delta)
    put_varint(body, delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    put_varint(body, len(record.headers))
    for name, value in record.headers:
        _put_bytes(body, header_bytes(name))
        _put_bytes(body, value)
    put_varint(out, len(body))
    out += body


_ONE_RECORD = BatchHead((*(0,) * 12, 1))


def dump_record(record: Record) -> bytes:
    """Return a record by itself, in wire format with its timestamp, without its offset."""
    out = bytearray()
    put_record(out, record, 0, record.timestamp)
    return bytes(out)


def load_record(data: bytes, offset: int) -> Record:
    """Return the record of `dump_record`. Raises KafkaError(CORRUPT_MESSAGE)."""
    (record,) = records_in(data, _ONE_RECORD)
    record.offset = offset
    return record


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1, zig-zag
    else:
        put_varint(out, len(value))
        out += value


def pack(
    items: Sequence[Record],
    *,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Build a batch of `items`, at least one, with rising offsets; the first one is the base
    offset.

    `codec` goes into bits 0-2 of `attributes`.
    """
    body = bytearray()
    for _ in _put_records(body, items):
        pass
    packed = compress(codec, body, level)
    return _batch(
        items, packed, attributes & ~CODEC_MASK | codec, producer_id, producer_epoch,
        base_sequence, leader_epoch,
    )  # fmt: skip


def pack_steps(
    items: Sequence[Record], *, producer_id: int, producer_epoch: int, base_sequence: int
) -> Generator[None, None, bytearray]:
    """Build an uncompressed batch as `pack` does, as a generator that yields after each record."""
    body = bytearray()
    yield from _put_records(body, items)
    return _batch(items, body, 0, producer_id, producer_epoch, base_sequence, -1)


def _put_records(body: bytearray, items: Sequence[Record]) -> Generator[None, None, None]:
    base, base_timestamp = items[0].offset, items[0].timestamp
    for item in items:
        put_record(body, item, item.offset - base, item.timestamp - base_timestamp)
        yield


def _batch(
    items: Sequence[Record],
    packed: Buffer,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    leader_epoch: int,
) -> bytearray:
    """Return the head and the packed records of a batch, with its CRC."""
    base, base_timestamp = items[0].offset, items[0].timestamp
    out = bytearray(HEAD_BYTES)
    HEAD.pack_into(
        out,
        0,
        base,
        HEAD_BYTES - PREFIX_BYTES + len(packed),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        items[-1].offset - base,
        base_timestamp,
        max(item.timestamp for item in items),
        producer_id,
        producer_epoch,
        base_sequence,
        len(items),
    )
    out += packed
    resum(out, 0, len(out))
    return out


def build(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int = 0,
    timestamp_ms: int,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Build a batch of (key, value) pairs of one timestamp, without headers, with `pack`."""
    return pack(
        [Record(base_offset + i, timestamp_ms, k, v) for i, (k, v) in enumerate(pairs)],
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
        leader_epoch=leader_epoch,
    )


def build_one(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Build a batch of one uncompressed record: the bytes of `build`, in a fifth of its time."""
    # Before the key: attributes and the deltas of timestamp and offset; at the end: no headers.
    record = b"".join((b"\0\0\0", _prefix_with_length(key), _prefix_with_length(value), b"\0"))
    rest = (
        _REST.pack(
            attributes, 0, timestamp_ms, timestamp_ms, producer_id, producer_epoch, -1, 1
        )
        + _prefix_with_length(record)
    )  # fmt: skip
    out = bytearray(_FRONT.pack(0, len(rest) + CRC_FROM - PREFIX_BYTES, -1, MAGIC, crc32c(rest)))
    out += rest
    return out


_LENGTHS = tuple(bytes([length << 1]) for length in range(64))  # as zig-zag varints


def _prefix_with_length(field: bytes | None) -> bytes:
    """Return a field with its length in front."""
    if field is None:
        return b"\x01"  # -1, zig-zag
    size = len(field)
    if size < 64:
        return _LENGTHS[size] + field
    length = bytearray()
    put_varint(length, size)
    return bytes(length) + field


def empty_batches(first: int, end: int) -> bytearray:
    """Build batches without records that cover the offsets [first, end), as Kafka's log cleaner
    leaves them: consumers continue after them, also at the end of the log."""
    out = bytearray()
    while first < end:
        delta = min(end - first, LAST_DELTA_MAX + 1) - 1
        size = HEAD_BYTES - PREFIX_BYTES
        at = len(out)
        out += HEAD.pack(first, size, -1, MAGIC, 0, 0, delta, *[NO_TIMESTAMP] * 2, -1, -1, -1, 0)
        resum(out, at, HEAD_BYTES)
        first += delta + 1
    return out


def resum(buf: bytearray | memoryview, pos: int, length: int) -> None:
    """Write the CRC of the batch that fills buf[pos:pos+length]."""
    _CRC.pack_into(buf, pos + CRC_AT, crc32c(memoryview(buf)[pos + CRC_FROM : pos + length]))


def stamp(buf: bytearray | memoryview, max_timestamp: int, *, log_append: bool) -> None:
    """Set the max timestamp of the batch that fills `buf`, in place, and update its CRC.

    With `log_append` it is the time of every record (message.timestamp.type=LogAppendTime): readers
    use it instead of the records' own, so the records need no change.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buf, ATTRIBUTES_AT)
    if log_append:
        _ATTRIBUTES.pack_into(buf, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(buf, MAX_TIMESTAMP_AT, max_timestamp)
    resum(buf, 0, len(buf))
