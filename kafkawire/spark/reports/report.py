"""A report: sentences, tables and a picture, and writing them to a folder or bucket.

Tables are aggregates of at most `ROWS_MAX` rows: the driver may hold them. It never sees records.
Called by the jobs of this package and by the command.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from kafkawire.spark.source.files.locations import Place

ROWS_MAX = 500_000
"""Of a table: what a spreadsheet takes, and some 100 MB in the driver. What is left out is said."""


@dataclass(slots=True)
class ReportTable:
    """A table by name (part of its file's), with a title for people. `shown`: its columns on a
    terminal, in order; none: not shown there."""

    name: str
    title: str
    data: pa.Table
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """`problems`: offsets that are not as they should be (the command's exit code); `plot`: PNG,
    empty where there is nothing to draw."""

    name: str
    sentences: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    plot: bytes = b""
    problems: int = 0

    def add(self, name: str, title: str, data: pa.Table, *shown: str) -> pa.Table:
        """One more table; what does not fit is left out, with a sentence. Gives what is kept."""
        if data.num_rows > ROWS_MAX:
            self.sentences.append(
                f"{title}: only the first {ROWS_MAX:,} rows are kept; --topics, --since and "
                "--until make it shorter."
            )
            data = data.slice(0, ROWS_MAX)
        self.tables.append(ReportTable(name, title, data, shown))
        return data

    def write(self, place: Place) -> list[str]:
        """Put NAME.png, and TABLE.parquet and TABLE.csv of each table; gives their names."""
        files = {}
        for table in self.tables:
            files[f"{table.name}.parquet"] = parquet(table.data)
            files[f"{table.name}.csv"] = csv(table.data)
        if self.plot:
            files[f"{self.name}.png"] = self.plot
        for name, content in files.items():
            place.put(name, content)
        return list(files)


def collect(frame: DataFrame) -> pa.Table:
    """An aggregate, in the driver: one row more than is kept, so that it shows."""
    return frame.limit(ROWS_MAX + 1).toArrow()


def rows_of(data: pa.Table) -> list[dict[str, Any]]:
    """As dictionaries, for plots and sentences; only of tables that are short."""
    found: list[dict[str, Any]] = data.to_pylist()
    return found


def parquet(data: pa.Table) -> bytes:
    """The table as a Parquet file."""
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(data, out, compression="zstd")
    return out.getvalue()


def csv(data: pa.Table) -> bytes:
    """The table as a CSV file with a header; bytes in hexadecimal, lists left out."""
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
