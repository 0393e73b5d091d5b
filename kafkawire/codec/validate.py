"""Validation of a producer's batch before it enters the log. Hot for every Produce.

`check_batch` checks head and checksum in about a microsecond; `walk` checks every record;
`check_ends` decompresses the records and checks the first and the last one; `convert` makes the
stored form if that differs from the sent one (compression.type).

The order of the checks and their codes are Kafka's (ProduceRequest.validateRecords, UnifiedLog,
LogValidator), stricter in three points: bytes after the batch, offset deltas other than 0..n-1 and
the timestamp type bit are always refused. For compressed bytes that cannot be read Kafka answers
UNKNOWN_SERVER_ERROR, this broker INVALID_RECORD: clients send neither again.

Not here: producer sequences (`kafkawire.log.partition.producers`).
"""

from collections.abc import Generator, Sequence
from struct import Struct
from typing import Final, NoReturn

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL,
    COUNT,
    CRC_FROM,
    HEAD,
    HEAD_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    resum,
    stamp,
    unpacked_limit,
)
from kafkawire.codec.compression import (
    CODEC_NAMES,
    NONE,
    PACKED_AT_ONCE,
    BufferTooSmall,
    compress,
    decompress,
    decompress_into,
    refusal_of,
)
from kafkawire.codec.configs.settings import NO_RECORD_BOUND, TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import read_uvarint
from kafkawire.codec.walk import (
    MAX_WALKED_RECORDS,
    Walked,
    newest_of_ends,
    walk_fields,
    walk_records,
    walk_steps,
)
from kafkawire.crc32c import crc32c

Head = tuple[int, ...]
"""The 13 fields of `batches.HEAD`, in its order, and four of the first record as `walk` reads it
when it is the only one: length, the deltas of time and offset in one, key length, value length."""

MAX_RECORDS_AT_ONCE = 2000
"""Records that are walked without a pause: under a millisecond."""
MAX_BYTES_AT_ONCE = 2 << 20
"""Bytes of records that are unpacked and copied without a pause: a millisecond or two."""
MAX_CONVERTED_AT_ONCE = 24 << 10
"""Bytes of records that are compressed without a pause: a millisecond with the slowest codec,
gzip."""
MAX_TWICE_AT_ONCE = 128 << 10
"""Bytes of a compressed batch that is unpacked twice without a pause, once for its ends."""

_rooms: list[bytearray] = []
"""Buffers of MAX_BYTES_AT_ONCE, as many as threads have decompressed at a time."""

_BLAMED_IN_A_STEP = 128
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

# Limit of invalid records listed in a response; clients show the first few. Without it a batch of
# many empty records would cause a response of hundreds of megabytes.
_RECORD_ERRORS_MAX = 1000

_SHORT_BYTES_MAX: Final = 126
"""A batch of one record up to this size has its length in one byte, if it is as short as can be."""
_LONG_BYTES_MAX: Final = HEAD_BYTES + 2 + (1 << 13) - 1
"""... and up to this in two."""
# One call for all checks of a batch of one small record.
_unpack_short: Final = Struct(HEAD.format + "BxHBB").unpack_from
_unpack_long: Final = Struct(HEAD.format + "HxHBB").unpack_from
_LEAD_BYTES: Final = HEAD_BYTES + RECORD_BYTES_MIN
_REFUSED: Final = LOG_APPEND_TIME | CONTROL
_CODECS: Final = len(CODEC_NAMES)


HEAD_ONLY, STANDARD, FULL = "head", "standard", "full"
"""Values of record.validation."""
NO_BOUND_MS: Final = (1 << 63) - 1
AFTER_MAX_DEFAULT_MS: Final = 3_600_000
"""Default of message.timestamp.after.max.ms: checked on the batch head alone."""


_LENGTH_BYTES_MAX: Final = 5  # of the varint before a record
_MEASURED_IN_A_STEP: Final = 2_000


class LongBatch(Exception):
    """Checking or converting the records of a batch would block the event loop for too long.
    Nothing has been changed."""


