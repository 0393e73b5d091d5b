"""Find what follows a JSON value, in a compiled loop: Spark's parser ignores it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, types

from kafkawire.codec.compiled import byte, compiled, int32, put

if TYPE_CHECKING:
    import pyarrow as pa

_QUOTES, _BACKSLASH = (0x22, 0x27), 0x5C
_OPENING, _CLOSING = (0x5B, 0x7B), (0x5D, 0x7D)  # [ {, ] }
_SPACES = (0x20, 0x09, 0x0A, 0x0D)


def trailing_bytes(payloads: pa.Array) -> dict[int, int]:
    """Return how many bytes follow the JSON object or array of a value, by row, for rows that have
    any; white space does not count. Values that are not valid JSON may be in the result or not."""
    import pyarrow as pa

    payloads = payloads.cast(pa.binary())
    _, ends, data = payloads.buffers()
    rows = len(payloads)
    found = np.zeros(rows, np.int64)
    if rows and data is not None:
        first = ends.address + 4 * payloads.offset
        _find(first, data.address, rows, found.ctypes.data)
    found[payloads.is_null().to_numpy(zero_copy_only=False)] = 0
    return {int(row): int(found[row]) for row in found.nonzero()[0]}


@njit
def _end_of_value(data: int, at: int, stop: int) -> int:
    """Return the position after the first object or array; `stop` if there is none. Brackets in
    texts do not count; Spark allows both kinds of quotes."""
    depth, quote = 0, 0
    while at < stop:
        char = byte(data, at)
        at += 1
        if quote:
            if char == _BACKSLASH:
                at += 1
            elif char == quote:
                quote = 0
        elif char in _QUOTES:
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
    return stop


@compiled(types.int64(*[types.int64] * 4))
def _find(ends: int, data: int, rows: int, out: int) -> int:
    """Store the number of bytes after each value data[ends[i] : ends[i + 1]]. All but `rows` are
    addresses."""
    for row in range(rows):
        stop = int32(ends, row + 1)
        at = _end_of_value(data, int32(ends, row), stop)
        while at < stop and byte(data, at) in _SPACES:
            at += 1
        put(out, row, stop - at)
    return 0
