"""Files of records: JSON lines, CSV and Parquet, written and read byte for byte.

JSON lines are those of `consume --json`. CSV has a header; key and value are text, or base64, or
null, as columns `key_type` and `value_type` say (without these columns all are text), and headers
are JSON. Parquet has binary columns; it needs pyarrow.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol

from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import Partition
from kafkawire.client.record_text import (
    INT32,
    INT64,
    Parsed,
    RecordError,
    Row,
    as_json,
    encode_utf8,
    from_base64,
    headers_of,
    headers_text,
    integer,
    record_of,
)
from kafkawire.codec.batches import Record, header_text
from kafkawire.codec.record_text import text_of
from kafkawire.extras import need

# Parquet files of records, by pyarrow.


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


FORMATS = ("jsonl", "csv", "parquet")
SUFFIXES = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
            ".parquet": "parquet"}  # fmt: skip
STANDARD = "-"
MAX_CELL_CHARS = 128 << 20
"""Longest line or cell: the largest record that brokers accept, in base64."""
NAMES = ("topic", "partition", "offset", "timestamp", "key_type", "key", "value_type", "value",
         "headers")  # fmt: skip
TEXT, BASE64, NULL = "text", "base64", "null"


class RecordWriter(Protocol):
    """Writes records to a file."""

    def write(self, partition: Partition, record: Record) -> None:
        """Add a record."""

    def close(self) -> None:
        """Write what is left; the stream stays open."""


def format_of_file(option: str, name: str | None, path: str) -> str:
    """Return the format of a file by the option, else by its suffix. OptionError."""
    if name is None:
        found = next((SUFFIXES[each] for each in SUFFIXES if path.lower().endswith(each)), None)
        name = found or ("jsonl" if path == STANDARD else "")
    if name.lower() not in FORMATS:
        allowed = "one of " + ", ".join(FORMATS)
        raise OptionError(option, name or path, allowed + ", or the file's suffix one of them")
    if name.lower() == "parquet" and path == STANDARD:
        raise OptionError(option, name, "jsonl or csv for standard input and output")
    return name.lower()


def writer_of(kind: str, stream: IO[bytes]) -> RecordWriter:
    """Return a writer of this format. ClientError if Parquet is not available."""
    if kind == "jsonl":
        return _JsonWriter(stream)
    if kind == "csv":
        return _CsvWriter(stream)
    from kafkawire.cli.records.files import ParquetRecordWriter

    return ParquetRecordWriter(stream)


def rows_of(kind: str, stream: IO[bytes]) -> Iterator[Row]:
    """Yield the records of a file. ClientError if it is not of this format."""
    if kind == "jsonl":
        return _json_rows(stream)
    if kind == "csv":
        return _csv_rows(stream)
    from kafkawire.cli.records.files import parquet_rows

    return parquet_rows(stream)


class _JsonWriter:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, partition: Partition, record: Record) -> None:
        line = json.dumps(as_json(partition, record), ensure_ascii=False)
        self._stream.write(line.encode() + b"\n")

    def close(self) -> None:
        self._stream.flush()


class _CsvWriter:
    def __init__(self, stream: IO[bytes]) -> None:
        self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(NAMES)

    def write(self, partition: Partition, record: Record) -> None:
        self._writer.writerow(
            (
                *partition,
                record.offset,
                record.timestamp,
                *_cell(record.key),
                *_cell(record.value),
                json.dumps(headers_text(record)),
            )
        )

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


def _cell(value: bytes | None) -> tuple[str, str]:
    """Return type and text of a cell. Text with carriage returns or NUL is base64: readers of CSV
    change it."""
    text = text_of(value)
    if text is None:
        return NULL, ""
    if isinstance(text, str) and "\r" not in text and "\0" not in text:
        return TEXT, text
    from base64 import b64encode

    return BASE64, b64encode(value or b"").decode()


def _json_rows(stream: IO[bytes]) -> Iterator[Row]:
    number = 0
    while line := stream.readline(MAX_CELL_CHARS + 1):
        number += 1
        if len(line) > MAX_CELL_CHARS:
            raise ClientError(f"line {number} is longer than {MAX_CELL_CHARS >> 20} MiB")
        yield f"line {number}", _attempt_json(line)


def _attempt_json(line: bytes) -> Parsed | RecordError:
    try:
        return record_of(line.decode("utf-8"))
    except UnicodeDecodeError:
        return RecordError("it is not UTF-8")
    except RecordError as error:
        return error


def _csv_rows(stream: IO[bytes]) -> Iterator[Row]:
    csv.field_size_limit(MAX_CELL_CHARS)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.reader(text)
    try:
        names = next(reader, [])
        if "value" not in names or len(set(names)) < len(names):
            raise ClientError(f"the first line must name the columns: {', '.join(NAMES)}")
        for row in reader:
            if row:
                yield f"line {reader.line_num}", _attempt_csv(names, row)
    except csv.Error as error:
        raise ClientError(f"line {reader.line_num} is not CSV: {error}") from None
    except UnicodeDecodeError:
        raise ClientError(f"the file is not UTF-8 after line {reader.line_num}") from None
    finally:
        text.detach()


def _attempt_csv(names: Sequence[str], row: Sequence[str]) -> Parsed | RecordError:
    if len(row) != len(names):
        return RecordError(f"it has {len(row)} cells, the first line {len(names)}")
    cells = dict(zip(names, row, strict=True))
    try:
        return Parsed(
            _value("key", cells.get("key_type", TEXT if "key" in cells else NULL), cells),
            _value("value", cells.get("value_type", TEXT), cells),
            headers_of(_json(cells.get("headers"))),
            integer("partition", _json(cells.get("partition")), 0, INT32),
            integer("timestamp", _json(cells.get("timestamp")), -INT64, INT64),
        )
    except RecordError as error:
        return error


def _value(name: str, kind: str, cells: dict[str, str]) -> bytes | None:
    if kind == NULL:
        return None
    if kind == BASE64:
        return from_base64(name, cells.get(name, ""))
    if kind == TEXT:
        return encode_utf8(name, cells.get(name, ""))
    raise RecordError(f"its {name}_type is {kind[:20]!r}, not one of {TEXT}, {BASE64}, {NULL}")


def _json(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(f"{text[:40]!r} is not JSON") from None
