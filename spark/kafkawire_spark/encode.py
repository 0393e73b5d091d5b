"""Encode Arrow rows as record batches of format 2, as a producer would send them.

Importing this imports numba: import it in the task, not in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit, types

from kafkawire.codec.batches import HEAD, HEAD_BYTES, MAGIC, PREFIX_BYTES, resum
from kafkawire.codec.compiled import byte, compile_for, copy, get, int32, put, put_byte
from kafkawire.codec.compression import NONE, compress
from kafkawire.reading.model.columns import HEADERS, KEY, TIMESTAMP, VALUE
from kafkawire.reading.model.source import SourceError

# The addresses of columns: milliseconds, then (ends, a byte for each row: whether it is not null,
# data) of key, value, lists of headers (without data), their names (never null) and their values.
(
    TIMES, KEY_ENDS, KEY_VALID, KEY_DATA, VALUE_ENDS, VALUE_VALID, VALUE_DATA, LIST_ENDS,
    LIST_VALID, NAME_ENDS, NAME_VALID, NAME_DATA, HEADER_ENDS, HEADER_VALID, HEADER_DATA,
) = range(15)  # fmt: skip
COLUMNS = 15

# Result of `write`: the row after the last one written, the bytes written, the newest timestamp.
NEXT, BYTES, NEWEST = range(3)
RESULTS = 3


@njit(forceinline=True)
def _zigzag(value: int) -> int:
    return types.uint64((value << 1) ^ (value >> 63))


@njit
def _size(value: int) -> int:
    """Return the bytes of a zig-zag varint."""
    rest, size = _zigzag(value) >> types.uint64(7), 1
    while rest:
        rest >>= types.uint64(7)
        size += 1
    return size


@njit
def _put_number(out: int, at: int, value: int) -> int:
    rest = _zigzag(value)
    while rest > types.uint64(0x7F):
        put_byte(out, at, types.int64(rest & types.uint64(0x7F)) | 0x80)
        rest >>= types.uint64(7)
        at += 1
    put_byte(out, at, types.int64(rest))
    return at + 1


@njit
def _field_size(columns: int, field: int, row: int) -> int:
    if not byte(get(columns, field + 1), row):
        return 1
    ends = get(columns, field)
    length = int32(ends, row + 1) - int32(ends, row)
    return _size(length) + length


@njit
def _put_field(columns: int, field: int, row: int, out: int, at: int) -> int:
    if not byte(get(columns, field + 1), row):
        return _put_number(out, at, -1)
    ends = get(columns, field)
    start = int32(ends, row)
    length = int32(ends, row + 1) - start
    at = _put_number(out, at, length)
    copy(out, at, get(columns, field + 2), start, length)
    return at + length


@njit
def _headers(columns: int, row: int) -> tuple[int, int]:
    """Return the range [first, end) of a row's headers."""
    if not byte(get(columns, LIST_VALID), row):
        return 0, 0
    ends = get(columns, LIST_ENDS)
    return int32(ends, row), int32(ends, row + 1)


@njit
def _record_size(columns: int, row: int, time_delta: int, delta: int) -> int:
    """Return the size of a record after its length field."""
    size = 1 + _size(time_delta) + _size(delta)
    size += _field_size(columns, KEY_ENDS, row) + _field_size(columns, VALUE_ENDS, row)
    first, end = _headers(columns, row)
    size += _size(end - first)
    for entry in range(first, end):
        size += _field_size(columns, NAME_ENDS, entry)
        size += _field_size(columns, HEADER_ENDS, entry)
    return size


@njit
def _put_record(
    columns: int, row: int, size: int, time_delta: int, delta: int, out: int, at: int
) -> int:
    at = _put_number(out, at, size)
    put_byte(out, at, 0)  # attributes: none defined
    at = _put_number(out, at + 1, time_delta)
    at = _put_number(out, at, delta)
    at = _put_field(columns, KEY_ENDS, row, out, at)
    at = _put_field(columns, VALUE_ENDS, row, out, at)
    first, end = _headers(columns, row)
    at = _put_number(out, at, end - first)
    for entry in range(first, end):
        at = _put_field(columns, NAME_ENDS, entry, out, at)
        at = _put_field(columns, HEADER_ENDS, entry, out, at)
    return at


@compile_for(types.int64(*[types.int64] * 6))
def write(columns: int, row: int, rows: int, out: int, room: int, results: int) -> int:
    """Write rows [row, rows) at the address `out` until `room` bytes are full.

    `columns` and `results` are addresses of numbers. Returns 0, or the bytes that the first row
    alone needs, if they are more than `room`.
    """
    first, at, base = row, 0, get(get(columns, TIMES), row)
    newest = base
    while row < rows:
        time = get(get(columns, TIMES), row)
        size = _record_size(columns, row, time - base, row - first)
        whole = _size(size) + size
        if whole > room - at:
            if row == first:
                return whole
            break
        at = _put_record(columns, row, size, time - base, row - first, out, at)
        newest = max(newest, time)
        row += 1
    put(results, NEXT, row)
    put(results, BYTES, at)
    put(results, NEWEST, newest)
    return 0


