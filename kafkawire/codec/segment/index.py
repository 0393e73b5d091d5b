"""The sparse index of one partition in one segment, laid out in kafkawire.codec.segment.format.

A block is a run of whole batches from one index entry to the next: at least 4 KiB, unless it is
the last one. An entry has the block's first offset, its position, the running maximum of timestamps
and the CRC-32C of the block's bytes, which also covers what a batch's own CRC leaves out. Pure.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

BLOCK_BYTES = 4096
"""A new block begins with the first batch at least this many bytes after the start of the last
one."""
ENTRY_BYTES = 28


def write_index(
    offsets: Sequence[int], positions: Sequence[int], newest: Sequence[int], sums: Sequence[int]
) -> bytes:
    """Encode an index: offset deltas, position deltas, running maxima, checksums."""
    codes: tuple[Literal["q", "I"], ...] = ("q", "q", "q", "I")
    columns = (offsets, positions, newest, sums)
    parts = []
    for code, values in zip(codes, columns, strict=True):
        column: array[int] = array(code, values)
        # Files are little-endian everywhere.
        if sys.byteorder == "big":
            column.byteswap()
        parts.append(column.tobytes())
    return b"".join(parts)


class SparseIndex:
    """An encoded index, read in place without a copy. Positions are those of the file.

    `entry_start`, `entry_length`, `base_offset`, `checksum`: as in the partition's entry of the
    directory. Raises FormatError if the checksum does not match.
    """

    __slots__ = ("_base", "_length", "_newest", "_offsets", "_positions", "_start", "_sums")

    def __init__(
        self, body: Buffer, entry_start: int, entry_length: int, base_offset: int, checksum: int
    ) -> None:
        view = memoryview(body)
        count, rest = divmod(len(view), ENTRY_BYTES)
        # A damaged index would lead readers to wrong bytes without an error.
        if rest or crc32c(view) != checksum:
            raise FormatError("its index is damaged")
        self._base = base_offset
        self._start = entry_start
        self._length = entry_length
        self._offsets = _column("q", view[: 8 * count])
        self._positions = _column("q", view[8 * count : 16 * count])
        self._newest = _column("q", view[16 * count : 24 * count])
        self._sums = _column("I", view[24 * count :])
        # The checksum holds, so a fault here is one of the writer; checked nevertheless.
        if bool(count) != bool(entry_length) or (
            count and (self._positions[0] or self._positions[-1] >= entry_length)
        ):
            raise FormatError("its index does not fit its batches")

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._positions)

    def block(self, at: int) -> tuple[int, int, int, int, int]:
        """Return position, length, first offset, running maximum timestamp and checksum of block
        `at`."""
        start = self._positions[at]
        stop = self._end(at)
        return (
            self._start + start, stop - start,
            self._base + self._offsets[at], self._newest[at], self._sums[at],
        )  # fmt: skip

    def find(self, position: int) -> int:
        """Return the number of the block at this position of the file."""
        return bisect_right(self._positions, position - self._start) - 1

    def span(self, offset: int, max_bytes: int) -> tuple[int, int]:
        """Return (position, length) of whole blocks, from the last that begins at or before
            `offset` on.

        At most `max_bytes` unless the first block alone is larger. If the offset was compacted away
        the first block may end before it: continue after it. (start, 0) for an empty index.
        """
        if not self._positions:
            return self._start, 0
        return self._run(max(0, bisect_right(self._offsets, offset - self._base) - 1), max_bytes)

    def whole_blocks(self, offset: int, end: int | None, max_bytes: int) -> tuple[int, int, int]:
        """Return position, length and first offset of the whole blocks from the last that begins
        at or before `offset` on: below `end` (None: to the end), at most `max_bytes`, perhaps
        none."""
        positions, offsets = self._positions, self._offsets
        if not positions:
            return self._start, 0, self._base
        at = max(0, bisect_right(offsets, offset - self._base) - 1)
        start = positions[at]
        stop = self._length
        if end is not None:
            # The block that has `end` is not wholly below it.
            stop = positions[max(at, bisect_right(offsets, end - self._base) - 1)]
        if stop - start > max_bytes:
            stop = positions[max(at, bisect_right(positions, start + max_bytes) - 1)]
        return self._start + start, stop - start, self._base + offsets[at]

    def runs(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (position, length) of runs of whole blocks that together hold the bytes [start,
        stop), and of no other blocks.

        Each has at most `max_bytes` unless its first block alone is larger.
        """
        at = max(0, self.find(start))
        stop = min(stop, self._start + self._length)
        position = self._start
        upto = self._start + self._end(self.find(stop - 1)) if start < stop else 0
        while position < stop and at < len(self._positions) and start < stop:
            position, length = self._run(at, max_bytes)
            length = min(length, upto - position)
            yield position, length
            position += length
            at = bisect_left(self._positions, position - self._start)

    def _run(self, at: int, max_bytes: int) -> tuple[int, int]:
        """Return the length of whole blocks from block `at` on, at most `max_bytes` or that one
        block."""
        start = self._positions[at]
        if start + max_bytes >= self._length:
            return self._start + start, self._length - start
        last = bisect_right(self._positions, start + max_bytes) - 1
        return self._start + start, (self._positions[last] if last > at else self._end(at)) - start

    def since(self, timestamp: int) -> int | None:
        """Return the position of the first block that may hold a record at or after `timestamp`
        (ms)."""
        at = bisect_left(self._newest, timestamp)
        return self._start + self._positions[at] if at < len(self._newest) else None

    def offset_since(self, timestamp: int) -> int | None:
        """Return the first offset of the block of `since`."""
        position = self.since(timestamp)
        return None if position is None else self.block(self.find(position))[2]

    def offset_from(self, position: int) -> int | None:
        """Return the first offset of the first block at or after this position of the file; None
        if there is none."""
        at = bisect_left(self._positions, position - self._start)
        return self._base + self._offsets[at] if at < len(self._offsets) else None

    def find_damaged_block(self, position: int, data: Buffer) -> int | None:
        """Return the position of the first damaged block of `data` (bytes of the file from
        `position` on); None if all match.

        Only blocks that are completely in `data` are checked.
        """
        view = memoryview(data)
        shift = position - self._start
        at = bisect_left(self._positions, shift)
        # Positions relative to `data`; a block that is cut off at its end is not checked.
        while at < len(self._positions):
            start, stop = self._positions[at] - shift, self._end(at) - shift
            if stop > len(view):
                break
            if crc32c(view[start:stop]) != self._sums[at]:
                return position + start
            at += 1
        return None

    def _end(self, at: int) -> int:
        """Return where a block ends, from the first batch on."""
        if at + 1 < len(self._positions):
            return self._positions[at + 1]
        return self._length


def _column(code: Literal["q", "I"], part: memoryview) -> memoryview | array[int]:
    # In place: no copy of an index of a large partition.
    if sys.byteorder == "little":
        return part.cast("B").cast(code)
    column: array[int] = array(code)
    column.frombytes(part)
    column.byteswap()
    return column
