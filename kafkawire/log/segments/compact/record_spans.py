"""A flat parser of record batches: where records begin and end, their keys, which are tombstones.

The cleaner checks every record twice and changes few of them, so no record is decoded: keys are
extracted, everything else is skipped. Fields of one or two bytes are read inline, since a call
would cost more than the read; `kafkawire.codec.varint` reads all others. Pure.
"""

from __future__ import annotations

from itertools import islice
from operator import lt

from kafkawire.codec.varint import put_varint, read_uvarint, read_varint, read_varlong

Keys = list[bytes | None]


class RecordSpans:
    """The records of one batch, in columns. Record i is data[stops[i - 1] : stops[i]], the first
    one begins at `start`. `deltas`: offset - base offset; `nulls`: which records have no value."""

    __slots__ = ("data", "deltas", "keys", "nulls", "start", "stops")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.stops: list[int] = []
        self.keys: Keys = []
        self.deltas: list[int] = []
        self.nulls: list[int] = []

    def begin(self, at: int) -> int:
        """Return where record `at` begins."""
        return self.stops[at - 1] if at else self.start


def read_spans(data: bytes, pos: int, end: int, count: int) -> RecordSpans:  # noqa: C901
    """Parse the `count` records that must fill data[pos:end]. Hot.

    Raises IndexError for invalid bytes. Headers are not checked.
    """
    spans = RecordSpans(data, pos)
    add_stop, add_key, add_delta = spans.stops.append, spans.keys.append, spans.deltas.append
    for number in range(count):
        length = data[pos]
        if length > 0x7F:
            high = data[pos + 1]
            if high > 0x7F:
                length, pos = read_uvarint(data, pos)
                stop = pos + (length >> 1)
            else:
                pos += 2
                stop = pos + (high << 6) + (length >> 1) - 64
        else:
            pos += 1
            stop = pos + (length >> 1)
        pos += 1  # attributes: they have no meaning in this format
        while data[pos] > 0x7F:
            pos += 1
        delta = data[pos + 1]
        pos += 2
        if delta > 0x7F:
            delta, pos = read_uvarint(data, pos - 1)
        size = data[pos]
        pos += 1
        if size > 0x7F:
            size, pos = read_uvarint(data, pos - 1)
        if size & 1:
            key = None
        else:
            size >>= 1
            key = data[pos : pos + size]
            pos += size
        if data[pos] & 1 and read_varint(data, pos)[0] < 0:
            spans.nulls.append(number)
        if (length | delta) & 1 or not pos < stop <= end:
            raise IndexError(f"record {number} is longer than its batch")
        add_stop(stop)
        add_key(key)
        add_delta(delta >> 1)
        pos = stop
    if pos != end:
        raise IndexError("extra bytes after the last record")
    if not all(map(lt, spans.deltas, islice(spans.deltas, 1, None))):
        raise IndexError("the record offsets do not increase")
    return spans


def times(spans: RecordSpans, kept: list[int]) -> list[int]:
    """Return the timestamp deltas of some records. IndexError for an invalid number."""
    data, stops, begin = spans.data, spans.stops, spans.start
    found = []
    for at in kept:
        pos = stops[at - 1] if at else begin
        while data[pos] > 0x7F:
            pos += 1
        delta = data[pos + 2]  # after the length and the attributes
        if delta > 0x7F:
            found.append(read_varlong(data, pos + 2)[0])
        else:
            found.append((delta >> 1) ^ -(delta & 1))
    return found


def move_times(spans: RecordSpans, kept: list[int], deltas: list[int]) -> bytearray:
    """Return the bytes of some records, with other timestamp deltas."""
    data, out = spans.data, bytearray()
    for at, delta in zip(kept, deltas, strict=True):
        _, pos = read_uvarint(data, spans.begin(at))
        _, rest = read_varlong(data, pos + 1)
        body = bytearray(data[pos : pos + 1])
        put_varint(body, delta)
        body += data[rest : spans.stops[at]]
        put_varint(out, len(body))
        out += body
    return out


def join(spans: RecordSpans, kept: list[int]) -> bytearray:
    """Return the bytes of some records, unchanged."""
    data, out = spans.data, bytearray()
    first = last = -1
    for at in kept:
        if at != last + 1 or first < 0:
            if first >= 0:
                out += data[spans.begin(first) : spans.stops[last]]
            first = at
        last = at
    if first >= 0:
        out += data[spans.begin(first) : spans.stops[last]]
    return out