SEQUENCES = 1 << 31
"""A producer's sequence numbers restart at 0 after this many."""

NO_PRODUCER = (-1, -1, -1)
_HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def encode_batches(
    batch: pa.RecordBatch,
    *,
    codec: int = NONE,
    batch_bytes: int = 1 << 20,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> Iterator[tuple[bytearray, int]]:
    """Record batches of at most `batch_bytes`, in order, each with the number of its rows.

    Columns key, value, timestamp, headers by either name; a missing one is null, others are
    ignored. Base offsets are 0. `producer`: id, epoch, and the sequence of the first row (it rises
    by 1 a row). A record that is too large gives a larger batch of its own, which a broker may
    reject. A batch that `codec` would enlarge is not compressed. Raises SourceError for headers
    without a name.
    """
    columns = _Columns(batch)
    out = np.empty(max(batch_bytes - HEAD_BYTES, 1), np.uint8)
    results = np.zeros(RESULTS, np.int64)
    producer_id, epoch, sequence = producer
    row = 0
    while row < batch.num_rows:
        need = write(
            columns.address, row, batch.num_rows, out.ctypes.data, len(out), results.ctypes.data
        )
        if need:
            out = np.empty(need, np.uint8)
            continue
        end, size, newest = results.tolist()
        oldest = int(columns.times[row])
        head = (0, 0, -1, MAGIC, 0, codec, end - row - 1, oldest, newest)
        tail = (producer_id, epoch, sequence, end - row)
        yield _seal_batch(head + tail, out.data[:size], codec), end - row
        if sequence >= 0:
            sequence = (sequence + end - row) % SEQUENCES
        row = end
        if len(out) > batch_bytes:  # allocated for one record
            out = np.empty(max(batch_bytes - HEAD_BYTES, 1), np.uint8)


def _seal_batch(fields: tuple[int, ...], body: memoryview, codec: int) -> bytearray:
    packed = compress(codec, body)
    if codec != NONE and len(packed) >= len(body):
        packed, fields = body, (*fields[:5], NONE, *fields[6:])
    length = HEAD_BYTES - PREFIX_BYTES + len(packed)
    whole = bytearray(HEAD.pack(fields[0], length, *fields[2:]))
    whole += packed
    resum(whole, 0, len(whole))
    return whole


class _Columns:
    """The buffers of a batch's columns and their addresses, as `write` takes them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._kept: list[Any] = []
        self._rows = batch.num_rows
        # By native name, else by the connector's: a table may have its own column `value`.
        names = sorted(batch.schema.names, key=lambda name: name.startswith("_"))
        by_name = {name.removeprefix("_"): batch.column(name) for name in names}
        self.times = self._milliseconds(by_name.get(TIMESTAMP))
        addresses = [self.times.ctypes.data]
        for kind in (KEY, VALUE):
            addresses += self._text(by_name.get(kind), self._rows)
        lists = by_name.get(HEADERS)
        if lists is None:
            lists = pa.nulls(self._rows, _HEADER_TYPE)
        lists = lists.cast(_HEADER_TYPE)
        addresses += self._layout(lists)[:2]
        entries = lists.values
        names, values = entries.field(0), entries.field(1)
        if entries.null_count or names.null_count:
            _refuse_nameless(lists)
        addresses += self._text(names, len(entries)) + self._text(values, len(entries))
        self._addresses = np.array(addresses, np.int64)
        self.address = self._addresses.ctypes.data

    def _milliseconds(self, times: pa.Array | None) -> Any:
        if times is None:
            return np.full(self._rows, -1, np.int64)
        if pa.types.is_timestamp(times.type):
            # Rounded down, because -1 ms means no timestamp in Kafka.
            micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
            return micros.fill_null(-1000).to_numpy() // 1000
        return np.ascontiguousarray(times.cast(pa.int64()).fill_null(-1).to_numpy())

    def _text(self, column: pa.Array | None, rows: int) -> list[int]:
        if column is None:
            column = pa.nulls(rows, pa.binary())
        return self._layout(column.cast(pa.binary()))

    def _layout(self, column: pa.Array) -> list[int]:
        """Return the addresses of the ends, of a byte per row (1: not null), and of the data."""
        valid = column.is_valid().cast(pa.uint8()).to_numpy()
        buffers = column.buffers()
        self._kept += [column, valid]
        ends = 0 if buffers[1] is None else buffers[1].address  # none: there are no rows
        data = buffers[2].address if len(buffers) > 2 and buffers[2] is not None else 0
        return [ends + 4 * column.offset, valid.ctypes.data, data]


def _refuse_nameless(lists: pa.Array) -> None:
    for row, entries in enumerate(lists.to_pylist()):
        for entry in entries or ():
            if entry is None or entry["key"] is None:
                raise SourceError(f"row {row} has a header without a name; each header needs one")
