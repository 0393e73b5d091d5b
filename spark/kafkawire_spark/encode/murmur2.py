"""Kafka's murmur2 hash of keys, in a loop compiled by numba."""

from __future__ import annotations

from numba import njit, types

from kafkawire.codec.compiled import byte, compiled, int32, put

_SEED, _M = 0x9747B28C, 0x5BD1E995
_MASK = 0xFFFFFFFF


@njit
def _hash(data: int, start: int, length: int) -> int:
    """Return the hash of data[start : start + length] (org.apache.kafka.common.utils.Utils)."""
    hashed = _SEED ^ length
    at, stop = start, start + (length & ~3)
    while at < stop:
        part = byte(data, at) | byte(data, at + 1) << 8 | byte(data, at + 2) << 16
        part = ((part | byte(data, at + 3) << 24) * _M) & _MASK
        part = ((part ^ (part >> 24)) * _M) & _MASK
        hashed = ((hashed * _M) & _MASK) ^ part
        at += 4
    left = length & 3
    if left == 3:
        hashed ^= byte(data, at + 2) << 16
    if left >= 2:
        hashed ^= byte(data, at + 1) << 8
    if left >= 1:
        hashed = ((hashed ^ byte(data, at)) * _M) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _M) & _MASK
    return hashed ^ (hashed >> 15)


@compiled(types.int64(*[types.int64] * 5))
def key_partitions(ends: int, data: int, rows: int, count: int, out: int) -> int:
    """Store the partition of each key: its positive hash modulo `count` partitions, as the default
    partitioner of Kafka's Java client. All but the numbers are addresses."""
    for row in range(rows):
        start = int32(ends, row)
        hashed = _hash(data, start, int32(ends, row + 1) - start)
        put(out, row, (hashed & 0x7FFFFFFF) % count)
    return 0
