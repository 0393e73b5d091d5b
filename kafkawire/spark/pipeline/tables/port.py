"""Interface of a table of any format: commit a run once, replace files, list them.

`files()` returns the committed files. Delta and Iceberg readers see exactly these. In a Parquet
table they are the files under its path that are not in `_kafkawire/`; while a run is in progress
there are also uncommitted files (see parquet.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kafkawire.spark.pipeline.jobs.job import DELTA, ICEBERG, Job
from kafkawire.spark.pipeline.jobs.runs import FileFacts, RunRecord
from kafkawire.spark.pipeline.jobs.section import JobError
from kafkawire.spark.pipeline.jobs.state import TableState
from kafkawire.spark.pipeline.tables.ownership import described_job

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.spark.source.files.locations import Place

LOCATION = "table location"
"""Name of the URL of a table in errors."""


class Table(Protocol):
    """A table of one job. Every method may be repeated after an interruption at any point, also
    concurrently by another process. Raises SourceError with one sentence."""

    place: Place
    """The table's root, with its files and `_kafkawire/`."""

    hides: bool
    """Whether readers see only committed files (Delta, Iceberg). File names then contain an id of
    the attempt, because a file of a given name must not change."""

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Create the table if absent; add new columns. The engine has checked that nothing else
        changed. `schema` has the partition columns, which the files do not have."""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return `schema` for the files to write: Iceberg numbers the fields. Called after
        `prepare`."""

    def committed(self) -> int:
        """Return the last run that the table has, 0 if there is none."""

    def commit(self, record: RunRecord) -> None:
        """Make the rows of `record.files` visible atomically, as run `record.run`. No effect if the
        table has that run already. A run without files is committed as well."""

    def compacted(self) -> int:
        """Return the last replacement that the table has, 0 if there is none."""

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """Replace files by others with the same rows, as replacement `number`. If the table has
        that one already, only complete it."""

    def tidy(self) -> int:
        """Expire states of the table older than the job's `history`, and delete the files that only
        they had; return how many. The numbers of the last run and replacement are kept."""

    def files(self) -> list[FileFacts]:
        """Return every committed file, in no order."""


def open_table_at(url: str) -> Table:
    """Open the table at a path from the metadata in its folder. Raises JobError if there is
    none."""
    from kafkawire.spark.source.files.open import open_place

    known = TableState(open_place(url, LOCATION)).table()
    if known is None:
        raise JobError(f"{url} is no table of a pipeline: it has no _kafkawire/table.json")
    return open_table(described_job(url, known))


def open_table(job: Job) -> Table:
    """Open the job's table without creating anything. Raises SourceError."""
    from kafkawire.spark.source.files.open import open_place

    if job.table.format == DELTA:
        from kafkawire.spark.pipeline.tables.delta import DeltaTable

        return DeltaTable(job, open_place(job.table.path, LOCATION))
    if job.table.format == ICEBERG:
        from kafkawire.spark.pipeline.tables.iceberg import IcebergTable

        return IcebergTable(job, open_place(job.table.path, LOCATION))
    from kafkawire.spark.pipeline.tables.parquet import ParquetTable

    return ParquetTable(job, open_place(job.table.path, LOCATION))
