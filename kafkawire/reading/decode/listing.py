"""List the batches of a chunk, verify their checksums, and decompress them in groups for
`walk.note`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kafkawire.codec.batches import (
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEAD_BYTES,
    LENGTH_AT,
    MAGIC,
    PREFIX_BYTES,
    read_head,
    unpacked_limit,
)
from kafkawire.codec.compression import BufferTooSmall, decompress_into
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c
from kafkawire.reading.decode import walk

GROUP_BYTES = 256 * 1024
"""Batches are decompressed up to this size before their records are read, so that these are in the
CPU cache."""
_KEPT_BYTES = 16 * 1024 * 1024
"""A buffer that grew beyond this size for one batch is not reused."""


class NoRoom(Exception):
    """The buffer is large enough for this batch, but not in addition to its content."""


class Unpacker:
    """Decompresses batches one after another into one reused buffer of bounded size. The bytes are
    written where the loops over records read them, without an object for each batch.
    `data[:used]`: those decompressed since `clear`."""

    def __init__(self) -> None:
        self.data = np.empty(2 * GROUP_BYTES, np.uint8)
        self.used = 0

    @property
    def address(self) -> int:
        """Address of `data`."""
        return self.data.ctypes.data

    def clear(self) -> None:
        """Empty the buffer after everything in it was read."""
        self.used = 0
        if len(self.data) > _KEPT_BYTES:
            self.data = np.empty(2 * GROUP_BYTES, np.uint8)

    @property
    def is_full(self) -> bool:
        """Whether the buffer should be read and cleared before more is added."""
        return self.used >= GROUP_BYTES

    def add(self, codec: int, packed: memoryview, limit_bytes: int) -> tuple[int, int]:
        """Decompress a batch's records; return their position in `data`.

        Raises NoRoom if `clear` must be called first, and KafkaError as
        `codec.compression.decompress` does.
        """
        while True:
            start = self.used
            out = self.data[start : start + limit_bytes]
            try:
                self.used = start + decompress_into(codec, packed, out)
            except BufferTooSmall:
                pass
            else:
                return start, self.used
            if len(out) >= limit_bytes:
                text = f"the batch unpacks to more than {limit_bytes} bytes"
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
            if start:
                raise NoRoom
            self.data = np.empty(min(4 * len(self.data), limit_bytes), np.uint8)


NO_LIMIT = 1 << 62
_TABLE_ROWS = 2048  # its 144 KiB stay in the processor's L2 cache


class Unreadable(Exception):
    """The batch in `row` of the table cannot be read; all before it were returned."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


class Listing:
    """A chunk's batches, one table of them at a time: `list_batches` lists `n` and returns why it
    stopped."""

    def __init__(self) -> None:
        self.table = np.zeros((_TABLE_ROWS, walk.TABLE_FIELDS), np.int64)
        self.address = self.table.ctypes.data
        self._unpacker = Unpacker()
        self.n = self.flags = self.position = self._floor = self._limit = 0
        self.open(b"", NO_LIMIT)

    def open(self, data: Buffer, limit: int) -> None:
        """Start with another chunk; no batch of it may reach offset `limit`."""
        self._view = memoryview(data).cast("B").toreadonly()
        self._address = pa.py_buffer(self._view).address
        self.position, self._floor, self._limit = 0, 0, limit

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    def list_batches(self, end: int) -> int:
        """List batches below offset `end`; return why walk.list_batches stopped. `flags`: their
        attributes, or-ed."""
        self.n, self.position, why, self.flags = walk.list_batches(
            self._address, len(self._view), self.position, self._floor, self._limit, end,
            self.address, _TABLE_ROWS,
        )  # fmt: skip
        if self.n:
            self._floor = int(self.table[self.n - 1, walk.LAST]) + 1
        return why

    def groups(self, check_crc: bool, low: int) -> Iterator[tuple[int, int, int]]:
        """Yield (address of the records, first, end row of the table), each to be used before the
        next.

        Batches that end below `low` are skipped. Raises Unreadable.
        """
        good = self._first_bad_crc(low) if check_crc else self.n
        if not self.flags & CODEC_MASK:
            if good:
                yield self._address, 0, good
        else:
            yield from self._unpack_runs(good, low)
        if good < self.n:
            raise Unreadable(good, "the checksum of a batch does not fit")

    def span(self, row: int) -> tuple[int, int]:
        """Return the byte range of the batch in `row`."""
        start = int(self.table[row, walk.POSITION])
        length = self._view[start + LENGTH_AT : start + LENGTH_AT + 4]
        return start, start + PREFIX_BYTES + int.from_bytes(length, "big")

    def end_offset(self, row: int) -> int:
        """Return the end of the offsets of the batch in `row`: the base of the next batch, if there
        is one, because the batch's own header may be damaged."""
        base, last = int(self.table[row, walk.BASE]), int(self.table[row, walk.LAST])
        stop = self.span(row)[1]
        if len(self._view) - stop >= HEAD_BYTES:
            following = read_head(self._view, stop)
            if following.magic == MAGIC and base < following.base_offset < self._limit:
                return following.base_offset
        return last + 1 if self._limit == NO_LIMIT else self._limit

    def _first_bad_crc(self, low: int) -> int:
        view = self._view
        for row, (at, last) in enumerate(self.table[: self.n, [walk.POSITION, walk.LAST]].tolist()):
            stop = at + PREFIX_BYTES + int.from_bytes(view[at + LENGTH_AT : at + LENGTH_AT + 4])
            stored = int.from_bytes(view[at + CRC_AT : at + CRC_FROM])
            if last >= low and crc32c(view[at + CRC_FROM : stop]) != stored:
                return row
        return self.n

    def _unpack_runs(self, n: int, low: int) -> Iterator[tuple[int, int, int]]:
        rows = self.table[:n].tolist()
        at = 0
        while at < n:
            first = at
            while at < n and not rows[at][walk.ATTRIBUTES] & CODEC_MASK:
                at += 1
            if at > first:
                yield self._address, first, at
                continue
            spans: list[tuple[int, int]] = []
            wrong = None
            try:
                for row in rows[first:]:
                    if not row[walk.ATTRIBUTES] & CODEC_MASK or self._unpacker.is_full:
                        break
                    spans.append(self._unpack(row, low))
            except NoRoom:
                pass
            except KafkaError as error:
                wrong = Unreadable(first + len(spans), error.message or "")
            at = first + len(spans)
            if spans:
                self.table[first:at, walk.FROM : walk.STOP + 1] = spans
                yield self._unpacker.address, first, at
            self._unpacker.clear()
            if wrong is not None:
                raise wrong

    def _unpack(self, row: list[int], low: int) -> tuple[int, int]:
        """Return where the records of a listed batch are decompressed to."""
        _, start, stop, _, last, flags, *_ = row
        if flags & CONTROL or last < low:  # it will not be read
            return 0, 0
        limit = unpacked_limit(stop - start)
        return self._unpacker.add(flags & CODEC_MASK, self._view[start:stop], limit)