def check_batch(buf: memoryview, max_message_bytes: int) -> Head:
    """Return the head of the one batch that must fill `buf`, checked with its CRC. Raises
    KafkaError; the records are not checked."""
    size = len(buf)
    if size < _LEAD_BYTES:
        _refuse(buf, max_message_bytes)
    head: Head = (_unpack_long if size > _SHORT_BYTES_MAX else _unpack_short)(buf)
    (
        base, length, _, magic, crc, attributes, last_delta, _, _, producer, _, sequence, count,
        _, _, _, _,
    ) = head  # fmt: skip
    # One expression for all that is wrong at once; which it was is found out when it matters.
    if (
        length != size - PREFIX_BYTES
        or magic != MAGIC
        or base
        or size > max_message_bytes
        or crc32c(buf[CRC_FROM:]) != crc
        or not 0 <= last_delta == count - 1
        or (attributes and (attributes & _REFUSED or (attributes & TRANSACTIONAL and producer < 0)))
        or (producer >= 0 and sequence < 0)
    ):
        _refuse(buf, max_message_bytes)
    if attributes and attributes & CODEC_MASK:
        _check_codec(attributes & CODEC_MASK)
        size = unpacked_limit(size)
    if count > 1 and count * RECORD_BYTES_MIN > size - HEAD_BYTES:
        _refuse(buf, max_message_bytes)
    return head


def _check_codec(codec: int) -> None:
    if codec >= _CODECS:
        text = f"compression type {codec} cannot be used in this version of the request"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)


def _refuse(buf: memoryview, max_message_bytes: int) -> NoReturn:
    """Raise for the first thing wrong with the batch, in Kafka's order."""
    size = len(buf)
    if size < HEAD_BYTES:
        raise _invalid(f"{size} bytes hold no record batch")
    head = HEAD.unpack_from(buf)
    base, length, _, magic, crc, attributes = head[:6]
    if length + PREFIX_BYTES < HEAD_BYTES or not 0 <= magic <= MAGIC:
        text = f"there is no batch of length {length} and format {magic}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
    if length + PREFIX_BYTES > size:
        raise _invalid(f"a batch of {length + PREFIX_BYTES} bytes is cut off at {size}")
    if magic != MAGIC:
        raise _invalid(f"batches of format {magic} are not accepted, only those of format 2")
    _check_codec(attributes & CODEC_MASK)
    if length + PREFIX_BYTES < size:
        raise _invalid("a partition takes exactly one batch of a request")
    if base:
        raise _invalid(f"the base offset must be 0, not {base}")
    if size > max_message_bytes:
        text = f"a batch of {size} bytes is over the topic's max.message.bytes {max_message_bytes}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if crc32c(buf[CRC_FROM:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch does not fit")
    _refuse_fields(head, size - HEAD_BYTES)


def _refuse_fields(head: Head, size_bytes: int) -> NoReturn:
    _, _, _, _, _, attributes, last_delta, _, _, producer, _, sequence, count = head
    if not 0 <= last_delta == count - 1:
        raise _invalid(f"{count} records cannot end at offset delta {last_delta}")
    if attributes & CONTROL:
        raise _invalid("only the broker writes control batches")
    if sequence < 0 <= producer:
        raise _invalid(f"producer {producer} sent the sequence number {sequence}")
    if attributes & TRANSACTIONAL and producer < 0:
        text = "a transactional batch must have a producer ID"
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, text)
    if attributes & LOG_APPEND_TIME:
        text = "only the broker sets the timestamp type LogAppendTime"
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)
    raise _invalid(f"{count} records cannot be in {size_bytes} bytes")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, text)


def must_walk(head: Head, config: TopicConfig, now_ms: int, validation: str) -> bool:
    """Return whether all records of a checked batch must be checked; if not, only its first and
    last one are, or none if heads are trusted. `validation`: record.validation."""
    if (
        head[COUNT] <= MAX_WALKED_RECORDS
        # Clients that leave the newest time unset send 0 or -1.
        or head[MAX_TIMESTAMP] < head[BASE_TIMESTAMP]
        or validation == FULL
        or config.cleanup_compact
        or config.schedules
        or config.after_max_ms != AFTER_MAX_DEFAULT_MS
        or config.before_max_ms != NO_BOUND_MS
    ):
        return True
    if head[MAX_TIMESTAMP] > now_ms + AFTER_MAX_DEFAULT_MS and not config.timestamp_type:
        text = f"timestamp {head[MAX_TIMESTAMP]} is too far in the future"
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)
    return False


