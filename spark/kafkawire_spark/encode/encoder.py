"""Encode Arrow rows as record batches of format 2, as a producer would send them.

Importing this imports numba: import it in the task, not in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kafkawire.codec.batches import HEAD, HEAD_BYTES, MAGIC, PREFIX_BYTES, resum
from kafkawire.codec.compression import NONE, compress
from kafkawire.reading.model.columns import HEADERS, KEY, TIMESTAMP, VALUE
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.encode import records

SEQUENCES = 1 << 31
"""A producer's sequence numbers restart at 0 after this many."""

NO_PRODUCER = (-1, -1, -1)
_HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def encode_batches(
    batch: pa.RecordBatch,
    *,
    codec: int = NONE,
    batch_bytes: int = 1 << 20,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> Iterator[tuple[bytearray, int]]:
    """Record batches of at most `batch_bytes`, in order, each with the number of its rows.

    Columns key, value, timestamp, headers by either name; a missing one is null, others are
    ignored. Base offsets are 0. `producer`: id, epoch, and the sequence of the first row (it rises
    by 1 a row). A record that is too large gives a larger batch of its own, which a broker may
    reject. A batch that `codec` would enlarge is not compressed. Raises SourceError for headers
    without a name.
    """
    columns = _Columns(batch)
    out = np.empty(max(batch_bytes - HEAD_BYTES, 1), np.uint8)
    results = np.zeros(records.RESULTS, np.int64)
    producer_id, epoch, sequence = producer
    row = 0
    while row < batch.num_rows:
        need = records.write(
            columns.address, row, batch.num_rows, out.ctypes.data, len(out), results.ctypes.data
        )
        if need:
            out = np.empty(need, np.uint8)
            continue
        end, size, newest = results.tolist()
        oldest = int(columns.times[row])
        head = (0, 0, -1, MAGIC, 0, codec, end - row - 1, oldest, newest)
        tail = (producer_id, epoch, sequence, end - row)
        yield _sealed(head + tail, out.data[:size], codec), end - row
        if sequence >= 0:
            sequence = (sequence + end - row) % SEQUENCES
        row = end
        if len(out) > batch_bytes:  # allocated for one record
            out = np.empty(max(batch_bytes - HEAD_BYTES, 1), np.uint8)


def _sealed(fields: tuple[int, ...], body: memoryview, codec: int) -> bytearray:
    packed = compress(codec, body)
    if codec != NONE and len(packed) >= len(body):
        packed, fields = body, (*fields[:5], NONE, *fields[6:])
    length = HEAD_BYTES - PREFIX_BYTES + len(packed)
    whole = bytearray(HEAD.pack(fields[0], length, *fields[2:]))
    whole += packed
    resum(whole, 0, len(whole))
    return whole


class _Columns:
    """The buffers of a batch's columns and their addresses, as `records.write` takes them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._kept: list[Any] = []
        self._rows = batch.num_rows
        # By native name, else by the connector's: a table may have its own column `value`.
        names = sorted(batch.schema.names, key=lambda name: name.startswith("_"))
        by_name = {name.removeprefix("_"): batch.column(name) for name in names}
        self.times = self._milliseconds(by_name.get(TIMESTAMP))
        addresses = [self.times.ctypes.data]
        for kind in (KEY, VALUE):
            addresses += self._text(by_name.get(kind), self._rows)
        lists = by_name.get(HEADERS)
        if lists is None:
            lists = pa.nulls(self._rows, _HEADER_TYPE)
        lists = lists.cast(_HEADER_TYPE)
        addresses += self._layout(lists)[:2]
        entries = lists.values
        names, values = entries.field(0), entries.field(1)
        if entries.null_count or names.null_count:
            _refuse_nameless(lists)
        addresses += self._text(names, len(entries)) + self._text(values, len(entries))
        self._addresses = np.array(addresses, np.int64)
        self.address = self._addresses.ctypes.data

    def _milliseconds(self, times: pa.Array | None) -> Any:
        if times is None:
            return np.full(self._rows, -1, np.int64)
        if pa.types.is_timestamp(times.type):
            # Rounded down, because -1 ms means no timestamp in Kafka.
            micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
            return micros.fill_null(-1000).to_numpy() // 1000
        return np.ascontiguousarray(times.cast(pa.int64()).fill_null(-1).to_numpy())

    def _text(self, column: pa.Array | None, rows: int) -> list[int]:
        if column is None:
            column = pa.nulls(rows, pa.binary())
        return self._layout(column.cast(pa.binary()))

    def _layout(self, column: pa.Array) -> list[int]:
        """Return the addresses of the ends, of a byte per row (1: not null), and of the data."""
        valid = column.is_valid().cast(pa.uint8()).to_numpy()
        buffers = column.buffers()
        self._kept += [column, valid]
        ends = 0 if buffers[1] is None else buffers[1].address  # none: there are no rows
        data = buffers[2].address if len(buffers) > 2 and buffers[2] is not None else 0
        return [ends + 4 * column.offset, valid.ctypes.data, data]


def _refuse_nameless(lists: pa.Array) -> None:
    for row, entries in enumerate(lists.to_pylist()):
        for entry in entries or ():
            if entry is None or entry["key"] is None:
                raise SourceError(f"row {row} has a header without a name; each header needs one")
