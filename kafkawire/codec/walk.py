"""Validation of the records of a batch one by one, without creating objects.

`walk_records` is the hot loop of every batch that must be walked, at once or up to a position;
`walk_steps` applies it to a batch of any length in steps: a batch of 1 MB can hold a million
records, and a record a million headers. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from struct import error as StructError
from typing import Final

from kafkawire.codec.batches import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, BatchHead
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.varint import put_uvarint, read_uvarint, read_uvarlong

NEVER = 1 << 63  # later than any timestamp

MAX_WALKED_RECORDS: Final = 8
"""Batches up to this many records are always walked before they are stored: that costs less than
the rest of a Produce, and clients that build batches wrongly are detected at once. Of larger ones
the newest timestamp in the head is what a producer said, until it is computed (`newest_steps`)."""

STEP_RECORDS = 512
STEP_BYTES = 4096
"""A piece ends after so many records, and with the record that reaches so many bytes: headers have
two bytes at least. A fifth of a millisecond, or half of one where all are headers."""

MAX_HEADERS = 256
"""A record with more headers is left to `walk_steps`."""

MAX_RECORD_HEADERS = 1 << 20
"""A record with more headers is refused, unlike in Kafka: twice as many as fit into the default
max.message.bytes without compression. A header may have two bytes, so 58 KB of gzip can hold 20
million, which take seconds to check here, and gigabytes in a consumer."""

END_BYTES, LONG_END_BYTES = 2 << 10, 64 << 10
"""Bytes at the end of a batch in which its last record is searched: first in a few, which takes a
microsecond. A batch with a longer one has few, which are walked instead."""
_FRONT_BYTES, _FRONT_BYTES_MIN = 32, 3
"""Of a record's length, attributes and the deltas of its time and offset."""
_TIMES_AT_ONCE = 2000
FEW_RECORDS, MANY_RECORDS = 16, 4096
LONG_BYTES, LONG_PACKED_BYTES = 4 << 10, 1 << 10
"""The lengths of all records are checked in batches of few, and where records have so many bytes on
average; of more than MANY in slices. One takes 65 ns, while an uncompressed Produce takes 25 us for
16 KB and 60 for 100 KB, and decompression 30 for 100 KB and more."""
_TRIES = 64
"""Positions at which the last record is supposed: each costs a microsecond, and most batches need
one or two."""
_MAX_TIME_BYTES = 10
_two_bytes: Final = Struct("<H").unpack_from
_first_bytes: Final = Struct("<HBBBB").unpack_from


class Walked:
    """Progress of a walk: `count` records so far, which end at `pos`. `unmoved`: one was at the
    base time, which `end_walk` takes into account; `keyless`: one had no key."""

    __slots__ = ("count", "keyless", "newest", "oldest", "pos", "unmoved")

    def __init__(self, pos: int) -> None:
        self.pos = pos
        self.count = 0
        self.newest = NO_TIMESTAMP
        self.oldest = NEVER
        self.keyless = False
        self.unmoved = False

    def end_walk(self, data: bytes | bytearray, base: int) -> None:
        """End the walk after the last record. IndexError if bytes are left."""
        if self.pos != len(data):
            raise IndexError("bytes are left after the last")
        if self.unmoved:  # the first record, as a rule: its time is the base
            if base > self.newest:
                self.newest = base
            if base < self.oldest and base != NO_TIMESTAMP:
                self.oldest = base