def check_records(
    buf: memoryview, head: Head, config: TopicConfig, now_ms: int, validation: str
) -> int:
    """Check the records of a checked batch as far as `validation` wants. As `walk`."""
    if head[ATTRIBUTES] & CODEC_MASK and config.max_record_bytes < NO_RECORD_BOUND:
        raise LongBatch  # each of its records is measured
    if head[COUNT] <= MAX_WALKED_RECORDS:  # hot
        return walk(buf, head, config, now_ms)
    if must_walk(head, config, now_ms, validation):
        return walk(buf, head, config, now_ms)
    if validation == HEAD_ONLY or check_ends(buf, head):
        return head[MAX_TIMESTAMP]
    if head[ATTRIBUTES] & CODEC_MASK and len(buf) > MAX_TWICE_AT_ONCE:
        raise LongBatch
    return walk(buf, head, config, now_ms)


def walk(buf: memoryview, head: Head, config: TopicConfig, now_ms: int) -> int:
    """Check every record of a checked batch; return the largest record timestamp.

    The caller stamps the batch if its head has another one (`batches.stamp`).
    Raises KafkaError with `record_errors`: INVALID_TIMESTAMP if any record's time is outside the
    topic's bounds (under LogAppendTime there are none), INVALID_RECORD for a null key in a
    compacted topic; without them for records that do not fit their bytes. LongBatch where that
    would take more than two milliseconds, and for a schedule topic, whose records have to be
    checked by kafkawire.schedules, too: use `walk_long`. Hot for one record.
    """
    newest, count = head[BASE_TIMESTAMP], head[COUNT]
    if (
        count == 1
        and not config.schedules
        and not head[ATTRIBUTES] & CODEC_MASK
        and _is_plain(buf, head, config.cleanup_compact)
        and (
            config.timestamp_type
            or -config.after_max_ms <= now_ms - newest <= config.before_max_ms
            or newest == NO_TIMESTAMP
        )
    ):
        return newest
    return _walk_all(buf, head, config, now_ms)


def _walk_all(buf: memoryview, head: Head, config: TopicConfig, now_ms: int) -> int:
    """Walk a batch at once. Raises LongBatch if that would take too long, without any effect."""
    codec, size = head[ATTRIBUTES] & CODEC_MASK, len(buf)
    if head[COUNT] > MAX_RECORDS_AT_ONCE or size > MAX_BYTES_AT_ONCE or config.schedules:
        raise LongBatch
    if codec:
        room = _room()
        try:
            size = _unpack_at_once(codec, buf[HEAD_BYTES:], room)
            pos, data = 0, bytes(memoryview(room)[:size])
        finally:
            _rooms.append(room)
    else:
        pos, data = HEAD_BYTES, buf.tobytes()  # indexing bytes is twice as fast as a view
    walked = Walked(pos)
    try:
        walk_records(data, walked, head[COUNT], head[BASE_TIMESTAMP])
        if walked.count < head[COUNT]:
            raise LongBatch
        walked.end_walk(data, head[BASE_TIMESTAMP])
    except IndexError as wrong:
        raise _invalid(f"a record does not fit its bytes: {wrong}") from None
    for _ in _judge(data, pos, head, config, now_ms, walked):
        pass  # few enough to walk at once
    return walked.newest


def _decompress_records(codec: int, packed: Buffer, limit: int, at_once: int) -> Buffer:
    """Return the decompressed records. LongBatch if they have more than `at_once` but at most
    `limit` bytes; MESSAGE_TOO_LARGE above that."""
    _check_packed(codec, packed, limit > at_once)
    try:
        return decompress(codec, packed, min(limit, at_once))
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and limit > at_once:
            raise LongBatch from None
        raise _by_sender(error) from None


def _room() -> bytearray:
    """Return a buffer for `_unpack_at_once`, to be given back to `_rooms`. It is used again, as a
    new one is cleared first, which takes longer than lz4."""
    try:
        return _rooms.pop()
    except IndexError:
        return bytearray(MAX_BYTES_AT_ONCE)


def _unpack_at_once(codec: int, packed: Buffer, room: bytearray) -> int:
    """Decompress records into `room`, and return how many bytes they have. As `_unpacked`."""
    _check_packed(codec, packed, at_once=True)
    try:
        return decompress_into(codec, packed, room)
    except BufferTooSmall:
        raise LongBatch from None
    except KafkaError as error:
        raise _by_sender(error) from None


