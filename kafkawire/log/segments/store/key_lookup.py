"""Look-ups in the key index of a segment, for readers of the broker: which offsets of a partition
may have one of some keys.

Readers without a broker have `kafkawire.reading.files.key_index`, which plans many segments at a
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import KEYS, SparseIndex, read_trailer
from kafkawire.codec.segment.keys import HEAD_BYTES, PartitionKeys, head_length, read_keys
from kafkawire.offsets.catalog.port import SegmentRange

END_BYTES = 64 << 10
"""Bytes read of the end of a segment: the trailer, and all of a small index."""
HEAD_GUESS_BYTES = 16 << 10
"""Bytes read of the start of a larger index: the head for up to 2,000 key blocks."""

OffsetRanges = list[tuple[int, int]]
"""Ranges [first, end) of offsets, rising, no two adjacent."""
ReadRange = Callable[[int, int], Awaitable[bytes]]
"""Reads (start, length) of a segment."""


async def find_key_ranges(
    read: ReadRange,
    file_bytes: int,
    mapping: SegmentRange,
    index: SparseIndex,
    hashes: Collection[int],
) -> OffsetRanges | None:
    """Return the offsets of a row that may have a key with one of the hashes; None if the segment
    has no index for it. FormatError for a damaged one."""
    start = max(0, file_bytes - END_BYTES)
    tail = await read(start, file_bytes - start)
    section = read_trailer(tail, file_bytes).optional(KEYS)
    if section is None:
        return None

    async def part(at: int, length: int) -> bytes:
        begin = section.body_start + at
        if begin >= start:
            return tail[begin - start : begin - start + length]
        return await read(begin, length)

    head = await part(0, min(section.length, HEAD_GUESS_BYTES))
    size = head_length(head[:HEAD_BYTES], section.length)
    if size > len(head):
        head = await part(0, size)
    keys = read_keys(head, section.length).get(mapping.number)
    if keys is None:
        return None
    blocks: set[int] = set()
    for hashed in hashes:
        blocks.update(keys.find(hashed, await part(*keys.place(hashed))))
    return _ranges(keys, mapping, index, sorted(blocks))


def _ranges(
    keys: PartitionKeys, mapping: SegmentRange, index: SparseIndex, blocks: list[int]
) -> OffsetRanges:
    found: OffsetRanges = []
    for block in blocks:
        first = _offset(index, mapping, keys.positions[block])
        end = mapping.end_offset
        if block + 1 < len(keys.positions):
            end = _offset(index, mapping, keys.positions[block + 1])
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, end))
    return found


def _offset(index: SparseIndex, mapping: SegmentRange, position: int) -> int:
    """Return the first offset of the block at a position after the start of the row."""
    at = index.find(mapping.start + position)
    start, _, offset, _, _ = index.block(at)
    if start != mapping.start + position:
        raise FormatError("its key index does not fit its batches")
    return offset if at else mapping.base_offset
