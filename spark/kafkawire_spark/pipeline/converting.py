"""Convert keys and values of a run to columns: converters for its tasks, and JSON parsing by
Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.pipeline.executors import DONE, OnSpark, TaskProgress, result_batch
from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.layout import Layout
from kafkawire_spark.pipeline.jobs.state import Done, Run
from kafkawire_spark.pipeline.tasks import NOTE, Work
from kafkawire_spark.pipeline.values.converters import Converter, converter
from kafkawire_spark.pipeline.values.spec import BYTES, JSON, Format

if TYPE_CHECKING:
    from kafkawire_spark.pipeline.values.json import JsonConverter


def converters(run: Run, job: Job) -> tuple[Converter | None, Converter | None]:
    """Return converters of the run's keys and values; None for raw bytes. `job`: has the login of
    a registry, which is not stored with the run. Raises ValueFormatError."""
    key, value = run.key.with_login_of(job.key), run.value.with_login_of(job.value)
    return converter_of(key, key=True), converter_of(value, key=False)


def converter_of(form: Format, *, key: bool) -> Converter | None:
    """Return the converter of a resolved format, None for raw bytes. Raises ValueFormatError."""
    if form.format == BYTES:
        return None
    if form.format == JSON:
        from kafkawire_spark.pipeline.values.json import JsonConverter

        return JsonConverter(form, key=key)
    return converter(form, key=key)


def layout_of(job: Job, key: Converter | None, value: Converter | None) -> Layout:
    """Return the columns of a table with the results of these converters. Raises JobError,
    ValueFormatError."""
    return Layout.from_job(
        job,
        key.fields() if key else [pa.field("_key", pa.binary())],
        value.fields() if value else [pa.field("_value", pa.binary())],
    )


@dataclass(frozen=True)
class JsonWork:
    """Work whose keys or values are JSON: Spark parses them between reading and writing, in the
    same task, without a shuffle."""

    work: Work
    parsed: tuple[JsonConverter, ...]

    @classmethod
    def from_work(cls, work: Work) -> JsonWork | None:
        """Return the work, or None if no value is JSON."""
        parsed = tuple(one for one in (work.key, work.value) if hasattr(one, "column"))
        return cls(work, parsed) if parsed else None  # type: ignore[arg-type]

    def run(self, executor: OnSpark, indexes: Sequence[int], progress: TaskProgress) -> list[Done]:
        """Run the given tasks on Spark; return their results."""
        if not indexes:
            return []
        count, numbers = len(indexes), tuple(indexes)
        schema = f"{self.work.target.layout.reads.ddl()}, {NOTE} STRING"
        one_each = executor.spark.range(0, count, 1, count)
        rows = map_in_arrow(one_each, _Reading(self.work, numbers), schema)
        columns: list[Any] = [one.column() for one in self.parsed]
        parsed = rows.select("*", *columns)
        frame = map_in_arrow(parsed, _Writing(self.work, numbers), f"{DONE} STRING")
        return executor.collect(frame, count, progress)


class _Reading:
    """The first step, selected by the number in a task's only row."""

    def __init__(self, work: Work, indexes: Sequence[int]) -> None:
        self._work, self._indexes = work, indexes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.column(0).to_pylist():
                yield from self._work.read(self._indexes[row])


class _Writing:
    """The second step: the partition id of Spark selects the task."""

    def __init__(self, work: Work, indexes: Sequence[int]) -> None:
        self._work, self._indexes = work, indexes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield result_batch(self._work.write(self._indexes[context.partitionId()], batches))
