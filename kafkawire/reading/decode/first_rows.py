"""Decode the first rows of a read without compiled code, which takes longer to load than they take.

Only plain, sound batches are decoded here. At anything else, such as transactions or damage, and
after `MAX_ROWS`, the compiled decoder is loaded, which continues at the cursor. So what is reported
about damage and gaps is always its report.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pyarrow as pa

from kafkawire.codec.batches import (
    CONTROL,
    CRC_FROM,
    HEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHead,
    Record,
    header_text,
    read_head,
    records,
)
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c
from kafkawire.reading.decode.port import AbortedSource, RangeDecoder
from kafkawire.reading.model.columns import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOPIC,
    VALUE,
    VALUE_SIZE,
    Selection,
)
from kafkawire.reading.model.source import COMPACTED, Account

MAX_ROWS, MAX_BYTES = 16_384, 4 << 20
"""Rows, and bytes of batches, that are decoded here: at most a quarter of a second, a third of the
CPU time of loading the compiled decoder."""
BATCH_ROWS = 2048
"""Rows of an Arrow batch: few, because the first row waits for all."""
MAX_UNPACKED_BYTES = 4 << 20
"""Bytes of the fields of one batch: more are decoded in parts by the compiled decoder."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: other timestamps are clamped by the compiled decoder."""
OFFSETS_MAX = 1 << 62

_Row = tuple[str, int, int, Record]
"""Topic, partition, timestamp type, record."""
_VALUES: dict[str, Callable[[_Row], Any]] = {
    TOPIC: lambda row: row[0],
    PARTITION: lambda row: row[1],
    OFFSET: lambda row: row[3].offset,
    TIMESTAMP: lambda row: row[3].timestamp * 1000,
    TIMESTAMP_TYPE: lambda row: row[2],
    KEY: lambda row: row[3].key,
    VALUE: lambda row: row[3].value,
    HEADERS: lambda row: [{"key": header_text(k), "value": v} for k, v in row[3].headers] or None,
    VALUE_SIZE: lambda row: len(row[3].value or b""),
}


class FirstRowsDecoder:
    """A RangeDecoder for the first rows. `compiled` loads the one for all others."""

    def __init__(self, selection: Selection, compiled: Callable[[], RangeDecoder]) -> None:
        self._selection, self._schema = selection, selection.arrow_schema()
        self._compiled = compiled
        self._next: RangeDecoder | None = None
        self._account: Account | None = None
        self._aborted: AbortedSource = ()
        self._rows: list[_Row] = []
        self._left_rows, self._left_bytes = MAX_ROWS, MAX_BYTES
        self.broken = (0, 0)

    def start_range(self, account: Account, aborted: AbortedSource = ()) -> None:
        self._account, self._aborted = account, aborted
        if self._next is not None:
            self._next.start_range(account, aborted)

    @property
    def cursor(self) -> int:
        account = self._require_account()
        return account.range.end - account.missing

    def decode_batches(
        self, data: Buffer, *, check_crc: bool, upto: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        if self._next is None:
            whole = yield from self._plain(data, check_crc, OFFSETS_MAX if upto is None else upto)
            if whole:
                return
            yield from self.flush()
            self._next = self._compiled()
            self._next.start_range(self._require_account(), self._aborted)
        try:
            # What is below the cursor is left out there.
            yield from self._next.decode_batches(data, check_crc=check_crc, upto=upto)
        finally:
            self.broken = self._next.broken

    def skip(self, upto: int, reason: str) -> None:
        account = self._require_account()
        account.add_gap(self.cursor, min(upto, account.range.end), reason)

    def end_range(self) -> None:
        self.skip(self._require_account().range.end, COMPACTED)
        self._account = None
        if self._next is not None:
            self._next.end_range()

    def flush(self) -> Iterator[pa.RecordBatch]:
        rows, self._rows = self._rows, []
        if rows:
            yield self._batch(rows)
        if self._next is not None:
            yield from self._next.flush()

    def _require_account(self) -> Account:
        assert self._account is not None, "no range was begun"
        return self._account

    def _plain(
        self, data: Buffer, check_crc: bool, upto: int
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Decode batches of `data` until one is not plain. True: to the end of the data or of the
        range."""
        view, pos, floor, end = memoryview(data).cast("B"), 0, 0, self._require_account().range.end
        while pos < len(view) and self.cursor < end:
            if len(view) - pos < HEAD_BYTES:
                return False
            head = read_head(view, pos)
            if head.magic != MAGIC or not HEAD_BYTES <= head.size_bytes <= len(view) - pos:
                return False
            if not floor <= head.base_offset < OFFSETS_MAX or head.last_delta < 0:
                return False
            if head.base_offset >= end:
                return True
            stop, floor = pos + head.size_bytes, head.last_offset + 1
            if floor > upto:
                return False
            if floor > self.cursor and not self._take(head, view[pos:stop], check_crc):
                return False
            pos = stop
            if len(self._rows) >= BATCH_ROWS:
                yield from self.flush()
        return True

    def _take(self, head: BatchHead, batch: memoryview, check_crc: bool) -> bool:
        """Take the rows of a batch, all or none."""
        if head.attributes & (CONTROL | TRANSACTIONAL):
            return False
        if not 0 <= head.count <= self._left_rows or head.size_bytes > self._left_bytes:
            return False
        if check_crc and crc32c(batch[CRC_FROM:]) != head.crc:
            return False
        try:
            found = list(records(batch))
        except KafkaError:
            return False
        if not _sound(head, found):
            return False
        self._left_rows -= head.count
        self._left_bytes -= head.size_bytes
        account, kind = self._require_account(), 1 if head.attributes & LOG_APPEND_TIME else 0
        topic, partition, _, end = account.range
        cursor = self.cursor
        for record in found:
            if cursor <= record.offset < end:
                if cursor < record.offset:
                    self.skip(record.offset, COMPACTED)
                account.rows += 1
                cursor = record.offset + 1
                self._rows.append((topic, partition, kind, record))
        self.skip(head.last_offset + 1, COMPACTED)
        return True

    def _batch(self, rows: list[_Row]) -> pa.RecordBatch:
        kinds = [column.kind for column in self._selection.fields()]
        if not kinds:  # rows without columns, for count()
            empty = pa.Array.from_buffers(pa.struct([]), len(rows), [None])
            return pa.RecordBatch.from_struct_array(empty)
        arrays = [
            pa.array(map(_VALUES[kind], rows), type=field.type, size=len(rows))
            for kind, field in zip(kinds, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _sound(head: BatchHead, found: list[Record]) -> bool:
    """Return whether offsets rise within the batch, times need no clamping, and it is small."""
    last, size = head.base_offset - 1, 0
    for record in found:
        if not last < record.offset <= head.last_offset:
            return False
        if not FIRST_MS <= record.timestamp <= LAST_MS:
            return False
        last = record.offset
        size += len(record.key or b"") + len(record.value or b"")
    return size <= MAX_UNPACKED_BYTES
