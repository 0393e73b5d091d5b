"""The memory of one Arrow batch while it is filled; the Arrow batch uses it without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

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

_NOTHING = np.zeros(0, np.uint8)
_HEADER_BYTES_MIN = 2


class Output:
    """Columns for `rows` rows whose records have `size_bytes` in all.

    Only columns of `selection` are allocated, and pages are touched only as they are filled.
    `fixed` and `texts` are arguments of `gather`. `runs`: (topic, partition, rows) in order.
    """

    def __init__(self, selection: Selection, schema: pa.Schema, rows: int, size_bytes: int) -> None:
        self._schema = schema
        self._kinds = [column.kind for column in selection.fields()]
        self.runs: list[tuple[str, int, int]] = []
        self.rows = 0
        self.fixed = (np.empty(rows, np.int64), np.empty(rows, np.int64),
                      np.empty(rows, np.int32), np.empty(rows, np.int32))  # fmt: skip
        entries = size_bytes // _HEADER_BYTES_MIN
        key = _text(rows, size_bytes) if KEY in self._kinds else _NO_TEXT
        value = _text(rows, size_bytes) if VALUE in self._kinds else _NO_TEXT
        lists = names = values = _NO_TEXT
        if HEADERS in self._kinds:
            lists, names, values = (
                _text(rows, 0), _text(entries, size_bytes), _text(entries, size_bytes),
            )  # fmt: skip
        self.texts = (key, value, lists, names, values)

    def add_run(self, topic: str, partition: int, rows: int) -> None:
        """Record that the next `rows` rows are of this partition."""
        self.rows += rows
        if self.runs and self.runs[-1][:2] == (topic, partition):
            rows += self.runs.pop()[2]
        if rows:
            self.runs.append((topic, partition, rows))

    def batch(self) -> pa.RecordBatch:
        """Return the rows of all runs."""
        rows = self.rows
        made: dict[str, Callable[[int], pa.Array]] = {
            TOPIC: self._topics,
            PARTITION: self._partitions,
            OFFSET: lambda n: _numbers(pa.int64(), self.fixed[0], n),
            TIMESTAMP: lambda n: _numbers(pa.timestamp("us", tz="UTC"), self.fixed[1], n),
            TIMESTAMP_TYPE: lambda n: _numbers(pa.int32(), self.fixed[2], n),
            KEY: lambda n: _texts(pa.binary(), self.texts[0], n),
            VALUE: lambda n: _texts(pa.binary(), self.texts[1], n),
            HEADERS: self._headers,
            VALUE_SIZE: lambda n: _numbers(pa.int32(), self.fixed[3], n),
        }
        if not self._kinds:  # rows without columns, for count()
            empty = pa.Array.from_buffers(pa.struct([]), rows, [None])
            return pa.RecordBatch.from_struct_array(empty)
        arrays = [made[kind](rows) for kind in self._kinds]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _topics(self, rows: int) -> pa.Array:
        names = [topic.encode() for topic, _, _ in self.runs]
        counts = [count for _, _, count in self.runs]
        ends = np.zeros(rows + 1, np.int32)
        np.cumsum(np.repeat([len(name) for name in names], counts), out=ends[1:])
        data = b"".join(name * count for name, count in zip(names, counts, strict=True))
        return pa.Array.from_buffers(
            pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)], 0
        )

    def _partitions(self, rows: int) -> pa.Array:
        numbers = [partition for _, partition, _ in self.runs]
        counts = [count for _, _, count in self.runs]
        return _numbers(pa.int32(), np.repeat(np.array(numbers, np.int32), counts), rows)

    def _headers(self, rows: int) -> pa.Array:
        _, _, lists, names, values = self.texts
        ends, bits, _ = lists
        n = int(ends[rows])
        entries = pa.StructArray.from_arrays(
            [_strings(_texts(pa.binary(), names, n)), _texts(pa.binary(), values, n)],
            fields=list(self._header_type().value_type),
        )
        buffers = [pa.py_buffer(bits[: rows + 7 >> 3]), pa.py_buffer(ends[: rows + 1])]
        return pa.Array.from_buffers(self._header_type(), rows, buffers, -1, children=[entries])

    def _header_type(self) -> pa.DataType:
        return self._schema.types[self._kinds.index(HEADERS)]


_Text = tuple[Any, Any, Any]


def _text(rows: int, size_bytes: int) -> _Text:
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return ends, np.empty(rows + 7 >> 3, np.uint8), np.empty(size_bytes, np.uint8)


_NO_TEXT: _Text = _text(0, 0)


def _numbers(kind: pa.DataType, data: Any, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data[:rows])], 0)


def _texts(kind: pa.DataType, text: _Text, rows: int) -> pa.Array:
    ends, bits, data = text
    buffers = [bits[: rows + 7 >> 3], ends[: rows + 1], data[: ends[rows]]]
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(part) for part in buffers], -1)


def _strings(names: pa.Array) -> pa.Array:
    """Return header names as text. Kafka allows any bytes; invalid UTF-8 is decoded as in Java."""
    text = pa.Array.from_buffers(pa.string(), len(names), names.buffers(), 0)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    return text
