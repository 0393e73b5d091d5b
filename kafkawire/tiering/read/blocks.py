"""Cutting a stretch of an object into pieces that lie in one block of the cache each. Pure.

A piece is whole blocks of the sparse index, and so whole batches. Where one of these crosses the
border between two blocks of the cache it is a piece of its own, and the only thing that is copied.
"""

from __future__ import annotations

from kafkawire.codec.segment.format import SparseIndex


def piece_end(index: SparseIndex, position: int, limit: int, block_bytes: int, at_most: int) -> int:
    """Where the piece that begins at `position` ends: at `limit` or before it. From `limit` on:
    after one block of the index. Both are positions in the file, and borders of the index.
    A piece has `at_most` bytes, unless one block of the index has more."""
    if position >= limit:
        start, length = index.block(index.find(position))[:2]
        return start + length
    border = min((position // block_bytes + 1) * block_bytes, position + at_most)
    if limit <= border:
        return limit
    start, length = index.block(index.find(border))[:2]
    return start if start > position else start + length


def blocks_of(start: int, stop: int, block_bytes: int) -> range:
    """The blocks of the cache that hold the bytes [start, stop) of an object."""
    return range(start // block_bytes, -(-stop // block_bytes)) if stop > start else range(0)
