"""The records of a batch in columns: where each begins and ends, its offset, time and key.

This is the one reader of the content of records, for decoding and for compaction. It decodes no
values and headers and creates no object per record but the key. `kafkawire.codec.walk` has the loop
that only checks records, for Produce: it stores nothing, and mypyc compiles it to arithmetic.

A record: length varint, attributes i8, timestamp delta varlong, offset delta varint, key, value
(varint length, -1 null), header count varint, headers (key, value as above). Pure.
"""

from __future__ import annotations

from kafkawire.codec.varint import read_uvarint, read_uvarlong


class RecordColumns:
    """Records that follow each other in `data`. Record i is data[stops[i - 1] : stops[i]], the
    first one begins at `start`.

    `deltas`: offset - base offset; `values`: the position of the value, with its length; `nulls`:
    which records have no value.
    """

    __slots__ = ("data", "deltas", "keys", "nulls", "start", "stops", "values")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.stops: list[int] = []
        self.deltas: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[int] = []
        self.nulls: list[int] = []

    @property
    def stop(self) -> int:
        """Where the last record ends."""
        return self.stops[-1] if self.stops else self.start

    def record_start(self, at: int) -> int:
        """Return where record `at` begins."""
        return self.stops[at - 1] if at else self.start

    def read(self, end: int, count: int) -> None:
        """Add the next `count` records, which must be in data[:end]. IndexError for the first that
        does not fit; those before it are added. Hot.

        Most lengths and deltas have one or two bytes and are read inline, as a call would cost more
        than the reading.
        """
        data, pos = self.data, self.stop
        add_stop, add_delta = self.stops.append, self.deltas.append
        add_key, add_value = self.keys.append, self.values.append
        first = len(self.stops)
        for number in range(first, first + count):
            length = data[pos]
            if length < 0x80:
                pos += 1
                stop = pos + (length >> 1)
            else:
                high = data[pos + 1]
                if high < 0x80:
                    pos += 2
                    stop = pos + (high << 6) + (length >> 1) - 64
                else:
                    length, pos = read_uvarint(data, pos)
                    stop = pos + (length >> 1)
            pos += 1  # attributes: they have no meaning in this format
            while data[pos] > 0x7F:  # `read_time_delta` reads it
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
            if data[pos] & 1:  # the lowest bit of a zig-zag number is its sign
                self.nulls.append(number)
            if length & 1 or not pos < stop <= end:
                raise IndexError(f"record {number} is longer than its batch")
            add_stop(stop)
            add_delta(~(delta >> 1) if delta & 1 else delta >> 1)
            add_key(key)
            add_value(pos)
            pos = stop


def read_time_delta(data: bytes, begin: int) -> int:
    """Return the timestamp delta of the record at `begin`, whose length was read before. IndexError
    for an invalid number."""
    while data[begin] > 0x7F:
        begin += 1
    delta = data[begin + 2]  # after the length and the attributes
    if delta > 0x7F:
        delta, _ = read_uvarlong(data, begin + 2)
    return ~(delta >> 1) if delta & 1 else delta >> 1
