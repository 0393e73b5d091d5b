"""The reference for `kafkawire.reading.decode`: the codec's own reader, one record at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from kafkawire.codec.batches import (
    CONTROL,
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
from kafkawire.reading.model.source import ABORTED, COMPACTED, Account
from kafkawire.reading.model.source import CONTROL as CONTROL_GAP

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""(offset, microseconds, timestamp type, key, value, headers)"""

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
OFFSETS_MAX = 1 << 62


@dataclass
class SlowDecoder:
    """Decode one range. `rows` are the result; `feed` raises KafkaError for data that cannot be
    read."""

    account: Account
    aborted: Sequence[tuple[int, int, int]] = ()
    rows: list[Row] = field(default_factory=list)

    @property
    def cursor(self) -> int:
        return self.account.range.end - self.account.missing

    def skip(self, upto: int, reason: str) -> None:
        self.account.add_gap(self.cursor, min(upto, self.account.range.end), reason)

    def feed(self, data: bytes, *, check_crc: bool, upto: int = OFFSETS_MAX) -> None:
        view, pos, floor = memoryview(data), 0, 0
        while pos < len(view) and self.cursor < self.account.range.end:
            head = read_head(view, pos)
            _check(HEAD_BYTES <= head.size_bytes <= len(view) - pos)
            _check(head.magic == MAGIC)
            _check(floor <= head.base_offset < OFFSETS_MAX and head.last_delta >= 0)
            if head.base_offset >= self.account.range.end:
                return
            _check(head.last_offset < upto)
            batch = bytes(view[pos : pos + head.size_bytes])
            pos, floor = pos + len(batch), head.last_offset + 1
            if floor > self.cursor:
                _check(not check_crc or crc32c(batch[CRC_FROM:]) == head.crc)
                self._take(head, batch)

    def _take(self, head: BatchHead, batch: bytes) -> None:
        reason, rows = COMPACTED, list[Record]()
        if head.attributes & CONTROL:
            reason = CONTROL_GAP
        elif head.attributes & TRANSACTIONAL and any(
            producer == head.producer_id and first <= head.base_offset <= last
            for producer, first, last in self.aborted
        ):
            reason = ABORTED
        else:
            rows = _sound_records(head, batch)
        self.skip(head.base_offset, COMPACTED)
        for row in rows:
            if self.cursor <= row.offset < self.account.range.end:
                self.skip(row.offset, COMPACTED)
                self.account.rows += 1
                self.rows.append(_row(row, 1 if head.attributes & LOG_APPEND_TIME else 0))
        self.skip(head.last_offset + 1, reason)


def _check(good: bool) -> None:
    if not good:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "damaged")


def _sound_records(head: BatchHead, batch: bytes) -> list[Record]:
    _check(head.count >= 0)
    rows, last = list(records(batch)), head.base_offset - 1
    for row in rows:
        _check(last < row.offset <= head.last_offset)
        last = row.offset
    return rows


def _row(record: Record, kind: int) -> Row:
    micros = min(max(record.timestamp, FIRST_MS), LAST_MS) * 1000
    return record.offset, micros, kind, record.key, record.value, tuple(record.headers)


def rows_of(batches: Sequence[Any]) -> list[Row]:
    """The rows of Arrow batches that have all columns, in the same form."""
    rows: list[Row] = []
    for batch in batches:
        columns = {name.lstrip("_"): batch.column(name) for name in batch.schema.names}
        micros = columns["timestamp"].cast("int64").to_pylist()
        for offset, us, kind, key, value, headers in zip(
            columns["offset"].to_pylist(),
            micros,
            columns["timestamp_type"].to_pylist(),
            columns["key"].to_pylist(),
            columns["value"].to_pylist(),
            columns["headers"].to_pylist(),
            strict=True,
        ):
            assert headers is None or headers
            pairs = tuple((entry["key"], entry["value"]) for entry in headers or ())
            rows.append((offset, us, kind, key, value, pairs))
    return rows
