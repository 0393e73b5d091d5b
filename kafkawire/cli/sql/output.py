"""Writes the rows of a statement as they come: as a table, JSON lines, CSV or a Parquet file.

A file appears under its name when it is complete. A table is collected, because its columns are as
wide as the widest value.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TextIO

from kafkawire.cli.shared.query_rows import plain, print_rows, text_of, unique
from kafkawire.plural import count

if TYPE_CHECKING:
    import pyarrow as pa


# Values of a column for JSON, a column at a time: several times as fast as a value at a time.


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_DAY_US = 86_400_000_000
_FIRST_US, _END_US = 0, 2_932_897 * _DAY_US
"""1970 to 9999: years with four digits."""


def plain_values(column: pa.Array) -> Sequence[Any]:
    """Return a column's values as `plain` does, and sums of whole numbers,
    which DuckDB makes decimals, as whole numbers."""
    import pyarrow as pa

    kind = column.type
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_binary(kind):
        try:
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:  # not all are UTF-8
            return [plain(value) for value in column.to_pylist()]
    if kind == pa.timestamp("us", "UTC"):
        return _times(column)
    return [_plain(value) for value in column.to_pylist()]


def json_text(value: Any) -> str:
    """Return a value of `plain_values` as JSON."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    return str(value) if kind is int else _ENCODER.encode(value)


def _times(column: pa.Array) -> Sequence[Any]:
    """Return times as text, those that Kafka has, in milliseconds, at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(column.cast(pa.int64()))
    if bounds["min"].as_py() < _FIRST_US or bounds["max"].as_py() >= _END_US:
        return [plain(value) for value in column.to_pylist()]
    try:
        times = column.cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:  # microseconds would be lost
        return [plain(value) for value in column.to_pylist()]
    return pc.strftime(times, "%Y-%m-%dT%H:%M:%SZ").to_pylist()  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return plain(value)


PLAN = ["explain_key", "explain_value"]
"""Columns of the result of EXPLAIN, a drawing of several lines."""
GROUP_ROWS, GROUP_BYTES = 1 << 17, 64 << 20
"""Size of a row group of a Parquet file, which is in memory as a whole: rows, or bytes."""

Batches = Iterator["pa.RecordBatch"]


class Limited:
    """The batches up to `limit` rows, 0 for all. `more`: whether there are rows beyond it."""

    def __init__(self, batches: Batches, limit: int) -> None:
        self._batches, self._left, self._limit = batches, limit, limit
        self.more = False

    def __iter__(self) -> Batches:
        for batch in self._batches:
            if not self._limit:
                yield batch
                continue
            if batch.num_rows > self._left:
                self.more = True
                batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            if batch.num_rows:
                yield batch
            if self.more:
                return


def write_rows(
    schema: pa.Schema, batches: Batches, form: str, limit: int, file: str = "", wide: bool = False
) -> None:
    """Write rows to standard output, or to `file`; note on standard error if there are more than
    the limit. Raises OSError if the file cannot be written."""
    limited = Limited(batches, limit)
    if form == "parquet":
        _write_parquet(schema, iter(limited), file)
    elif form == "table":
        _print_table(schema, iter(limited), file, wide)
    else:
        write = _write_csv if form == "csv" else _write_json
        with _open_output(file) as out:
            write(schema, iter(limited), out)
    if limited.more:
        rows = count(limit, "row")
        print(f"kafkawire: output limited to {rows}; use --limit 0 for all", file=sys.stderr)


def _write_json(schema: pa.Schema, batches: Batches, out: TextIO) -> None:
    names = [json_text(name).replace("%", "%%") for name in unique(schema.names)]
    line = "{" + ", ".join(f"{name}: %s" for name in names) + "}\n"
    for columns in _columns(batches, out):
        texts = [map(json_text, values) for values in columns]
        out.writelines(line % row for row in zip(*texts, strict=True))


def _write_csv(schema: pa.Schema, batches: Batches, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(schema.names)
    for columns in _columns(batches, out):
        writer.writerows(zip(*(map(text_of, values) for values in columns), strict=True))


def _print_table(schema: pa.Schema, batches: Batches, file: str, wide: bool) -> None:
    names = unique(schema.names)
    listed = [row for columns in _columns(batches) for row in zip(*columns, strict=True)]
    with _open_output(file) as out, contextlib.redirect_stdout(out):
        if names == PLAN:
            print("\n".join(str(text).rstrip() for _, text in listed))
            return
        print_rows(names, listed, wide)


def _write_parquet(schema: pa.Schema, batches: Batches, file: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = unique(schema.names)
    renamed = pa.schema([each.with_name(name) for each, name in zip(schema, names, strict=True)])
    with _replacing(file) as part, pq.ParquetWriter(part, renamed) as writer:
        for group in _groups(batches):
            table = pa.Table.from_batches([each.rename_columns(names) for each in group], renamed)
            writer.write_table(table, row_group_size=table.num_rows)


def _groups(batches: Batches) -> Iterator[list[pa.RecordBatch]]:
    """Return the batches of each row group."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _columns(batches: Batches, out: TextIO | None = None) -> Iterator[list[Sequence[Any]]]:
    """Return the columns of each batch as values for JSON; `out` is flushed after each, so that the
    first rows are seen while others are read."""
    for batch in batches:
        yield [plain_values(column) for column in batch.columns]
        if out is not None:
            out.flush()


@contextlib.contextmanager
def _open_output(file: str) -> Iterator[TextIO]:
    """Open a text file, or standard output without a name."""
    if not file:
        yield sys.stdout
        sys.stdout.flush()
        return
    with _replacing(file) as part, open(part, "w", encoding="utf-8", newline="") as out:
        yield out


@contextlib.contextmanager
def _replacing(file: str) -> Iterator[str]:
    """Yield the name of a file that replaces `file` when it is complete, and is removed on an
    error."""
    part = f"{file}.part"
    try:
        yield part
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
