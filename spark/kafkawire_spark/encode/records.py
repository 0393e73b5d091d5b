"""Write rows of columns as the records of a batch, in a loop compiled by numba."""

from __future__ import annotations

from numba import njit, types

from kafkawire.codec.compiled import byte, compiled, copy, get, int32, put, put_byte

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


@compiled(types.int64(*[types.int64] * 6))
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
