"""List the batches of a chunk, in a loop compiled by numba.

numba checks no bounds, so every read is preceded by a bounds check. All compiled code except for
`memory` is in this file, because numba's cache detects changes of this file only.
"""

from __future__ import annotations

from numba import njit, types

from kafkawire.reading.decode.memory import byte, compiled, put

# Columns of the table of batches; `walk` repeats them, and a test compares both.
POSITION, FROM, STOP, BASE, LAST, ATTRIBUTES, TIME, PRODUCER, COUNT = range(9)
TABLE_FIELDS = 9

# Why the loop stopped.
ALL, OVER, CUT, LENGTH, MAGIC, ORDER, BEYOND = range(7)

_HEAD_BYTES, _PREFIX_BYTES, _MAGIC, _LOG_APPEND_TIME = 61, 12, 2, 0x08
_ROW_BYTES = 8 * TABLE_FIELDS
_OFFSETS_MAX = 1 << 62  # so that no sum overflows


@njit(forceinline=True)
def _int32(data: int, at: int) -> int:
    value = byte(data, at) << 24 | byte(data, at + 1) << 16 | byte(data, at + 2) << 8
    value |= byte(data, at + 3)
    return value - ((value & 0x80000000) << 1)


@njit(forceinline=True)
def _int64(data: int, at: int) -> int:
    return _int32(data, at) << 32 | _int32(data, at + 4) & 0xFFFFFFFF


@compiled(types.UniTuple(types.int64, 4)(*[types.int64] * 8))
def heads(
    data: int, size: int, pos: int, floor: int, upto: int, end: int, table: int, most: int
) -> tuple[int, int, int, int]:
    """List the whole batches from `pos` on of the `size` bytes at the address `data`, as the rows
    of a table at the address `table`, at most `most`.

    No batch may begin below `floor` or end beyond `upto`; those from `end` on are not read. Returns
    their number, the position of the next one, why it stopped, and their attributes, or-ed.
    """
    n = attributes = 0
    while n < most and pos < size:
        if size - pos < _HEAD_BYTES:
            return n, pos, CUT, attributes
        length = _int32(data, pos + 8)
        if length < _HEAD_BYTES - _PREFIX_BYTES:
            return n, pos, LENGTH, attributes
        if byte(data, pos + 16) != _MAGIC:
            return n, pos, MAGIC, attributes
        if length > size - pos - _PREFIX_BYTES:
            return n, pos, CUT, attributes
        base, delta = _int64(data, pos), _int32(data, pos + 23)
        if base < floor or base >= _OFFSETS_MAX or delta < 0:
            return n, pos, ORDER, attributes
        if base >= end:
            return n, pos, OVER, attributes
        if base + delta >= upto:
            return n, pos, BEYOND, attributes
        flags = byte(data, pos + 22)
        row = table + n * _ROW_BYTES
        put(row, POSITION, pos)
        put(row, FROM, pos + _HEAD_BYTES)
        put(row, STOP, pos + _PREFIX_BYTES + length)
        put(row, BASE, base)
        put(row, LAST, base + delta)
        put(row, ATTRIBUTES, flags)
        put(row, TIME, _int64(data, pos + (35 if flags & _LOG_APPEND_TIME else 27)))
        put(row, PRODUCER, _int64(data, pos + 43))
        put(row, COUNT, _int32(data, pos + 57))
        pos += _PREFIX_BYTES + length
        attributes |= flags
        floor = base + delta + 1
        n += 1
    return n, pos, ALL, attributes
