"""The work of a task: rows to record batches, by topic and partition, in the order of the rows.

Importing this imports numba: import it in the task, not in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kafkawire_spark.encode.encoder import encode_batches
from kafkawire_spark.sink.options import SinkError, SinkOptions
from kafkawire_spark.sink.partitions import Partitioner
from kafkawire_spark.sink.staging import StagedPart, StagingWriter

BUFFERED_BYTES = 64 << 20
"""Rows of all partitions that wait for a full batch; then all are encoded, in smaller batches."""
ENCODED = ("key", "value", "timestamp", "headers")
USED = (*ENCODED, "topic", "partition")


class RowEncoder:
    """Encodes the rows of a task. `staged` gets the batches."""

    def __init__(
        self, options: SinkOptions, partitioner: Partitioner, staged: StagingWriter
    ) -> None:
        self._options, self._partitioner, self._staged = options, partitioner, staged
        self._waiting: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def encode(self, batches: Iterable[pa.RecordBatch]) -> tuple[StagedPart, ...]:
        """Return all rows as staged batches. Raises SinkError, SourceError."""
        for batch in batches:
            if batch.num_rows:
                self._add(batch)
        for place in list(self._waiting):
            self._flush(place)
        return self._staged.finish()

    def _add(self, batch: pa.RecordBatch) -> None:
        for topic, rows in self._by_topic(
            batch.select([n for n in batch.schema.names if n in USED])
        ):
            targets = self._partitioner.partitions(topic, rows)
            encoded = _with_time(_only(rows, ENCODED))
            for partition, some in _split(encoded, targets):
                place = topic, partition
                self._waiting.setdefault(place, []).append(some)
                self._sizes[place] = self._sizes.get(place, 0) + some.nbytes
                if self._sizes[place] >= self._options.batch_bytes:
                    self._flush(place)
        if sum(self._sizes.values()) > BUFFERED_BYTES:
            for place in list(self._waiting):
                self._flush(place)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each topic; the option takes precedence over the column, as in Spark's
        Kafka sink."""
        if self._options.topic:
            yield self._options.topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise SinkError("a row has no topic, and there is no option topic")
        encoded = column.cast(pa.string()).dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        for number, rows in _split(batch, numbers):
            yield encoded.dictionary[number].as_py(), rows

    def _flush(self, place: tuple[str, int]) -> None:
        rows = self._waiting.pop(place)
        del self._sizes[place]
        for batch in pa.Table.from_batches(rows).combine_chunks().to_batches():
            for data, records in encode_batches(
                batch, codec=self._options.codec, batch_bytes=self._options.batch_bytes
            ):
                self._staged.add(*place, data, records)


def _only(rows: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    return rows.select([name for name in rows.schema.names if name in names])


def _with_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add the current time as timestamp, unless the rows have one."""
    if "timestamp" in rows.schema.names:
        return rows
    now = np.full(rows.num_rows, time.time_ns() // 1_000_000, np.int64)
    return rows.append_column("timestamp", pa.array(now))


def _split(rows: pa.RecordBatch, numbers: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each number, in their order."""
    first, last = int(numbers.min()), int(numbers.max())
    if first == last:
        yield first, rows
        return
    order = np.argsort(numbers, kind="stable")
    ordered, numbers = rows.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=first - 1))
    for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), ordered.slice(start, stop - start)
