"""Split a range of an object into pieces that are each in one block of the cache. Pure.

A piece consists of whole blocks of the sparse index, and so of whole batches. An index block that
crosses the boundary between two cache blocks is a piece of its own, and only such pieces are
copied.
"""

from __future__ import annotations

from kafkawire.codec.segment.format import SparseIndex


def piece_end(index: SparseIndex, position: int, limit: int, block_bytes: int, at_most: int) -> int:
    """Return the end of the piece that begins at `position`: at `limit` or before it, or one index
    block later if `position` is at `limit`. Both are positions in the file on boundaries of the
    index. A piece has at most `at_most` bytes, unless one index block has more."""
    if position >= limit:
        start, length = index.block(index.find(position))[:2]
        return start + length
    border = min((position // block_bytes + 1) * block_bytes, position + at_most)
    if limit <= border:
        return limit
    start, length = index.block(index.find(border))[:2]
    # An index block that crosses the border is a piece of its own: only such pieces are copied.
    return start if start > position else start + length


def blocks_of(start: int, stop: int, block_bytes: int) -> range:
    return range(start // block_bytes, -(-stop // block_bytes)) if stop > start else range(0)
