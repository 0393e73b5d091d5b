"""The work of a task: rows to record batches, by topic and partition, in the order of the rows.

Importing this imports numba: import it in the task, not in the driver.

The partition of a row is its column `partition`, or by its key, as Kafka's Java producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types

from kafkawire.codec.compiled import byte, compile_for, int32, put
from kafkawire_spark.encode import encode_batches
from kafkawire_spark.sink.options import SinkError, SinkOptions
from kafkawire_spark.sink.staging import StagedPart, StagingWriter

_SEED, _M = 0x9747B28C, 0x5BD1E995
_MASK = 0xFFFFFFFF


@njit
def _hash(data: int, start: int, length: int) -> int:
    """Return the hash of data[start : start + length] (org.apache.kafka.common.utils.Utils)."""
    hashed = _SEED ^ length
    at, stop = start, start + (length & ~3)
    while at < stop:
        part = byte(data, at) | byte(data, at + 1) << 8 | byte(data, at + 2) << 16
        part = ((part | byte(data, at + 3) << 24) * _M) & _MASK
        part = ((part ^ (part >> 24)) * _M) & _MASK
        hashed = ((hashed * _M) & _MASK) ^ part
        at += 4
    left = length & 3
    if left == 3:
        hashed ^= byte(data, at + 2) << 16
    if left >= 2:
        hashed ^= byte(data, at + 1) << 8
    if left >= 1:
        hashed = ((hashed ^ byte(data, at)) * _M) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _M) & _MASK
    return hashed ^ (hashed >> 15)


@compile_for(types.int64(*[types.int64] * 5))
def key_partitions(ends: int, data: int, rows: int, count: int, out: int) -> int:
    """Store the partition of each key: its positive hash modulo `count` partitions, as the default
    partitioner of Kafka's Java client. All but the numbers are addresses."""
    for row in range(rows):
        start = int32(ends, row)
        hashed = _hash(data, start, int32(ends, row + 1) - start)
        put(out, row, (hashed & 0x7FFFFFFF) % count)
    return 0


class Partitioner:
    """Partitions of rows. `counts` returns the number of partitions of a topic. `start`: number of
    the task, so that tasks begin with different partitions for rows without a key."""

    def __init__(self, counts: Callable[[str], int], start: int) -> None:
        self._counts = counts
        self._known: dict[str, int] = {}
        self._next = start

    def partition_rows(self, topic: str, rows: pa.RecordBatch) -> Any:
        """Return the partition of each row, an array of int64. Rows without a key or partition get
        the same one in this batch, as a producer's sticky partitioner does."""
        count = self._count(topic)
        names = rows.schema.names
        found = self._by_key(rows.column("key") if "key" in names else None, rows.num_rows, count)
        if "partition" not in names:
            return found
        given = rows.column("partition")
        wanted = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        valid = given.is_valid().to_numpy(zero_copy_only=False)
        wrong = wanted[valid & ((wanted < 0) | (wanted >= count))]
        if len(wrong):
            raise SinkError(
                f"a row is for partition {int(wrong[0])} of topic {topic!r}, which has {count}"
            )
        return np.where(valid, wanted, found)

    def _by_key(self, keys: pa.Array | None, rows: int, count: int) -> Any:
        sticky, self._next = self._next % count, self._next + 1
        if keys is None or keys.null_count == rows:
            return np.full(rows, sticky, np.int64)
        keys = keys.cast(pa.binary())
        out = np.empty(rows, np.int64)
        _, ends, data = keys.buffers()
        at = ends.address + 4 * keys.offset
        key_partitions(at, 0 if data is None else data.address, rows, count, out.ctypes.data)
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, out, sticky)

    def _count(self, topic: str) -> int:
        if topic not in self._known:
            self._known[topic] = self._counts(topic)
        return self._known[topic]


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
            targets = self._partitioner.partition_rows(topic, rows)
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