def _check_packed(codec: int, packed: Buffer, at_once: bool) -> None:
    if at_once and len(packed) > PACKED_AT_ONCE.get(codec, len(packed)):
        raise LongBatch
    refusal = refusal_of(codec, packed)
    if refusal is not None:
        raise _invalid(refusal)


def _by_sender(error: KafkaError) -> KafkaError:
    """Return the error for data that its sender has damaged: clients would send it again."""
    return _invalid(error.message or "") if error.code is ErrorCode.CORRUPT_MESSAGE else error


def unpack_long(
    buf: memoryview, head: Head, max_record_bytes: int = NO_RECORD_BOUND
) -> bytes | bytearray:
    """Return the decompressed records of a checked batch, each of at most `max_record_bytes`; to be
    run in a thread."""
    limit = unpacked_limit(len(buf))
    codec, bound = head[ATTRIBUTES] & CODEC_MASK, limit
    if codec != NONE:
        bound = min(limit, head[COUNT] * (max_record_bytes + _LENGTH_BYTES_MAX))
    try:
        data = _decompress_records(codec, buf[HEAD_BYTES:], bound, bound)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and bound < limit:
            raise record_too_large(max_record_bytes) from None
        raise
    return data if isinstance(data, bytearray) else bytes(data)


def measure_records(
    data: bytes | bytearray, count: int, max_record_bytes: int
) -> Generator[None, None, None]:
    """Raise INVALID_RECORD if one of `count` decompressed records has more bytes; a generator that
    yields about every millisecond."""
    pos = 0
    try:
        for index in range(count):
            length, pos = read_uvarint(data, pos)
            if length >> 1 > max_record_bytes:
                raise record_too_large(max_record_bytes)
            pos += length >> 1
            if not index % _MEASURED_IN_A_STEP:
                yield
    except IndexError as wrong:
        raise _invalid(f"a record does not fit its bytes: {wrong}") from None


def record_too_large(max_record_bytes: int) -> KafkaError:
    """Return the error for a record in a compressed batch that is over the limit of the topic."""
    return _invalid(
        f"a record has more than the topic's max.decompressed.message.bytes {max_record_bytes}"
    )


def ends_are_valid(records: memoryview, head: Head) -> bool:
    """Return whether the first and the last of the decompressed records of a batch are valid and
    not newer than its head says. If not, walk it: that finds out what is wrong, or correct."""
    try:
        return newest_of_ends(records, head[COUNT], head[BASE_TIMESTAMP]) <= head[MAX_TIMESTAMP]
    except IndexError:
        return False


def check_ends(buf: memoryview, head: Head) -> bool:
    """Decompress a checked batch, and return whether `ends_are_valid`.

    Raises KafkaError: INVALID_RECORD if it cannot be decompressed; LongBatch where that would take
    too long.
    """
    records, codec = buf[HEAD_BYTES:], head[ATTRIBUTES] & CODEC_MASK
    if codec == NONE:  # hot
        try:
            return (
                newest_of_ends(records, head[COUNT], head[BASE_TIMESTAMP], parse=False)
                <= head[MAX_TIMESTAMP]
            )
        except IndexError:
            return False
    room = _room()
    try:
        size = _unpack_at_once(codec, records, room)
        return ends_are_valid(memoryview(room)[:size], head)
    finally:
        _rooms.append(room)


def walk_long(
    data: bytes | bytearray, head: Head, config: TopicConfig, now_ms: int
) -> Generator[None, None, int]:
    """Walk decompressed records as `walk` does, as a generator that yields about every
    millisecond."""
    walked = Walked(0)
    try:
        yield from walk_steps(data, walked, head[COUNT], head[BASE_TIMESTAMP])
        walked.end_walk(data, head[BASE_TIMESTAMP])
    except IndexError as wrong:
        raise _invalid(f"a record does not fit its bytes: {wrong}") from None
    yield from _judge(data, 0, head, config, now_ms, walked)
    return walked.newest


def _judge(
    data: bytes | bytearray, pos: int, head: Head, config: TopicConfig, now_ms: int, walked: Walked
) -> Generator[None, None, None]:
    """Raise if the timestamp or key of a record is not allowed in the topic."""
    lowest, highest = _INT64_MIN, _INT64_MAX  # base and delta may be more together
    if not config.timestamp_type:
        lowest = max(lowest, now_ms - config.before_max_ms)
        highest = min(highest, now_ms + config.after_max_ms)
    compacted = config.cleanup_compact
    if (walked.keyless and compacted) or walked.newest > highest or walked.oldest < lowest:
        yield from _blame(data, pos, head, compacted, lowest, highest)


