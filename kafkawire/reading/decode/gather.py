"""Copy the rows found by `walk.note` into columns, in a compiled loop.

Nothing is checked here: `note` keeps within the size of the columns.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from kafkawire.codec.compiled import BAD, compile_for, copy, get, read_field
from kafkawire.reading.decode import walk
from kafkawire.reading.decode.walk import (
    HEADERS,
    HEADERS_AT,
    KEY_AT,
    KIND,
    NOTE_BYTES,
    OFFSET,
    TIME_US,
    VALUE_AT,
    VALUE_LENGTH,
)

# Bits of `wanted`.
WANT_KEY, WANT_VALUE, WANT_HEADERS, WANT_SIZE = 1, 2, 4, 8

_INT64S, _INT32S, _UINT8S = types.int64[::1], types.int32[::1], types.uint8[::1]
_TEXT = types.Tuple((_INT32S, _UINT8S, _UINT8S))  # ends, validity bits, data


@njit
def _mark(bits: Any, row: int, valid: bool) -> None:
    bit = types.uint8(1 << (row & 7))
    bits[row >> 3] = bits[row >> 3] | bit if valid else bits[row >> 3] & ~bit


@njit
def _gather(data: int, notes: int, part: int, n: int, text: Any, row: int) -> None:
    """Copy the keys or values of `n` rows; `part` selects which."""
    ends, bits, out = text
    end, address = types.int64(ends[row]), out.ctypes.data
    for i in range(row, row + n):
        length = get(notes, part + 1)
        _mark(bits, i, length >= 0)
        if length > 0:
            copy(address, end, data, get(notes, part), length)
            end += length
        ends[i + 1] = end
        notes += NOTE_BYTES


@njit
def _gather_field(data: int, at: int, text: Any, row: int) -> int:
    """Copy the verified field at `at`; return its end."""
    ends, bits, out = text
    at, length, stop = read_field(data, at, BAD)
    _mark(bits, row, length >= 0)
    length = max(length, 0)
    copy(out.ctypes.data, ends[row], data, at, length)
    ends[row + 1] = ends[row] + length
    return stop


@njit
def _gather_headers(
    data: int, notes: int, n: int, lists: Any, names: Any, values: Any, row: int
) -> None:
    """Copy the headers of `n` rows; a row without any has null, as with Spark's connector."""
    ends, bits, _ = lists
    entry = types.int64(ends[row])
    for i in range(row, row + n):
        at, count = get(notes, HEADERS_AT), get(notes, HEADERS)
        _mark(bits, i, count > 0)
        for _ in range(count):
            at = _gather_field(data, at, names, entry)
            at = _gather_field(data, at, values, entry)
            entry += 1
        ends[i + 1] = entry
        notes += NOTE_BYTES


@compile_for(
    types.void(
        types.int64, types.int64, types.int64, types.int64, types.int64,
        types.Tuple((_INT64S, _INT64S, _INT32S, _INT32S)), types.UniTuple(_TEXT, 5),
    ),
    walk,
)  # fmt: skip
def gather(data: int, notes: int, n: int, row: int, wanted: int, fixed: Any, texts: Any) -> None:
    """Copy the `n` rows noted at the address `notes` to the columns, from `row` on.

    `data`: the address of the records; `fixed`: offsets, microseconds, timestamp types, bytes of
    values; `texts`: key, value, lists of headers, their names, their values, each (ends, validity
    bits, data).
    """
    offsets, times, kinds, sizes = fixed
    key, value, lists, names, values = texts
    for i in range(n):
        note = notes + i * NOTE_BYTES
        offsets[row + i], times[row + i] = get(note, OFFSET), get(note, TIME_US)
        kinds[row + i] = get(note, KIND)
    if wanted & WANT_KEY:
        _gather(data, notes, KEY_AT, n, key, row)
    if wanted & WANT_VALUE:
        _gather(data, notes, VALUE_AT, n, value, row)
    if wanted & WANT_SIZE:
        for i in range(n):
            sizes[row + i] = max(get(notes + i * NOTE_BYTES, VALUE_LENGTH), 0)
    if wanted & WANT_HEADERS:
        _gather_headers(data, notes, n, lists, names, values, row)
