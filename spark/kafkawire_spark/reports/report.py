"""A report: sentences, tables and a plot, written to a folder or bucket.

Tables are aggregates of at most `ROWS_MAX` rows: they fit into the driver's memory, which never has
records. Called by the jobs of this package and by the command.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from kafkawire.reading.files.locations import Place

ROWS_MAX = 500_000
"""Maximum rows of a table: the limit of spreadsheets, some 100 MB in the driver. A truncation is
reported."""


@dataclass(slots=True)
class ReportTable:
    """A table with a name (part of its file's) and a title. `shown`: its columns on a terminal, in
    order; none: not shown there."""

    name: str
    title: str
    data: pa.Table
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """`problems`: number of defective offsets (the command's exit code); `plot`: PNG, empty if
    there is nothing to draw."""

    name: str
    sentences: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    plot: bytes = b""
    problems: int = 0

    def add(self, name: str, title: str, data: pa.Table, *shown: str) -> pa.Table:
        """Add a table; truncate it, with a sentence, if it is too large. Return the kept part."""
        if data.num_rows > ROWS_MAX:
            self.sentences.append(
                f"{title}: only the first {ROWS_MAX:,} rows are kept; --topic, --from and "
                "--until make it shorter."
            )
            data = data.slice(0, ROWS_MAX)
        self.tables.append(ReportTable(name, title, data, shown))
        return data

    def write(self, place: Place) -> list[str]:
        """Write NAME.png, and TABLE.parquet and TABLE.csv of each table; return their names."""
        files = {}
        for table in self.tables:
            files[f"{table.name}.parquet"] = parquet(table.data)
            files[f"{table.name}.csv"] = csv(table.data)
        if self.plot:
            files[f"{self.name}.png"] = self.plot
        for name, content in files.items():
            place.put(name, content)
        return list(files)


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table whose columns have their types even if no row has a value."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_FRACTIONS, pa.float64())
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in names])
    return pa.Table.from_pylist(list(rows), schema)


_TEXTS = ("topic", "key", "key_hex", "p99_late", "words")
_FRACTIONS = (
    "share", "largest_share", "largest_key_share", "gini_partitions", "gini_keys", "late_share",
    "records_per_s",
)  # fmt: skip
"""Columns of `table_of` that are no whole numbers."""


def collect(frame: DataFrame) -> pa.Table:
    """Collect an aggregate in the driver: one row more than is kept, to detect truncation."""
    return frame.limit(ROWS_MAX + 1).toArrow()


def rows_of(data: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries, for plots and sentences; only for small tables."""
    found: list[dict[str, Any]] = data.to_pylist()
    return found


def parquet(data: pa.Table) -> bytes:
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(data, out, compression="zstd")
    return out.getvalue()


def csv(data: pa.Table) -> bytes:
    """Return the table as a CSV file with a header; bytes in hexadecimal, lists left out."""
    import pyarrow as pa
    import pyarrow.csv

    columns = {}
    for name in data.column_names:
        column = data.column(name)
        if pa.types.is_list(column.type):
            continue
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = pa.array([None if value is None else value.hex()
                               for value in column.to_pylist()], pa.string())  # fmt: skip
        columns[name] = column
    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns), out)
    return out.getvalue()