def _is_plain(buf: memoryview, head: Head, compacted: bool) -> bool:
    """Return True if the one record of a batch is valid and of the most common form: at the base
    time, without headers, lengths of one or two bytes, which follow from the batch's size. Takes
    half the time of the general check for small batches."""
    _, _, _, _, _, _, _, _, _, _, _, _, _, length, moved, key, value = head
    size = len(buf)
    if size > _SHORT_BYTES_MAX:
        body, pos = size - HEAD_BYTES - 2, HEAD_BYTES + 6
        wanted = 0x8000 | (body & 0x3F) << 9 | body >> 6
    else:
        pos = HEAD_BYTES + 5
        wanted = size - HEAD_BYTES - 1 << 1
    if length != wanted or moved or key > 0x7F or size > _LONG_BYTES_MAX:
        return False
    if not key & 1:
        pos += key >> 1
        if pos >= size:
            return False
        value = buf[pos]
    elif compacted:
        return False
    rest = size - pos - 2  # bytes between the length of the value and the count of headers
    if rest < 0x40:
        return value == rest << 1 and not buf[size - 1]
    rest -= 1
    return value == 0x80 | rest << 1 & 0x7F and buf[pos + 1] == rest >> 6 and not buf[size - 1]


def _blame(
    data: bytes | bytearray, pos: int, head: Head, compacted: bool, lowest: int, highest: int
) -> Generator[None, None, NoReturn]:
    """Raise with the list of invalid records; slow, for a batch already known to have one."""
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    count = 0
    for index in range(head[COUNT]):  # the walk has validated them
        moved, key, _, pos = walk_fields(data, pos, index)
        time, text = head[BASE_TIMESTAMP] + ((moved >> 1) ^ -(moved & 1)), None
        if key & 1 and compacted:
            text = "a compacted topic takes no record without a key"
        elif time != NO_TIMESTAMP and not lowest <= time <= highest:
            code = ErrorCode.INVALID_TIMESTAMP
            text = f"timestamp {time} is outside [{lowest}, {highest}]"
        if text is not None:
            count += 1
            if len(errors) < _RECORD_ERRORS_MAX:
                errors.append((index, text))
        if not index % _BLAMED_IN_A_STEP:
            yield
    raise KafkaError(code, _summary(count, errors), errors)


def _summary(count: int, errors: Sequence[tuple[int, str]]) -> str:
    first = "; ".join(f"record {index}: {text}" for index, text in errors[:3])
    return f"{count} of the batch's records are refused: {first}"


def convert(
    buf: Buffer,
    head: Head,
    codec: int,
    level: int | None,
    log_append_time: int | None,
    *,
    at_once: bool = False,
) -> bytearray:
    """Return the batch to store: under `codec` (compression.type) and, if not None, with
    `log_append_time` (ms) as the time of every record.

    A batch of the same codec keeps its records' bytes, whatever their level, as in Kafka. The
    result may be larger than `buf`: the caller checks max.message.bytes again. With `at_once`,
    LongBatch for a batch that should be compressed in a thread.
    """
    current = head[ATTRIBUTES] & CODEC_MASK
    if codec == current:
        out = bytearray(buf)
    else:
        packed = memoryview(buf)[HEAD_BYTES:]
        limit = unpacked_limit(len(buf))
        if at_once and len(buf) > MAX_CONVERTED_AT_ONCE:
            raise LongBatch
        data = _decompress_records(
            current, packed, limit, MAX_CONVERTED_AT_ONCE if at_once else limit
        )
        out = bytearray(buf[:HEAD_BYTES])
        out += compress(codec, data, level) if codec != NONE else data
        attributes = head[ATTRIBUTES] & ~CODEC_MASK | codec
        out[21:23] = attributes.to_bytes(2, "big", signed=True)
        out[LENGTH_AT : LENGTH_AT + 4] = (len(out) - PREFIX_BYTES).to_bytes(4, "big")
    if log_append_time is None:
        resum(out, 0, len(out))  # the newest time is that of `buf`: `walk` may have corrected it
    else:
        stamp(out, log_append_time, log_append=True)
    return out
