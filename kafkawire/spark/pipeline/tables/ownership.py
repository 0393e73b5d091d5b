"""Owner and columns of a table: `_kafkawire/table.json`.

A table belongs to one job, by its name, because each job numbers its own runs. The file also has
the properties to open the table without the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafkawire.spark.model.source import Source
from kafkawire.spark.pipeline.jobs.job import Job, PartitionColumn, SourceSection, TableSpec
from kafkawire.spark.pipeline.jobs.section import JobError
from kafkawire.spark.pipeline.jobs.state import TableState
from kafkawire.spark.pipeline.values.spec import Format

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
VARIABLE = re.compile(r"\$\{(\w+)\}")
"""Reference to a variable of the environment."""
_LOGIN = re.compile(r"://[^/@]*:[^/@]*@")  # a URL with a password
_SECRET = re.compile("secret|password|token|credential|access.key|session|header", re.IGNORECASE)
_ADDRESS = re.compile("ur[il]$", re.IGNORECASE)  # the address of a token service is no secret


def own(state: TableState, job: Job, schema: pa.Schema | None) -> None:
    """Check that the table is this job's and, if given, that it can have `schema`; store new
    columns. Raises JobError."""
    known = state.table()
    if known is not None:
        _check(known, job)
    if schema is None:
        return
    from kafkawire.spark.pipeline.jobs.layout import check_evolution, described

    plain = _description(job, described(schema))
    if known is None:
        try:
            state.describe(plain, new=True)
        except FileExistsError:
            own(state, job, schema)
    elif check_evolution(known["columns"], schema) or known["dead_letters"] != job.dead_letters:
        state.describe(plain, new=False)


def _description(job: Job, columns: Mapping[str, str]) -> dict[str, Any]:
    spec = job.table
    return {
        "version": VERSION,
        "job": job.name,
        "format": spec.format,
        "partition_by": _partition_by(job),
        "catalog": _without_secrets(spec.catalog or {}),
        "dead_letters": job.dead_letters,
        "columns": dict(columns),
    }


def _partition_by(job: Job) -> list[list[Any]]:
    return [[column.name, column.column, column.by_date] for column in job.table.partition_by]


def _without_secrets(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in said.items()
        if isinstance(value, Mapping) or not is_secret(name, str(value))
    }


def is_secret(name: str, value: str) -> bool:
    """Return True if a catalog property must not be stored. The name of a variable may be."""
    if VARIABLE.search(value):
        return False
    return bool(_LOGIN.search(value) or (_SECRET.search(name) and not _ADDRESS.search(name)))


def _check(known: Mapping[str, Any], job: Job) -> None:
    where = job.table.path
    if known.get("version") != VERSION:
        raise JobError(f"{where} has a table.json of version {known.get('version')!r}, not 1")
    if known["job"] != job.name:
        raise JobError(
            f"{where} is the table of the job {known['job']!r}: {job.name!r} needs another path, "
            "since a table counts the runs of one job"
        )
    if known["format"] != job.table.format:
        raise JobError(
            f"{where} is a {known['format']} table, [table] format is {job.table.format!r}"
        )
    if known["partition_by"] != _partition_by(job):
        names = [name for name, _, _ in known["partition_by"]]
        raise JobError(
            f"{where} is partitioned by {names or 'nothing'}: [table] partition_by must stay so"
        )


def described_job(url: str, known: Mapping[str, Any]) -> Job:
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
