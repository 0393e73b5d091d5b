"""Parquet files of records, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from kafkawire.cli.records.text import INT32, INT64, Parsed, RecordError, Row, integer
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import Record, header_text
from kafkawire.extras import need

MAX_ROWS = 10_000
MAX_BYTES = 32 << 20
"""Rows and bytes of a row group: it is in memory until it is written."""
ROWS_AT_ONCE = 500
"""Rows that are decoded at once."""


def _arrow() -> tuple[Any, Any]:
    need("sql", "Parquet", ("pyarrow",))
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet


class ParquetRecordWriter:
    """Writes records in row groups of bounded size."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._arrow, parquet = _arrow()
        header = self._arrow.struct(
            [
                self._arrow.field("name", self._arrow.string(), nullable=False),
                self._arrow.field("value", self._arrow.binary()),
            ]
        )
        self._schema = self._arrow.schema(
            [
                self._arrow.field("topic", self._arrow.string(), nullable=False),
                self._arrow.field("partition", self._arrow.int32(), nullable=False),
                self._arrow.field("offset", self._arrow.int64(), nullable=False),
                self._arrow.field("timestamp", self._arrow.timestamp("ms", "UTC"), nullable=False),
                self._arrow.field("key", self._arrow.binary()),
                self._arrow.field("value", self._arrow.binary()),
                self._arrow.field("headers", self._arrow.list_(header), nullable=False),
            ]
        )
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def write(self, partition: Partition, record: Record) -> None:
        self._rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": record.key,
                "value": record.value,
                "headers": [
                    {"name": header_text(name), "value": value} for name, value in record.headers
                ],
            }
        )
        self._size += len(record.key or b"") + len(record.value or b"")
        self._size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if len(self._rows) >= MAX_ROWS or self._size >= MAX_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
        self._rows, self._size = [], 0


def parquet_rows(stream: IO[bytes]) -> Iterator[Row]:
    """Yield the records of a Parquet file. ClientError."""
    arrow, parquet = _arrow()
    try:
        file = parquet.ParquetFile(stream)
        names = [name for name in ("partition", "timestamp", "key", "value", "headers")
                 if name in file.schema_arrow.names]  # fmt: skip
        if "value" not in names:
            raise ClientError('the Parquet file has no column "value"')
        number = 0
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=names):
            for row in _plain(arrow, batch).to_pylist():
                number += 1
                yield f"row {number}", _attempt(row)
    except arrow.ArrowException as error:
        raise ClientError(f"the file is not Parquet, or damaged: {error}") from None


def _plain(arrow: Any, batch: Any) -> Any:
    """Return the batch with timestamps as numbers: Python's calendar ends in the year 9999."""
    for at, field in enumerate(batch.schema):
        if arrow.types.is_timestamp(field.type):
            column = batch.column(at).cast(arrow.timestamp("ms", field.type.tz), safe=False)
            batch = batch.set_column(at, field.name, column.cast(arrow.int64()))
    return batch


def _attempt(row: dict[str, Any]) -> Parsed | RecordError:
    try:
        return Parsed(
            _bytes("key", row.get("key")),
            _bytes("value", row["value"]),
            _headers(row.get("headers")),
            integer("partition", row.get("partition"), 0, INT32),
            integer("timestamp", row.get("timestamp"), -INT64, INT64),
        )
    except RecordError as error:
        return error


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise RecordError(f"its {name} is neither bytes nor text")


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    rows = [] if value is None else value
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise RecordError("its headers are not a list of (name, value)")
    return [(row["name"], _bytes("header", row.get("value"))) for row in rows]
