"""Rows as the bodies of record batches, by compiled loops without the interpreter lock.

The layout is Kafka's record format v2 (org.apache.kafka.common.record.DefaultRecord). Texts come as
Arrow has them: row i is data[ends[i]:ends[i + 1]], or nothing where `there` says so. Headers of row
i are the fields ends[i] to ends[i + 1] of two such texts.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_UINT8S = types.Array(types.uint8, 1, "C", readonly=True)
_TEXT = types.Tuple((_INT64S, _UINT8S, _UINT8S))  # ends, there, data
_HEADERS = types.Tuple((_INT64S, _TEXT, _TEXT))  # ends, names, values


@njit
def _size(value: int) -> int:
    """Bytes of a zigzag varint."""
    left = types.uint64((value << 1) ^ (value >> 63))
    size = 1
    while left > 0x7F:
        left >>= types.uint64(7)
        size += 1
    return size


@njit
def _put(out: Any, at: int, value: int) -> int:
    """Write a zigzag varint; where it ends."""
    left = types.uint64((value << 1) ^ (value >> 63))
    while left > 0x7F:
        out[at] = types.uint8((left & types.uint64(0x7F)) | types.uint64(0x80))
        left >>= types.uint64(7)
        at += 1
    out[at] = types.uint8(left)
    return at + 1


@njit
def _text_size(text: Any, i: int) -> int:
    ends, there, _ = text
    if not there[i]:
        return 1
    length = ends[i + 1] - ends[i]
    return _size(length) + length


@njit
def _put_text(out: Any, at: int, text: Any, i: int) -> int:
    ends, there, data = text
    if not there[i]:
        return _put(out, at, -1)
    begin, length = ends[i], ends[i + 1] - ends[i]
    at = _put(out, at, length)
    for n in range(length):
        out[at + n] = data[begin + n]
    return at + length


@njit
def _body_size(stamps: Any, keys: Any, values: Any, headers: Any, first: int, i: int) -> int:
    """Of a record, without its length."""
    ends, names, contents = headers
    size = 1 + _size(stamps[i] - stamps[first]) + _size(i - first)
    size += _text_size(keys, i) + _text_size(values, i) + _size(ends[i + 1] - ends[i])
    for n in range(ends[i], ends[i + 1]):
        size += _text_size(names, n) + _text_size(contents, n)
    return size


@njit(
    types.UniTuple(types.int64, 3)(
        _INT64S, _TEXT, _TEXT, _HEADERS, types.int64, types.int64, types.int64
    ),
    nogil=True,
    cache=True,
)
def measure(
    stamps: Any, keys: Any, values: Any, headers: Any, first: int, stop: int, limit: int
) -> tuple[int, int, int]:
    """How many rows from `first` on, below `stop`, have at most `limit` bytes as records, one at
    least; how many bytes; their newest timestamp."""
    total, newest = 0, stamps[first]
    i = first
    while i < stop:
        size = _body_size(stamps, keys, values, headers, first, i)
        size += _size(size)
        if i > first and total + size > limit:
            break
        total += size
        newest = max(newest, stamps[i])
        i += 1
    return i - first, total, newest


@njit(
    types.int64(
        _INT64S, _TEXT, _TEXT, _HEADERS, types.int64, types.int64, types.uint8[::1], types.int64
    ),
    nogil=True,
    cache=True,
)
def write(
    stamps: Any, keys: Any, values: Any, headers: Any, first: int, count: int, out: Any, at: int
) -> int:
    """Write that many rows from `first` on as records at out[at:]; where they end."""
    ends, names, contents = headers
    for i in range(first, first + count):
        at = _put(out, at, _body_size(stamps, keys, values, headers, first, i))
        out[at] = 0
        at = _put(out, at + 1, stamps[i] - stamps[first])
        at = _put(out, at, i - first)
        at = _put_text(out, at, keys, i)
        at = _put_text(out, at, values, i)
        at = _put(out, at, ends[i + 1] - ends[i])
        for n in range(ends[i], ends[i + 1]):
            at = _put_text(out, at, names, n)
            at = _put_text(out, at, contents, n)
    return at
