"""Validation of the records of a batch one by one, without creating objects.

`walk_records` is the hot loop of every batch that must be walked, at once or up to a position;
`walk_steps` applies it to a batch of any length in steps: a batch of 1 MB can hold a million
records, and a record ten million headers. Pure.
"""

from __future__ import annotations

from collections.abc import Generator

from kafkawire.codec.batches import NO_TIMESTAMP
from kafkawire.codec.varint import read_uvarint, read_uvarlong

NEVER = 1 << 63  # later than any timestamp

STEP_RECORDS = 512
STEP_BYTES = 4096
"""A piece ends after so many records, and with the record that reaches so many bytes: headers have
two bytes at least. A fifth of a millisecond, or half of one where all are headers."""

MAX_HEADERS = 256
"""A record with more headers is left to `walk_steps`."""


class Walked:
    """Progress of a walk: `count` records so far, which end at `pos`. `unmoved`: one was at the
    base time, which `end` takes into account; `keyless`: one had no key."""

    __slots__ = ("count", "keyless", "newest", "oldest", "pos", "unmoved")

    def __init__(self, pos: int) -> None:
        self.pos = pos
        self.count = 0
        self.newest = NO_TIMESTAMP
        self.oldest = NEVER
        self.keyless = False
        self.unmoved = False

    def end(self, data: bytes | bytearray, base: int) -> None:
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


def _long_record(data: bytes | bytearray, walked: Walked, base: int) -> Generator[None, None, None]:
    """Check the next record, which has many headers."""
    time, key, pos, stop = _walk_fields(data, walked.pos, walked.count)
    count, pos = read_uvarint(data, pos)
    if count & 1 or count >> 1 > stop - pos:
        raise IndexError("its header count")
    for number in range(count >> 1):
        pos = _skip_header(data, pos)
        if not number % MAX_HEADERS:
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
    time, key, pos, stop = _walk_fields(data, pos, delta)
    count, pos = read_uvarint(data, pos)
    if count & 1 or count >> 1 > stop - pos:
        raise IndexError("its header count")
    if count >> 1 > MAX_HEADERS:
        return time, key, -1
    for _ in range(count >> 1):
        pos = _skip_header(data, pos)
    if pos != stop:
        raise IndexError("its length is not that of its fields")
    return time, key, pos


def _walk_fields(data: bytes | bytearray, pos: int, delta: int) -> tuple[int, int, int, int]:
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


def _skip_header(data: bytes | bytearray, pos: int) -> int:
    n, pos = read_uvarint(data, pos)
    if n & 1:
        raise IndexError("a header without a key")
    pos += n >> 1
    n, pos = read_uvarint(data, pos)
    return pos if n & 1 else pos + (n >> 1)
