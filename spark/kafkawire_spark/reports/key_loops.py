"""Compiled loops of the table of keys (kafkawire_spark.reports.keys): hashes, look-ups, sums.

Nothing is checked here: the caller guarantees the lengths of the arrays.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kafkawire.codec.compiled import byte, compiled, int32

KEPT = 128
"""Bytes of a key that are kept for display."""

_I64, _I32, _U8, _U64 = types.int64[::1], types.int32[::1], types.uint8[::1], types.uint64[::1]
_SPREAD, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # of splitmix64 (Steele et al. 2014)
_SLOT_SHIFT = 40  # slots use the high bits: the low ones select the sample


@compiled(types.void(types.int64, types.int64, _U64))
def hash_keys(ends: int, data: int, hashes: Any) -> None:
    """Hash each key data[ends[i] : ends[i + 1]] (both addresses) to 64 bits. Two keys with the same
    hash count as one; a hundred million keys most likely have no collision."""
    for i in range(len(hashes)):
        at, stop = int32(ends, i), int32(ends, i + 1)
        state = types.uint64(stop - at) * types.uint64(_MIX)
        while at < stop:
            word = types.uint64(0)
            if stop - at >= 8:
                for k in range(8):
                    word |= types.uint64(byte(data, at + k)) << types.uint64(8 * k)
            else:
                for k in range(stop - at):
                    word |= types.uint64(byte(data, at + k)) << types.uint64(8 * k)
            at += 8
            state = (state ^ word) * types.uint64(_SPREAD)
            state ^= state >> types.uint64(29)
        state = (state ^ (state >> types.uint64(30))) * types.uint64(_MIX)
        hashes[i] = state ^ (state >> types.uint64(31))


@compiled(
    types.int64(
        types.int64, _U64, _I64, _I64, _I32, types.int64, types.int64,
        types.int64, _I32, _U64, _I64, _I64, _I32, _U8, _I64,
    )
)  # fmt: skip
def add_keys(
    row: int, hashes: Any, records: Any, sizes: Any, lengths: Any, ends: int, data: int,
    count: int, slots: Any, of_hash: Any, of_records: Any, of_sizes: Any, of_lengths: Any,
    of_texts: Any, out: Any,
) -> int:  # fmt: skip
    """Add rows from `row` on to the table: `records` and bytes (`sizes`) of a key with this hash
    and length whose text, truncated, is data[ends[i] : ends[i + 1]] (both are addresses).

    `count`: number of entries. Returns the first row that did not fit, else the number of rows;
    out[0] is the new number of entries.
    """
    mask, room = len(slots) - 1, len(of_hash)
    while row < len(hashes):
        own = hashes[row]
        slot = types.int64(own >> types.uint64(_SLOT_SHIFT)) & mask
        entry = slots[slot]
        while entry >= 0 and of_hash[entry] != own:
            slot = (slot + 1) & mask
            entry = slots[slot]
        if entry < 0:
            if count == room:
                break
            entry = count
            count += 1
            slots[slot] = entry
            of_hash[entry], of_records[entry], of_sizes[entry] = own, 0, 0
            of_lengths[entry] = lengths[row]
            at = int32(ends, row)
            for k in range(min(int32(ends, row + 1) - at, KEPT)):
                of_texts[entry * KEPT + k] = byte(data, at + k)
        of_records[entry] += records[row]
        of_sizes[entry] += sizes[row]
        row += 1
    out[0] = count
    return row


@compiled(types.void(_U64, _I32))
def index_keys(hashes: Any, slots: Any) -> None:
    """Rebuild the slots for the entries of these hashes."""
    mask = len(slots) - 1
    slots[:] = -1
    for entry in range(len(hashes)):
        slot = types.int64(hashes[entry] >> types.uint64(_SLOT_SHIFT)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry
