"""The key index of a segment: in which blocks of a partition a record with some key may be. Pure.

For each partition there is one filter of all its keys and one for each *key block*: a run of whole
blocks of the sparse index, 128 KiB or a little more. A filter is a split block Bloom filter:
buckets of 256 bits, 10 bits a key, so 2.5 bytes a key in both; 1.2 % of the filters have a key that
was not added. Partitions with so many keys for their bytes that this is over 3 % are one key block.
The blocks have the same number of buckets, `rows`; of `n` blocks, row `r` has the buckets [r * n, r
* n + n) of the filter of the whole, followed by bucket `r` of the filter of each block. A hash
belongs to the same row in all of them, so a key takes one read of 64 * n bytes (32 KiB for 64 MiB
of batches), not of all filters.

Rows are grouped into *chunks* of up to CHUNK_BYTES or one row, each followed by its checksum. A
damaged chunk is a FormatError; the reader then scans the partition and logs a warning.

    body        0 partitions u32         4 hash u32 (1)           8 head length u64
               16 checksum of the head (of 0-15, 20 to its end) u32    20 zero u32
               24 entries, rising number, then positions i64 * n of each, then chunks
      entry     0 number u64             8 keys u64              16 start in the body u64
               24 blocks n u32          28 rows u32

A partition that has an entry was indexed completely; one without keys has no blocks. A partition
without an entry must be scanned: its index is switched off, or a batch was not decompressed. Null
keys are not in the index, nor are those of control records.

Measured with 100-byte records and 16-byte keys, in ns of CPU a record: a cut of 16 KB batches takes
106, 145 with the index (of 1 KB: 1,008 and 1,148). A loop in Python that hashes each key takes
460-750, compiled by mypyc 145-255, by numba 14, of which 9 are not the wait for memory; setting the
bits of both filters takes 4 more. Dropped: shorter hashes than XXH64 (the same time: memory is what
it waits for); CRC-32C (31 with numba); positions of keys (8 bytes a key); binary fuse filters,
which have a third of the wrong answers in 1.13 bytes a key, but need several passes over all keys,
and all their bytes for one look-up.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.key_hash import block_bits, bucket_of, whole_bits
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

KEY_BLOCK_BYTES = 128 << 10
"""A key block begins with the first block of the sparse index that starts at least this many bytes
after the start of the current one."""
BITS_PER_KEY, BITS_PER_KEY_MIN = 10, 6
"""Of one filter: 1.2 and 9 % of the filters seem to have a key that was not added."""
SHARE = 33
"""The filters have at most one byte for so many of batches."""
BUCKET_BYTES = 32
CHUNK_BYTES = 4096
HASH = 1
"""XXH64 and the bits of Parquet's filters."""

_HEAD = Struct("<IIQII")
_ENTRY = Struct("<QQQII")
_SUM = Struct("<I")
HEAD_BYTES = _HEAD.size
"""The bytes that say how long the head is."""
_CHECKED = 16
"""The bytes of the head before its checksum."""


class FilterShape(NamedTuple):
    """The size of a partition's filters: of `blocks` with `rows` buckets each."""

    blocks: int
    rows: int

    @property
    def row_bytes(self) -> int:
        # The filter of the whole and those of the blocks. With one block both would be the same.
        return BUCKET_BYTES * (self.blocks if self.blocks == 1 else 2 * self.blocks)

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk; the last one may have fewer."""
        # Each chunk has a checksum, so a reader of one row need not read the section to know that
        # no bit was lost.
        return max(1, CHUNK_BYTES // self.row_bytes)

    @property
    def stored_bytes(self) -> int:
        if not self.blocks:
            return 0
        chunks = -(-self.rows // self.chunk_rows)
        return self.rows * self.row_bytes + chunks * _SUM.size


def shape_of(keys: int, blocks: int, size: int) -> FilterShape:
    """Return the shape of the filters of so many keys in batches of `size` bytes, within the share
    of them that they may have: both filters; or the partition is one key block; or no filters."""
    if not keys:
        return FilterShape(0, 0)
    # What the share of the batches' bytes allows for a key, for both filters together.
    bits = 8 * size // (SHARE * keys)
    # Too little for both: one block, so that the filter of the whole suffices.
    if bits < 2 * BITS_PER_KEY:
        blocks, bits = 1, min(bits, BITS_PER_KEY)
        if bits < BITS_PER_KEY_MIN:
            return FilterShape(1, 0)
    else:
        bits = BITS_PER_KEY
    return FilterShape(blocks, -(-keys * bits // (8 * BUCKET_BYTES * blocks)))


class KeyFilters(NamedTuple):
    """The filters of one partition: `rows` has all rows back to back, `positions` where each key
    block starts, from the start of the partition's batches on."""

    number: int
    keys: int
    shape: FilterShape
    positions: Sequence[int]
    rows: Buffer


def write_keys(filters: Sequence[KeyFilters]) -> bytes:
    """Encode the body of the section; the numbers of the partitions rise."""
    head_bytes = _HEAD.size + sum(_ENTRY.size + 8 * each.shape.blocks for each in filters)
    entries, columns, chunks = [], [], []
    at = head_bytes
    for each in filters:
        shape = each.shape
        # Positions and chunks follow all entries: a reader gets the head in one read.
        entries.append(_ENTRY.pack(each.number, each.keys, at, *shape))
        columns.append(_swap_bytes(array("q", each.positions)).tobytes())
        chunks += _chunks(shape, memoryview(each.rows))
        at += shape.stored_bytes
    rest = b"".join([*entries, *columns])
    front = _HEAD.pack(len(filters), HASH, head_bytes, 0, 0)
    # Of the head without its own field; chunks have their own.
    checksum = crc32c(rest, crc32c(front[_CHECKED + _SUM.size :], crc32c(front[:_CHECKED])))
    return b"".join([_HEAD.pack(len(filters), HASH, head_bytes, checksum, 0), rest, *chunks])


def _chunks(shape: FilterShape, rows: memoryview) -> list[bytes | memoryview]:
    """Return the chunks of a partition's rows, each followed by its checksum."""
    parts: list[bytes | memoryview] = []
    size = shape.chunk_rows * shape.row_bytes if shape.blocks else 1
    for at in range(0, len(rows), size):
        chunk = rows[at : at + size]
        parts += [chunk, _SUM.pack(crc32c(chunk))]
    return parts


class PartitionKeys(NamedTuple):
    """Where the filters of a partition are in the section's body; see KeyFilters."""

    number: int
    keys: int
    start: int
    shape: FilterShape
    positions: Sequence[int]

    def place(self, hashed: int) -> tuple[int, int]:
        """Return (position in the body, length) of the chunk that `find` needs for a hash; the
        length is 0 if there are no keys."""
        shape = self.shape
        if not shape.blocks:
            return self.start, 0
        rows = shape.chunk_rows
        number = self._row(hashed) // rows
        have = min(rows, shape.rows - number * rows)
        at = self.start + number * (rows * shape.row_bytes + _SUM.size)
        return at, have * shape.row_bytes + _SUM.size

    def find(self, hashed: int, chunk: Buffer) -> list[int]:
        """Return the numbers of the key blocks that may have a key, from the chunk of `place`.
        FormatError if that is damaged."""
        shape = self.shape
        if not shape.blocks:
            return []
        view = memoryview(chunk)
        if len(view) != self.place(hashed)[1]:
            raise FormatError("its key index is cut short")
        stored = view[-_SUM.size :]
        if crc32c(view[: -_SUM.size]) != _SUM.unpack(stored)[0]:
            raise FormatError("its key index is damaged")
        count = shape.blocks
        # A bucket of the filter of the whole; its row is the same in the filters of the blocks.
        row, column = divmod(bucket_of(hashed, shape.rows * count), count)
        first = row % shape.chunk_rows * shape.row_bytes
        # Most keys end here: the filter of the whole says no.
        if not _has(view, first + column * BUCKET_BYTES, whole_bits(hashed)):
            return []
        if count == 1:
            return [0]
        # After the whole's buckets of this row come those of the blocks.
        first += count * BUCKET_BYTES
        bits = block_bits(hashed)
        return [block for block in range(count) if _has(view, first + block * BUCKET_BYTES, bits)]

    def span(self, block: int, length: int) -> tuple[int, int]:
        """Return (start, end) of a key block, from the start of the partition's batches on, which
        have `length` bytes."""
        after = block + 1
        return self.positions[block], self.positions[after] if after < len(
            self.positions
        ) else length

    def _row(self, hashed: int) -> int:
        return bucket_of(hashed, self.shape.rows * self.shape.blocks) // self.shape.blocks


def _has(view: memoryview, at: int, bits: int) -> bool:
    return not bits & ~int.from_bytes(view[at : at + BUCKET_BYTES], "little")


def head_length(start: Buffer, body_length: int) -> int:
    """Return the bytes of the head of a section, from its first 24. FormatError if it has none;
    NewerFormatError for a hash that this version cannot compute."""
    if len(start) < _HEAD.size:
        raise FormatError("its key index is cut short")
    _, hash_kind, length, _, zero = _HEAD.unpack_from(start)
    # The length is not under a checksum yet: believed only within the section.
    if not _HEAD.size <= length <= body_length or zero:
        raise FormatError("the head of its key index is damaged")
    # Another hash would answer no for keys that are there.
    if hash_kind != HASH:
        raise NewerFormatError(f"its key index has the hash {hash_kind}, which is not known here")
    return int(length)


def read_keys(head: Buffer, body_length: int) -> dict[int, PartitionKeys]:
    """Decode the head of a section by partition number; `head` may have more bytes than the head.

    FormatError for anything `write_keys` did not write.
    """
    size = head_length(head, body_length)
    view = memoryview(head)[:size]
    if len(view) != size:
        raise FormatError("its key index is cut short")
    count, _, _, checksum, _ = _HEAD.unpack_from(view)
    if crc32c(view[_CHECKED + _SUM.size :], crc32c(view[:_CHECKED])) != checksum:
        raise FormatError("the head of its key index is damaged")
    columns = _HEAD.size + count * _ENTRY.size
    # A count is compared with the bytes before the entries are read.
    if columns > size:
        raise FormatError(f"its key index has no room for {count} partitions")
    found: dict[int, PartitionKeys] = {}
    at = size
    last = -1
    # Each entry begins where the chunks of the one before end.
    for number, keys, start, blocks, rows in _ENTRY.iter_unpack(view[_HEAD.size : columns]):
        shape = FilterShape(blocks, rows)
        # Rising; adjoining; no keys, no blocks and no rows only together.
        if number <= last or start != at or bool(keys) != bool(blocks) or bool(rows) != bool(keys):
            raise FormatError(f"its key index has a wrong entry for partition {number}")
        # The second: bucket numbers are computed in 32 bits.
        if 8 * blocks > size - columns or rows * blocks >> 32:
            raise FormatError(f"its key index has no room for {blocks} blocks")
        positions = _positions(view[columns : columns + 8 * blocks])
        found[number] = PartitionKeys(number, keys, start, shape, positions)
        columns += 8 * blocks
        at += shape.stored_bytes
        last = number
    # Entries, positions and chunks fill the section exactly.
    if columns != size or at != body_length:
        raise FormatError("its key index does not have the length of its entries")
    return found


def _positions(column: memoryview) -> Sequence[int]:
    positions = array("q")
    positions.frombytes(column)
    if any(one >= other for one, other in zip(_swap_bytes(positions), positions[1:], strict=False)):
        raise FormatError("its key index has positions that do not rise")
    return positions


def _swap_bytes(column: array[int]) -> array[int]:
    """Return the column in the byte order of files, or of this machine; changed in place."""
    if sys.byteorder == "big":
        column.byteswap()
    return column


def check_keys(body: Buffer) -> dict[int, PartitionKeys]:
    """Decode a whole section and check each chunk. FormatError if something is damaged."""
    view = memoryview(body)
    found = read_keys(view, len(view))
    for each in found.values():
        shape, at = each.shape, each.start
        left = shape.rows
        while left:
            size = min(left, shape.chunk_rows) * shape.row_bytes
            if crc32c(view[at : at + size]) != _SUM.unpack_from(view, at + size)[0]:
                raise FormatError(f"the key index of partition {each.number} is damaged")
            at += size + _SUM.size
            left -= size // shape.row_bytes
    return found


def whole_buckets(body: Buffer, keys: PartitionKeys) -> bytes:
    """Return the buckets of a partition's filter of all its keys, in their order, from the body of
    the section. FormatError if a chunk is damaged."""
    view, (blocks, rows), at = memoryview(body), keys.shape, keys.start
    wanted = BUCKET_BYTES * blocks
    parts: list[memoryview] = []
    while rows:
        size = min(rows, keys.shape.chunk_rows) * keys.shape.row_bytes
        chunk = view[at : at + size]
        if crc32c(chunk) != _SUM.unpack_from(view, at + size)[0]:
            raise FormatError(f"the key index of partition {keys.number} is damaged")
        # Of each row the first buckets: those of the whole.
        parts += [chunk[row : row + wanted] for row in range(0, size, keys.shape.row_bytes)]
        rows -= size // keys.shape.row_bytes
        at += size + _SUM.size
    return b"".join(parts)