def walk_records(  # noqa: C901 (hot: no calls)
    data: bytes | bytearray, walked: Walked, last: int, base: int, until: int = NEVER
) -> None:
    """Check the records from `walked` on, up to the number `last` or the first that begins at or
    after the position `until`; it stops before one with more than MAX_HEADERS. IndexError for one
    that does not fit its bytes.

    Most records have lengths and deltas of one or two bytes and no headers: those are read
    inline, as a call would cost more than the reading. All others go to `_walk_one`.
    """
    pos, newest, oldest = walked.pos, walked.newest, walked.oldest
    delta = walked.count
    while delta < last and pos < until:
        start, high = pos, 0  # `high` gathers the last bytes of varints: they must be under 0x80
        length = data[pos]
        if length > 0x7F:
            pos += 1
            high = data[pos]
            stop = pos + (length >> 1) + (high << 6) - 63
        else:
            stop = pos + 1 + (length >> 1)
        time = data[pos + 2]  # after the attributes, which have no meaning in this format
        if time > 0x7F:
            pos += 1
            high |= data[pos + 2]
            time = time & 0x7F | data[pos + 2] << 7
        number = data[pos + 3]
        if number > 0x7F:
            pos += 1
            high |= data[pos + 3]
            number = number & 0x7F | data[pos + 3] << 7
        key = data[pos + 4]
        if high | key > 0x7F:
            fits = False  # longer varints: what was read here means nothing
        else:
            pos += 5 if key & 1 else 5 + (key >> 1)
            value = data[pos]
            if value > 0x7F:
                pos += 1
                high = data[pos]
                value = value & 0x7F | high << 7
            fits = (
                number == delta + delta
                and pos + 2 + (value >> 1) == stop
                and high < 0x80
                and not (length | value) & 1
                and not data[stop - 1]
            )
        if not fits:
            time, key, stop = _walk_one(data, start, delta)
            if stop < 0:
                pos = start
                break
        pos = stop
        delta += 1
        if key & 1:
            walked.keyless = True
        if time:
            when = base + ((time >> 1) ^ -(time & 1))
            if when > newest:
                newest = when
            if when < oldest and when != NO_TIMESTAMP:
                oldest = when
        else:
            walked.unmoved = True
    walked.pos, walked.newest, walked.oldest, walked.count = pos, newest, oldest, delta


def walk_steps(
    data: bytes | bytearray, walked: Walked, count: int, base: int
) -> Generator[None, None, None]:
    """Check all records, yielding after each step. IndexError as for `walk_records`."""
    while walked.count < count:
        before = walked.count
        last = min(count, before + STEP_RECORDS)
        walk_records(data, walked, last, base, walked.pos + STEP_BYTES)
        if walked.count == before:
            yield from _long_record(data, walked, base)
        yield


def has_exact_time(head: BatchHead) -> bool:
    """Return whether the newest timestamp in the head of a stored batch needs no check: its records
    were walked before, or the broker has set it."""
    return head.count <= MAX_WALKED_RECORDS or bool(head.attributes & (LOG_APPEND_TIME | CONTROL))


def newest_time(data: bytes, count: int, base: int) -> int:
    """Return what `newest_steps` returns, at once."""
    pos, newest = _newest_from(data, 0, count, base, NO_TIMESTAMP)
    if pos != len(data):
        raise IndexError("the records do not fill their batch")
    return newest


def newest_steps(data: bytes, count: int, base: int) -> Generator[None, None, int]:
    """Return the newest time of `count` records that fill `data`, yielding every half millisecond.
    Only lengths and times are read, in a quarter of the time of a walk. IndexError if they do not
    fit."""
    pos, newest = 0, NO_TIMESTAMP
    while count > 0:
        pos, newest = _newest_from(data, pos, min(count, _TIMES_AT_ONCE), base, newest)
        count -= _TIMES_AT_ONCE
        yield
    if pos != len(data):
        raise IndexError("the records do not fill their batch")
    return newest


def _newest_from(data: bytes, pos: int, count: int, base: int, newest: int) -> tuple[int, int]:
    """Return the end of `count` records and the newest time of them and `newest`."""
    newest -= base
    for _ in range(count):
        length = data[pos]
        if length < 0x80:
            pos += 1
            stop = pos + (length >> 1)
        elif data[pos + 1] < 0x80:
            stop = pos + (length >> 1) + (data[pos + 1] << 6) - 62
            pos += 2
        else:
            length, pos = read_uvarint(data, pos)
            stop = pos + (length >> 1)
        time = data[pos + 1]
        if time > 0x7F:
            high = data[pos + 2]
            if high < 0x80:
                time = time & 0x7F | high << 7
            else:
                time, _ = read_uvarlong(data, pos + 1)
        delta = (time >> 1) ^ -(time & 1)
        if delta > newest:
            newest = delta
        pos = stop
    return pos, newest + base


