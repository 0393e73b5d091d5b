"""Executors of tasks: Spark on its cluster.

An executor gets picklable work and the numbers of its tasks, and returns the result of each. An
error in a Spark task is raised here with its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from kafkawire.reading.model.source import TaskFailed
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.pipeline.jobs.state import Done, dump, load_done, load_json
from kafkawire_spark.session import java_cause, sentence
from kafkawire_spark.watch import collect_with_progress, count_completed_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TaskProgress = Callable[[int], None]
"""Called periodically with the number of finished tasks."""

DONE = "done"
_SCHEMA = pa.schema([(DONE, pa.string())])


class Tasks(Protocol):
    """Work for an executor; kafkawire_spark.pipeline.tasks.Work, or merging."""

    def do(self, index: int) -> Done | None:
        """Execute task `index`; None if that is not needed any more."""


class Executor(Protocol):
    """Executes tasks."""

    @property
    def parallelism(self) -> int:
        """Return the number of concurrent tasks."""

    def run(self, tasks: Tasks, indexes: Sequence[int], progress: TaskProgress) -> list[Done]:
        """Execute these tasks; return their results, without those that were not needed. Raises
        SourceError."""


class OnSpark:
    """Executes tasks as a Spark job with one Spark task each, without a shuffle."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    def parallelism(self) -> int:
        return max(1, self.spark.sparkContext.defaultParallelism)

    def run(self, tasks: Tasks, indexes: Sequence[int], progress: TaskProgress) -> list[Done]:
        if not indexes:
            return []
        count = len(indexes)
        rows = self.spark.range(0, count, 1, count)
        frame = map_in_arrow(rows, _Whole(tasks, tuple(indexes)), f"{DONE} STRING")
        return self.collect(frame, count, progress)

    def collect(self, frame: DataFrame, count: int, progress: TaskProgress) -> list[Done]:
        """Return the column `done` of a job of `count` tasks; Ctrl-C cancels the job."""
        try:
            context = self.spark.sparkContext
            rows = collect_with_progress(
                frame, lambda group: progress(min(count, count_completed_tasks(context, group)))
            )
        except Exception as problem:
            raise translate_error(problem) from problem
        texts: list[str] = [row[0] for row in rows]
        return [load_done(load_json(text.encode(), "a task's result")) for text in texts if text]


class _Whole:
    """One Spark task executes one of our tasks, by the number in its only row."""

    def __init__(self, tasks: Tasks, indexes: Sequence[int]) -> None:
        self._tasks, self._indexes = tasks, indexes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.column(0).to_pylist():
                yield result_batch(self._tasks.do(self._indexes[row]))


def result_batch(done: Done | None) -> pa.RecordBatch:
    """One row for the driver."""
    text = dump(done).decode() if done is not None else ""
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], schema=_SCHEMA)


def translate_error(problem: BaseException) -> BaseException:
    """Return the message of an error in a Spark task: kafkawire's own sentence if it has one, else
    its cause."""
    if not isinstance(problem, Exception):
        return problem
    text = sentence(problem)
    if text.startswith("An error occurred while calling"):  # py4j's first line has no details
        text = f"Spark's job failed: {java_cause(problem) or 'it does not say why'}"
    return TaskFailed(text)
