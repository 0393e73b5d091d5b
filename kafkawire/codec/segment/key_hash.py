"""The hash of a record's key, and the bits that it sets in a filter. Pure.

XXH64 with seed 0, and the 256-bit buckets of Parquet's split block Bloom filters: both have
libraries in most languages. For single keys; kafkawire.log.segments.file.key_kernels hashes
batches.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kafkawire.codec.types import Buffer

P1: Final = 0x9E3779B185EBCA87
P2: Final = 0xC2B2AE3D27D4EB4F
P3: Final = 0x165667B19E3779F9
P4: Final = 0x85EBCA77C2B2AE63
P5: Final = 0x27D4EB2F165667C5
SALTS: Final = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
    0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
"""A hash sets one bit in each 32-bit word of its bucket: the upper 5 bits of its lower half times
the word's salt."""
BLOCK_FACTOR: Final = 0x9E3779B97F4A7C15
"""The bits in a block's filter are those of the upper half of hash * factor, so that a key that
only seems to be in the filter of the whole is not likely to be in one of a block."""
_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1
_STRIPE, _LANE, _HALF = Struct("<4Q"), Struct("<Q"), Struct("<I")


def key_hash(key: Buffer) -> int:
    """Return the XXH64 of a key, seed 0: 64 bits."""
    size, at = len(key), 0
    if size >= _STRIPE.size:
        hashed, at = _stripes(key)
    else:
        hashed = P5
    hashed = hashed + size & _M64
    while at + 8 <= size:
        hashed = _rotate(hashed ^ _round(0, _LANE.unpack_from(key, at)[0]), 27) * P1 + P4 & _M64
        at += 8
    if at + 4 <= size:
        lane = _HALF.unpack_from(key, at)[0] * P1 & _M64
        hashed = _rotate(hashed ^ lane, 23) * P2 + P3 & _M64
        at += 4
    for byte in memoryview(key)[at:]:
        hashed = _rotate(hashed ^ byte * P5 & _M64, 11) * P1 & _M64
    hashed = (hashed ^ hashed >> 33) * P2 & _M64
    hashed = (hashed ^ hashed >> 29) * P3 & _M64
    return hashed ^ hashed >> 32


def _stripes(key: Buffer) -> tuple[int, int]:
    """Hash all pieces of 32 bytes; return the hash and where they end."""
    sums = [P1 + P2 & _M64, P2, 0, -P1 & _M64]
    stop = len(key) // _STRIPE.size * _STRIPE.size
    for lanes in _STRIPE.iter_unpack(memoryview(key)[:stop]):
        sums = [_round(each, lane) for each, lane in zip(sums, lanes, strict=True)]
    hashed = sum(_rotate(each, by) for each, by in zip(sums, (1, 7, 12, 18), strict=True)) & _M64
    for each in sums:
        hashed = (hashed ^ _round(0, each)) * P1 + P4 & _M64
    return hashed, stop


def _round(total: int, lane: int) -> int:
    return _rotate(total + lane * P2 & _M64, 31) * P1 & _M64


def _rotate(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _M64


def bucket_of(hashed: int, buckets: int) -> int:
    """Return the bucket of a hash, of so many: its upper half, scaled."""
    # The upper half: the lower one chooses the bits in the bucket.
    return (hashed >> 32) * buckets >> 32


def whole_bits(hashed: int) -> int:
    """Return the bits of a hash in its bucket of the filter of the whole, as a number of 256
    bits."""
    return _bits(hashed & _M32)


def block_bits(hashed: int) -> int:
    """Return the bits of a hash in its bucket of a block's filter."""
    return _bits((hashed * BLOCK_FACTOR & _M64) >> 32)


def _bits(half: int) -> int:
    return sum(1 << 32 * word + ((half * salt & _M32) >> 27) for word, salt in enumerate(SALTS))
