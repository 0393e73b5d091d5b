"""Rows of a table to record batches of the replay's producer. No object per record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.codec.batches import HEAD, HEAD_BYTES, MAGIC, PREFIX_BYTES, resum
from kafkawire.spark.replay.lane import Encode, Encoded
from kafkawire.spark.replay.record import SEQUENCES

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 900 << 10
"""Of a batch, if one record is not larger: with its head within Kafka's max.message.bytes."""

Text = tuple[Any, Any, Any]
"""Ends (int64), whether there is one (uint8), data (uint8)."""


def encoder(producer_id: int, epoch: int) -> Encode:
    """For one lane."""

    def encode(batch: pa.RecordBatch, sequence: int) -> Iterator[Encoded]:
        from kafkawire.spark.replay.kernel import measure, write

        columns = _columns(batch)
        stamps = columns[0]
        first = 0
        while first < batch.num_rows:
            count, size, newest = measure(*columns, first, batch.num_rows, BATCH_BYTES)
            data = bytearray(HEAD_BYTES + size)
            HEAD.pack_into(
                data, 0, 0, HEAD_BYTES - PREFIX_BYTES + size, -1, MAGIC, 0, 0, count - 1,
                int(stamps[first]), newest, producer_id, epoch, sequence, count,
            )  # fmt: skip
            end = write(*columns, first, count, np.frombuffer(data, np.uint8), HEAD_BYTES)
            assert end == len(data), "measured and written alike"
            resum(data, 0, len(data))
            yield Encoded(data, count)
            sequence = (sequence + count) % SEQUENCES
            first += count

    return encode


def _columns(batch: pa.RecordBatch) -> tuple[Any, Text, Text, tuple[Any, Text, Text]]:
    """Timestamps in milliseconds, keys, values and headers, as the kernel takes them."""
    rows = batch.num_rows
    return (
        _stamps(batch),
        _text(_column(batch, "_key"), rows),
        _text(_column(batch, "_value"), rows),
        _headers(_column(batch, "_headers"), rows),
    )


def _column(batch: pa.RecordBatch, name: str) -> Any:
    return batch[name] if name in batch.schema.names else None


def _stamps(batch: pa.RecordBatch) -> Any:
    import pyarrow as pa

    column = _column(batch, "_timestamp")
    if column is None:
        return np.full(batch.num_rows, -1, np.int64)
    ms = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).fill_null(-1)
    return np.ascontiguousarray(ms.to_numpy())


def _text(column: Any, rows: int) -> Text:
    """Of a column of bytes or text; None: all are null."""
    import pyarrow as pa

    if column is None:
        return np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8), np.zeros(0, np.uint8)
    column = column.cast(pa.large_binary())
    _, ends, data = column.buffers()
    at = column.offset
    return (
        np.frombuffer(ends, np.int64, rows + 1, 8 * at) if rows else np.zeros(1, np.int64),
        column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8),
        np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
    )


def _headers(column: Any, rows: int) -> tuple[Any, Text, Text]:
    if column is None or column.null_count == rows:
        none = _text(None, 0)
        return np.zeros(rows + 1, np.int64), none, none
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    fields = column.flatten()  # those of null rows are not in it
    names, values = fields.field(0), fields.field(1)
    return ends, _text(names, len(names)), _text(values, len(values))
