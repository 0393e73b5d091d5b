"""List the batches of a chunk, in a loop compiled by numba, which checks no bounds: every read is
preceded by a bounds check."""

from __future__ import annotations

from numba import types

from kafkawire.codec.compiled import (
    ATTRIBUTES_AT,
    COUNT_AT,
    HEAD_BYTES,
    LAST_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    PREFIX_BYTES,
    byte,
    compiled,
    put,
    read_int32,
    read_int64,
)

# Columns of the table of batches.
POSITION, FROM, STOP, BASE, LAST, ATTRIBUTES, TIME, PRODUCER, COUNT = range(9)
TABLE_FIELDS = 9

# Why the loop stopped.
ALL, OVER, CUT, LENGTH, MAGIC, ORDER, BEYOND = range(7)

_MAGIC, _LOG_APPEND_TIME = 2, 0x08
_ROW_BYTES = 8 * TABLE_FIELDS
_OFFSETS_MAX = 1 << 62  # so that no sum overflows


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
        if size - pos < HEAD_BYTES:
            return n, pos, CUT, attributes
        length = read_int32(data, pos + LENGTH_AT)
        if length < HEAD_BYTES - PREFIX_BYTES:
            return n, pos, LENGTH, attributes
        if byte(data, pos + MAGIC_AT) != _MAGIC:
            return n, pos, MAGIC, attributes
        if length > size - pos - PREFIX_BYTES:
            return n, pos, CUT, attributes
        base, delta = read_int64(data, pos), read_int32(data, pos + LAST_DELTA_AT)
        if base < floor or base >= _OFFSETS_MAX or delta < 0:
            return n, pos, ORDER, attributes
        if base >= end:
            return n, pos, OVER, attributes
        if base + delta >= upto:
            return n, pos, BEYOND, attributes
        flags = byte(data, pos + ATTRIBUTES_AT + 1)
        row = table + n * _ROW_BYTES
        put(row, POSITION, pos)
        put(row, FROM, pos + HEAD_BYTES)
        put(row, STOP, pos + PREFIX_BYTES + length)
        put(row, BASE, base)
        put(row, LAST, base + delta)
        put(row, ATTRIBUTES, flags)
        put(row, TIME, read_int64(data, pos + (35 if flags & _LOG_APPEND_TIME else 27)))
        put(row, PRODUCER, read_int64(data, pos + 43))
        put(row, COUNT, read_int32(data, pos + COUNT_AT))
        pos += PREFIX_BYTES + length
        attributes |= flags
        floor = base + delta + 1
        n += 1
    return n, pos, ALL, attributes
