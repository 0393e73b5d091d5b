"""Interface of a table of any format: commit a run once, replace files, list them.

`files()` returns the committed files. Delta and Iceberg readers see exactly these. In a Parquet
table they are the files under its path that are not in `_kafkawire/`; while a run is in progress
there are also uncommitted files (see parquet.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kafkawire.reading.model.source import Source
from kafkawire_spark.pipeline.jobs.job import (
    DELTA,
    ICEBERG,
    Job,
    PartitionColumn,
    SourceSection,
    TableSpec,
)
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord, TableState
from kafkawire_spark.pipeline.values.spec import Format

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place

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

    def exists(self) -> bool:
        """Return True if the format has metadata of a table here, made by any program; never for
        Parquet, which has none."""

    def misfit(self, schema: pa.Schema, partition_columns: Sequence[str]) -> str:
        """Return why rows of `schema` cannot be added to the existing table of another program, ""
        if they can."""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return `schema` for the files to write: Iceberg numbers the fields. Called after
        `prepare`."""

    def read_last_run(self) -> int:
        """Return the last run that the table has, 0 if there is none."""

    def commit(self, record: RunRecord) -> None:
        """Make the rows of `record.files` visible atomically, as run `record.run`. No effect if the
        table has that run already. A run without files is committed as well."""

    def read_last_replacement(self) -> int:
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
    from kafkawire.reading.files.open import open_place

    known = TableState(open_place(url, LOCATION)).table()
    if known is None:
        raise JobError(f"{url} is no table of a pipeline: it has no _kafkawire/table.json")
    return open_table(_described_job(url, known))


def open_table(job: Job) -> Table:
    """Open the job's table without creating anything. Raises SourceError."""
    from kafkawire.reading.files.open import open_place

    if job.table.format == DELTA:
        from kafkawire_spark.pipeline.tables.delta import DeltaTable

        return DeltaTable(job, open_place(job.table.path, LOCATION))
    if job.table.format == ICEBERG:
        from kafkawire_spark.pipeline.tables.iceberg import IcebergTable

        return IcebergTable(job, open_place(job.table.path, LOCATION))
    from kafkawire_spark.pipeline.tables.parquet import ParquetTable

    return ParquetTable(job, open_place(job.table.path, LOCATION))


def _described_job(url: str, known: Mapping[str, Any]) -> Job:
    """Return a job that opens the table found at `url`; its source is unknown."""
    return Job(
        known["job"],
        SourceSection(Source(url="/")),
        Format(),
        Format(),
        TableSpec(
            known["format"],
            url,
            tuple(PartitionColumn(*column) for column in known["partition_by"]),
            catalog=known["catalog"],
        ),
        known["dead_letters"],
    )
