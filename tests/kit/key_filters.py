"""Filters of keys, built in Python: the reference of kafkawire.log.segments.file.key_kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkawire.codec.segment.key_hash import block_bits, bucket_of, whole_bits
from kafkawire.codec.segment.keys import BUCKET_BYTES, KeyFilters, shape_of


def build_filters(
    number: int, blocks: Iterable[tuple[int, Sequence[int]]], size: int
) -> KeyFilters | None:
    """Build the filters of a partition from (position, hashes of the keys) of each key block, in
    batches of `size` bytes. None if they would be too large for these."""
    given = list(blocks)
    keys = sum(len(hashes) for _, hashes in given)
    shape = shape_of(keys, len(given), size)
    count, rows = shape
    if keys and not rows:
        return None
    if count == 1:
        given = [(0, [each for _, hashes in given for each in hashes])]
    buckets = [0] * (shape.row_bytes // BUCKET_BYTES * rows)
    across = shape.row_bytes // BUCKET_BYTES
    for block, (_, hashes) in enumerate(given if keys else ()):
        for each in hashes:
            row, column = divmod(bucket_of(each, rows * count), count)
            buckets[row * across + column] |= whole_bits(each)
            if count > 1:
                buckets[row * across + count + block] |= block_bits(each)
    data = b"".join(each.to_bytes(BUCKET_BYTES, "little") for each in buckets)
    return KeyFilters(number, keys, shape, [at for at, _ in given[:count]], data)