def newest_of_ends(  # noqa: C901 (hot: no calls)
    records: memoryview, count: int, base: int, parse: bool = True
) -> int:
    """Return the newest time of the first and the last of `count` records, at least two, which must
    end where `records` does. IndexError where that is not known: then all of them must be walked.
    Hot.

    Of few or long records the lengths of all must lead from one to the next (FEW_RECORDS), and the
    first one is taken to be at the base time, as it is by all clients.
    Without `parse` keys, values and headers are not read, which takes half of the time.
    """
    size, time = len(records), 0
    if count <= FEW_RECORDS or count * (LONG_PACKED_BYTES if parse else LONG_BYTES) <= size:
        if count > MANY_RECORDS:
            raise IndexError("too many lengths to check at once")
        at = 0
        try:
            for _ in range(count - 1):
                at += _STEPS[_two_bytes(records, at)[0]] or _front(records, at)[0]
        except StructError:
            raise IndexError("a record is cut off") from None
        step, other, number = _front(records, at)
        if at + step != size or number != count - 1 << 1:
            raise IndexError("its last record")
        tail, at = bytes(records[at:]) if parse else b"", 0
    else:
        step, time, number = _front(records, 0)
        if number or step > size:
            raise IndexError("its first record")
        tail = bytes(records[-END_BYTES:])
        at, other = _last_record(tail, count - 1)
        if at < 0:
            tail = bytes(records[-LONG_END_BYTES:])
            at, other = _last_record(tail, count - 1)
            if at < 0:
                raise IndexError("its last record")
    if parse:
        _, _, first = _walk_one(bytes(records[: _front(records, 0)[0]]), 0, 0)
        _, _, last = _walk_one(tail, at, count - 1)
        if first < 0 or last < 0:
            raise IndexError("its headers")
    if time | other:
        return base + max((time >> 1) ^ -(time & 1), (other >> 1) ^ -(other & 1))
    return base


def _front(records: memoryview, pos: int) -> tuple[int, int, int]:
    """Return (bytes, zig-zag timestamp delta, zig-zag offset delta) of the record at `pos`. Most
    have all that in six bytes, which are read inline."""
    try:
        size, one, two, three, four = _first_bytes(records, pos)
    except StructError:
        raise IndexError("a record is cut off") from None
    if size & 0x80:
        one, two, three = two, three, four
    step = _STEPS[size]
    if step and one < 0x80:
        if two < 0x80:
            return step, one, two
        if three < 0x80:
            return step, one, two & 0x7F | three << 7
    size, after = read_uvarint(records, pos)
    if size & 1:
        raise IndexError("a length")
    time, at = read_uvarlong(records, after + 1)
    number, _ = read_uvarint(records, at)
    return after - pos + (size >> 1), time, number


def _steps() -> list[int]:
    """Return the bytes of a record, with its length, by the two bytes that it begins with; 0 if the
    length has more, or is negative."""
    short = [0 if low & 1 else 1 + (low >> 1) for low in range(0x80)]
    steps: list[int] = []
    for high in range(0x80):
        steps += short
        for low in range(high << 6, (high << 6) + 0x40):
            steps += (low + 2, 0)
    for _ in range(0x80):
        steps += short
        steps += [0] * 0x80
    return steps


_STEPS: Final = _steps()


def _last_record(tail: bytes, delta: int) -> tuple[int, int]:
    """Return the position of the record with this offset delta that ends where `tail` does, and its
    zig-zag timestamp delta; -1 for the position if it is not found.

    It is found by its offset delta, before which are the delta of its time, its attributes and a
    length that reaches to the end.
    """
    mark, size = _varint(delta << 1), len(tail)
    hit = size
    for _ in range(_TRIES):
        hit = tail.rfind(mark, 0, hit + len(mark) - 1)
        if hit < _FRONT_BYTES_MIN:
            break
        begin = hit - 1  # of the delta of its time
        while True:
            length = size - begin + 1 << 1
            if length < 0x4000:
                found = tail[begin - 2] == (length >> 7 or length) and (
                    length < 0x80 or tail[begin - 3] == length & 0x7F | 0x80
                )
                at = begin - 2 - (length > 0x7F)
            else:
                front = _varint(length)
                at = begin - 1 - len(front)
                found = at >= 0 and tail[at : begin - 1] == front
            if found:
                time, end = read_uvarlong(tail, begin)
                if end == hit:
                    return at, time
            begin -= 1
            if tail[begin] < 0x80 or begin < _FRONT_BYTES_MIN or hit - begin > _MAX_TIME_BYTES:
                break
    return -1, 0


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


