"""Record batches of partitions, one range after the other, to Arrow batches.

Called by whatever has the bytes: `begin` a range, `feed` its batches in rising order, `skip` what
cannot be had, `end` it; Arrow batches come out when they are full, the last one by `flush`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import crc32c

from kafkawire.codec.batches import (
    CONTROL as CONTROL_BATCH,
)
from kafkawire.codec.batches import (
    CRC_FROM,
    HEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHead,
    Record,
    read_head,
    records,
)
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.spark.columns import Selection
from kafkawire.spark.model import ABORTED, COMPACTED, CONTROL, Account, DamagedData

if TYPE_CHECKING:
    import pyarrow as pa


class Decoder:
    """Arrow batches of `selection`, at most `batch_rows` rows and about `batch_bytes` each.

    An Arrow batch may hold rows of several ranges. One record larger than `batch_bytes` gives a
    batch of its own. Timestamps outside the years 1 to 9999, which Spark does not know, are those
    years' ends. Not for use by several threads.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        read_committed: bool = True,
        batch_rows: int = 65536,
        batch_bytes: int = 8 << 20,
    ) -> None:
        self._schema = selection.arrow_schema()
        self._kinds = [column.kind for column in selection.fields()]
        self._read_committed = read_committed
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._account: Account | None = None
        self._aborted: tuple[tuple[int, int, int], ...] = ()
        self.broken = (0, 0)
        """After DamagedData: from where to where the bytes fed last cannot be read. Behind it
        feeding may go on, if anything is there."""

    def begin(self, account: Account, aborted: Sequence[tuple[int, int, int]] = ()) -> None:
        """A new range, or the rest of one; the cursor is at its first unexplained offset.

        `aborted`: (producer id, first offset, last offset) of transactions that were aborted.
        """
        self._account, self._aborted = account, tuple(aborted)

    @property
    def cursor(self) -> int:
        """Offsets of the range below this one are accounted for."""
        assert self._account is not None
        return self._account.range.end - self._account.missing

    def feed(
        self, data: Buffer, *, check_crc: bool, upto: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Whole batches of the range's partition, rising. `upto`: offsets in `data` end there, if
        that is known.

        Rows outside the range, or below the cursor, are left out. Holes are accounted as
        COMPACTED, control batches as CONTROL, data of aborted transactions as ABORTED. Raises
        DamagedData for a batch that cannot be read: nothing of it was given, all before it is
        given or kept. Then `broken` says which bytes; `skip` their offsets, feed what is behind.
        """
        assert self._account is not None
        end = self._account.range.end
        limit = end if upto is None else min(upto, end)
        view, pos, floor = memoryview(data), 0, -1
        while pos < len(view) and self.cursor < end:
            try:
                head = _sound_head(view, pos, floor, upto)
            except KafkaError as wrong:
                self.broken = (pos, len(view))
                raise self._damaged(str(wrong), self.cursor, max(limit, self.cursor)) from None
            if head.base_offset >= end:
                return
            stop, floor = pos + head.size_bytes, head.last_offset + 1
            if floor > self.cursor:
                try:
                    rows = _rows(view[pos:stop], head, check_crc)
                except KafkaError as wrong:
                    self.broken = (pos, stop)
                    base = max(head.base_offset, self.cursor)
                    self.skip(base, COMPACTED)
                    raise self._damaged(str(wrong), base, min(floor, end)) from None
                yield from self._take(head, rows)
            pos = stop

    def skip(self, upto: int, reason: str) -> None:
        """Offsets from the cursor to `upto` have no row."""
        assert self._account is not None
        self._account.add_gap(self.cursor, min(upto, self._account.range.end), reason)

    def end(self) -> None:
        """The range is over: what is left of it is COMPACTED."""
        assert self._account is not None
        self.skip(self._account.range.end, COMPACTED)
        self._account = None

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What is kept."""
        import pyarrow as pa

        if self._rows:
            columns = list(zip(*self._rows, strict=True)) or [()] * len(self._kinds)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
            self._rows, self._bytes = [], 0
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _damaged(self, text: str, base: int, end: int) -> DamagedData:
        assert self._account is not None
        topic, partition = self._account.range[:2]
        where = f"offsets [{base}, {end}) of partition {partition} of topic {topic!r}"
        return DamagedData(f"{where} cannot be read: {text}", topic, partition, base, end)

    def _take(self, head: BatchHead, rows: list[Record]) -> Iterator[pa.RecordBatch]:
        assert self._account is not None
        account = self._account
        self.skip(head.base_offset, COMPACTED)
        if head.attributes & CONTROL_BATCH:
            rows, reason = [], CONTROL
        elif self._is_aborted(head):
            rows, reason = [], ABORTED
        else:
            reason = COMPACTED
        for row in rows:
            if self.cursor <= row.offset < account.range.end:
                self.skip(row.offset, COMPACTED)
                yield from self._give(row, 1 if head.attributes & LOG_APPEND_TIME else 0)
        self.skip(head.last_offset + 1, reason)

    def _is_aborted(self, head: BatchHead) -> bool:
        return (
            self._read_committed
            and bool(head.attributes & TRANSACTIONAL)
            and any(
                head.producer_id == producer and first <= head.base_offset <= last
                for producer, first, last in self._aborted
            )
        )

    def _give(self, row: Record, kind: int) -> Iterator[pa.RecordBatch]:
        assert self._account is not None
        size = sum(len(part or b"") for part in (row.key, row.value))
        if len(self._rows) >= self._batch_rows or self._bytes + size > self._batch_bytes:
            yield from self.flush()
        topic, partition = self._account.range[:2]
        headers = [{"key": name, "value": value} for name, value in row.headers] or None
        values = {
            "topic": topic,
            "partition": partition,
            "offset": row.offset,
            "timestamp": min(max(row.timestamp, _FIRST_MS), _LAST_MS) * 1000,
            "timestampType": kind,
            "key": row.key,
            "value": row.value,
            "headers": headers,
        }
        self._rows.append(tuple(values[kind] for kind in self._kinds))
        self._bytes += size
        self._account.rows += 1


_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def _sound_head(view: memoryview, pos: int, floor: int, upto: int | None) -> BatchHead:
    head = read_head(view, pos)
    if not HEAD_BYTES <= head.size_bytes <= len(view) - pos:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {head.size_bytes} bytes")
    if head.magic != MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of format {head.magic}")
    if head.base_offset < max(floor, 0) or head.last_delta < 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the offsets of its batches do not rise")
    if upto is not None and head.last_offset >= upto:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch reaches beyond offset {upto}")
    return head


def _rows(view: memoryview, head: BatchHead, check_crc: bool) -> list[Record]:
    if check_crc and crc32c.crc32c(view[CRC_FROM:]) != head.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch does not fit")
    rows = [] if head.attributes & CONTROL_BATCH else list(records(view))
    offset = head.base_offset - 1
    for row in rows:
        if not offset < row.offset <= head.last_offset:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"offset {row.offset} does not rise")
        offset = row.offset
    return rows
