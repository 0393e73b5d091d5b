"""Interface of a table of any format: commit a run once, replace files, list them.

Which of its files are rows is the table's to say: `files()`. Delta and Iceberg readers see just
these. In a Parquet table they are the files under its path that are not in `_kafkawire/`; while a
run is in progress files of it are there that are not committed yet (parquet.py says what a plain
reader may see then).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kafkawire.spark.pipeline.job import DELTA, ICEBERG, Job
from kafkawire.spark.pipeline.runs import FileFacts, RunRecord
from kafkawire.spark.pipeline.section import JobError
from kafkawire.spark.pipeline.state import TableState
from kafkawire.spark.pipeline.tables.ownership import described_job

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.spark.source.files.locations import Place


class Table(Protocol):
    """A table of one job. Every method may be repeated after an interruption at any point, also by
    another process at the same time; SourceError is one sentence."""

    place: Place
    """The table's root, where its files and `_kafkawire/` are."""

    hides: bool
    """Whether readers see nothing that is not committed (Delta, Iceberg). File names then carry
    something of each attempt, since a file of a given name may not change its bytes."""

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Create the table where it is not there; add columns that are new. The engine has checked
        that nothing else changed. `schema` has the partition columns, the files do not."""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """`schema` as files are to be written with it: Iceberg has a number for each field. The
        table is prepared."""

    def committed(self) -> int:
        """The last run the table has, 0 for none."""

    def commit(self, record: RunRecord) -> None:
        """Make the rows of `record.files` visible at once, as run `record.run`. Nothing happens if
        the table has that run already. A run without files is committed as well."""

    def compacted(self) -> int:
        """The number of the last replacement the table has, 0 for none."""

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """The same rows in other files, as replacement `number`. Nothing happens if the table has
        that one already, but for what an interruption left undone."""

    def tidy(self) -> int:
        """Give up states of the table that are older than the job's `history`, and delete the files
        that only they had; how many. The number of the last run and replacement is never lost."""

    def files(self) -> list[FileFacts]:
        """Every committed file, in no order."""


def open_table_at(url: str) -> Table:
    """The table at a path, by what its own folder says of it. JobError if there is none."""
    from kafkawire.spark.source.files.open import open_place

    known = TableState(open_place(url)).table()
    if known is None:
        raise JobError(f"{url} is no table of a pipeline: it has no _kafkawire/table.json")
    return open_table(described_job(url, known))


def open_table(job: Job) -> Table:
    """The job's table; nothing is created. SourceError."""
    from kafkawire.spark.source.files.open import open_place

    if job.table.format == DELTA:
        from kafkawire.spark.pipeline.tables.delta import DeltaTable

        return DeltaTable(job, open_place(job.table.path))
    if job.table.format == ICEBERG:
        from kafkawire.spark.pipeline.tables.iceberg import IcebergTable

        return IcebergTable(job, open_place(job.table.path))
    from kafkawire.spark.pipeline.tables.parquet import ParquetTable

    return ParquetTable(job, open_place(job.table.path))