def _long_record(data: bytes | bytearray, walked: Walked, base: int) -> Generator[None, None, None]:
    """Check the next record, which has many headers."""
    time, key, pos, stop = walk_fields(data, walked.pos, walked.count)
    count, pos = read_uvarint(data, pos)
    if count & 1 or count >> 1 > stop - pos:
        raise IndexError("its header count")
    if count >> 1 > MAX_RECORD_HEADERS:
        text = f"it has {count >> 1} headers, and {MAX_RECORD_HEADERS} are allowed"
        raise KafkaError(ErrorCode.INVALID_RECORD, text, [(walked.count, text)])
    for left in range(count >> 1, 0, -MAX_HEADERS):
        pos = _skip_headers(data, pos, min(left, MAX_HEADERS))
        yield
    if pos != stop:
        raise IndexError("its length is not that of its fields")
    if time:
        when = base + ((time >> 1) ^ -(time & 1))
        walked.newest = max(walked.newest, when)
        if when != NO_TIMESTAMP:
            walked.oldest = min(walked.oldest, when)
    else:
        walked.unmoved = True
    walked.keyless = walked.keyless or bool(key & 1)
    walked.pos = pos
    walked.count += 1


def _walk_one(data: bytes | bytearray, pos: int, delta: int) -> tuple[int, int, int]:
    """Return (zig-zag timestamp delta, key length, next position) of any record at `pos`; the
    position is -1 if it has more than MAX_HEADERS."""
    time, key, pos, stop = walk_fields(data, pos, delta)
    count, pos = read_uvarint(data, pos)
    if count & 1 or count >> 1 > stop - pos:
        raise IndexError("its header count")
    if count >> 1 > MAX_HEADERS:
        return time, key, -1
    pos = _skip_headers(data, pos, count >> 1)
    if pos != stop:
        raise IndexError("its length is not that of its fields")
    return time, key, pos


def walk_fields(data: bytes | bytearray, pos: int, delta: int) -> tuple[int, int, int, int]:
    """Return (zig-zag timestamp delta, key length, start of the headers, end of the record)."""
    n, pos = read_uvarint(data, pos)
    stop = pos + (n >> 1)
    if n & 1 or stop > len(data):
        raise IndexError("its length")
    time, pos = read_uvarlong(data, pos + 1)
    n, pos = read_uvarint(data, pos)
    if n != delta << 1:
        raise IndexError(f"its offset delta is not {delta}")
    key, pos = read_uvarint(data, pos)
    if not key & 1:
        pos += key >> 1
    n, pos = read_uvarint(data, pos)
    if not n & 1:
        pos += n >> 1
    return time, key, pos, stop


def _skip_headers(data: bytes | bytearray, pos: int, count: int) -> int:
    """Return the position after so many headers. Most lengths have one byte and are read inline."""
    for _ in range(count):
        key = data[pos]
        if not key & 0x81:
            at = pos + 1 + (key >> 1)
            value = data[at]
            if value < 0x80:
                pos = at + 1 if value & 1 else at + 1 + (value >> 1)
                continue
        pos = _skip_header(data, pos)
    return pos


def _skip_header(data: bytes | bytearray, pos: int) -> int:
    n, pos = read_uvarint(data, pos)
    if n & 1:
        raise IndexError("a header without a key")
    pos += n >> 1
    n, pos = read_uvarint(data, pos)
    return pos if n & 1 else pos + (n >> 1)
