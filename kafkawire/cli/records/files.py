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

from kafkawire.cli.records.text import (
    INT32,
    INT64,
    Parsed,
    RecordError,
    Row,
    as_json,
    encoded,
    from_base64,
    headers_of,
    headers_text,
    integer,
    record_of,
    text_of,
)
from kafkawire.cli.shared.options import OptionError
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import Record

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
    from kafkawire.cli.records.parquet import ParquetRecordWriter

    return ParquetRecordWriter(stream)


def rows_of(kind: str, stream: IO[bytes]) -> Iterator[Row]:
    """Yield the records of a file. ClientError if it is not of this format."""
    if kind == "jsonl":
        return _json_rows(stream)
    if kind == "csv":
        return _csv_rows(stream)
    from kafkawire.cli.records.parquet import parquet_rows

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
        return encoded(name, cells.get(name, ""))
    raise RecordError(f"its {name}_type is {kind[:20]!r}, not one of {TEXT}, {BASE64}, {NULL}")


def _json(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(f"{text[:40]!r} is not JSON") from None
