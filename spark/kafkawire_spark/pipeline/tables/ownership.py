"""Owner and columns of a table: `_kafkawire/table.json`.

A table belongs to one job, by its name, because each job numbers its own runs. What no job made is
refused, unless the job adopts it. The file also has the properties to open the table without the
job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.layout import written_by
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FOLDER, TableState
from kafkawire_spark.pipeline.tables.locations import without_secrets
from kafkawire_spark.pipeline.tables.port import Table

if TYPE_CHECKING:
    from kafkawire_spark.pipeline.jobs.layout import Layout


def check_owner(table: Table, job: Job, layout: Layout | None = None) -> dict[str, Any] | None:
    """Check that the table is this job's, or is not there yet and, if given, that it can have the
    columns of `layout`. Return its description. Raises SourceError, JobError."""
    from kafkawire_spark.pipeline.jobs.layout import check_evolution

    state = TableState(table.place)
    known = state.table()
    if known is None and (refusal := _refusal(table, job, layout)):
        known = state.table()  # is written first by another driver that began meanwhile
        if known is None:
            raise JobError(refusal)
    if known is None:
        return None
    _check(known, job)
    if layout is not None:
        check_evolution(known["columns"], layout.table)
    return known


def own(table: Table, job: Job, layout: Layout) -> None:
    """Check the table like `check_owner`, and store owner and columns. Raises JobError."""
    from kafkawire_spark.pipeline.jobs.layout import describe_schema

    state, known = TableState(table.place), check_owner(table, job, layout)
    plain = description(job, describe_schema(layout.table))
    if known is None:
        first, exists = _of_others(table)
        # Readers of the table must know it: an adopted table has rows without offsets.
        plain |= {"adopted": True} if first or exists else {}
        try:
            state.write_description(plain, new=True)
        except FileExistsError:
            own(table, job, layout)
    elif (
        known["columns"].keys() != plain["columns"].keys()
        or known["dead_letters"] != job.dead_letters
    ):
        state.write_description({**known, **plain}, new=False)


def _refusal(table: Table, job: Job, layout: Layout | None) -> str:
    """Return why a job cannot begin with a table without a description: another program made it, or
    the files; "" if nothing is there, or the job may adopt it."""
    where, last = job.table.path, table.read_last_run()
    if last:
        return (
            f"the table has run {last} of the job {job.name}, of which {table.place.url} knows "
            f"nothing: its folder {FOLDER}/ was deleted"
        )
    first, exists = _of_others(table)
    if not (first or exists):
        return ""
    if not job.table.adopt:
        format_ = f"a table of the format {job.table.format}"
        what = format_ if exists else f"files, the first is {first},"
        return (
            f"{where} has {what} that no job made, as there is no {FOLDER}/table.json: choose "
            "another path, or set adopt = true in [table] to add the job's rows to it"
        )
    ours = next(filter(written_by, _files(table)), None)
    if ours is not None and not table.hides:
        return (
            f"{where} cannot be adopted: it has {ours}, a file of a job whose folder {FOLDER}/ was "
            "deleted, and a new one could have the same name"
        )
    why = table.misfit(layout.table, layout.folders) if layout is not None and exists else ""
    return why and f"{where} cannot be adopted: {why}"


def _of_others(table: Table) -> tuple[str, bool]:
    """Return the first file at the path of a table without a description, "" if there is none, and
    whether a table of its format is there."""
    return next(_files(table), ""), table.exists()


def _files(table: Table) -> Iterator[str]:
    return (key for key in table.place.list() if not key.startswith(f"{FOLDER}/"))


def description(job: Job, columns: Mapping[str, str]) -> dict[str, Any]:
    spec = job.table
    return {
        "job": job.name,
        "format": spec.format,
        "partition_by": _partition_by(job),
        "catalog": without_secrets(spec.catalog or {}),
        "dead_letters": job.dead_letters,
        "columns": dict(columns),
    }


def _partition_by(job: Job) -> list[list[Any]]:
    return [[column.name, column.column, column.by_date] for column in job.table.partition_by]


def _check(known: Mapping[str, Any], job: Job) -> None:
    where = job.table.path
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
