"""A run of a job: plan, intent, tasks, commit. The next run continues after any interruption.

    1  clean up after the last committed run, if needed
    2  the intent of run n is written, if absent; its ranges and names are then fixed
    3  its tasks are executed; each writes a result file
    4  files of the run that are in no result are removed, if a task was retried
    5  the table commits run n, once
    6  the result files are removed, the hint is set to n

An interruption before 5 leaves an intent without a commit: the next run finishes it, and repeats no
task with a result. After 5 only 6 is repeated. Two concurrent drivers execute the same run; it is
committed once, and both report it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kafkawire.progress import Progress, phase, silent
from kafkawire.reading.catalog import SourceCatalog, ids_of, open_catalog, remade
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import DataLoss, PartitionRange, SourceError, Task, TaskPart
from kafkawire_spark.pipeline import planning
from kafkawire_spark.pipeline.compaction import compact, finish_compactions, remove_unfinished
from kafkawire_spark.pipeline.converting import JsonWork, converters, layout_of
from kafkawire_spark.pipeline.dead_letters import folder_of, open_dead_letters
from kafkawire_spark.pipeline.executors import Executor, OnSpark
from kafkawire_spark.pipeline.jobs.job import DEAD_LETTER, ICEBERG, Job
from kafkawire_spark.pipeline.jobs.layout import Layout, written_by
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import RUNS, Done, FileFacts, Run, RunRecord, TableState
from kafkawire_spark.pipeline.tables.ownership import check_owner, own
from kafkawire_spark.pipeline.tables.parquet import Encoding
from kafkawire_spark.pipeline.tables.port import Table, open_table
from kafkawire_spark.pipeline.tasks import Work
from kafkawire_spark.pipeline.values.converters import resolve
from kafkawire_spark.pipeline.writing import WriteTarget

PLANNING, COMMITTING = "planning", "committing"
TIDY_EVERY = 100
"""Runs between two expirations of a table's old states: commits must not become slower with each
one, and the search for old states takes as long as a run."""


@dataclass
class RunOutcome:
    """Result of a run. `record`: the run that is now in the table, None if there was nothing to do;
    `resumed`: it was begun before; `planned_less`: a limit left offsets for the next run; `lags`:
    by partition, existing offsets that are not in the table."""

    record: RunRecord | None = None
    resumed: bool = False
    planned_less: bool = False
    lags: dict[tuple[str, int], int] = field(default_factory=dict)


class Engine:
    """Runs of one job. `place_of` opens the location of a URL."""

    def __init__(
        self,
        job: Job,
        executor: Executor,
        *,
        progress: Progress = silent,
        place_of: Callable[[str], Place] = open_dead_letters,
        table: Table | None = None,
    ) -> None:
        self.job, self._executor, self._progress = job, executor, progress
        self.table = table or open_table(job)
        self.state = TableState(self.table.place)
        self._dead = place_of(job.dead_letters) if job.dead_letters else None
        self._catalog: SourceCatalog | None = None

    def run(self) -> RunOutcome:
        """Execute one run, a new one or an interrupted one. Raises SourceError."""
        begun = time.monotonic()
        with phase(self._progress, PLANNING):
            catalog, last, run, resumed, less = self._next()
        if run is None:
            return RunOutcome(None, lags=self._lags(last))
        record = self._finish(catalog, run, resumed, begun)
        if run.number % TIDY_EVERY == 0:
            self.table.tidy()
        return RunOutcome(record, resumed, less, self._lags(run.number))

    def _next(self) -> tuple[SourceCatalog, int, Run | None, bool, bool]:
        """Return the catalog, the last run, the next one (None if there is nothing new), whether it
        was begun before, and whether a limit left offsets out."""
        check_owner(self.table, self.job)
        last = self.clean_up()
        catalog = self._open_current_catalog()
        run = self.state.run(last + 1)
        if run is not None:
            return catalog, last, run, True, False
        planned, less = self._plan(catalog, last)
        if planned is None:
            return catalog, last, None, False, False
        self._own(planned)
        run = self.state.intend(planned)
        return catalog, last, run, run != planned, less

    def close(self) -> None:
        """Close the connections to brokers."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _open_current_catalog(self) -> SourceCatalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.job.reading.source)
        else:
            self._catalog = self._catalog.refresh_catalog()
        return self._catalog

    def clean_up(self) -> int:
        """Clean up after committed runs; return the number of the last run, 0 if there is none."""
        last, hint = self.table.read_last_run(), self.state.hint()
        for number in range(hint.run + 1, last + 1):
            self._settle_run(number)
        if last > hint.run:
            self.state.put_hint(self.state.hint()._replace(run=last))
        finish_compactions(self.table, self.state, self._executor, self.encoding())
        return last

    def compact(self) -> tuple[int, int]:
        """Merge small files; return how many became how many. Expires states older than the table's
        history. Raises SourceError."""
        check_owner(self.table, self.job)
        self.clean_up()
        target = self.job.table.file_bytes
        merged = compact(
            self.table, self.state, self._executor, self.encoding(), target, self._progress
        )
        self.table.tidy()
        return merged

    def encoding(self) -> Encoding:
        spec = self.job.table
        return Encoding(spec.compression, plain=spec.format == ICEBERG)

    def _settle_run(self, number: int) -> None:
        run = self.state.run(number)
        if run is None:
            raise JobError(
                f"the table has run {number} of the job {self.job.name}, of which "
                f"{self.table.place.url} knows nothing: its folder _kafkawire/ was deleted"
            )
        if not self.state.has_record(number):
            done = self.state.all_done(RUNS, number)
            self.state.put_record(self._record(run, list(done.values()), 0.0))
        self.state.forget_done(RUNS, number, len(run.tasks))

    def _plan(self, catalog: SourceCatalog, last: int) -> tuple[Run | None, bool]:
        """Plan the next run; None if there is nothing new. Also return whether a limit left offsets
        out."""
        job, before = self.job, self.state.read_record(last) if last else None
        known, ids = (before.ends, before.ids) if before else (None, {})
        most = job.running.max_offsets
        found, ends, less = planning.ranges(catalog, job.reading, known, most, remade(catalog, ids))
        if not planning.is_worth_a_run(found, job.reading, known):
            return None, False
        size = min(job.running.task_bytes, job.table.file_bytes)
        parts = [catalog.part(one) for one in found]
        tasks = planning.tasks_of(parts, size, self._executor.parallelism)
        topics = sorted({one.topic for one in found})
        value = resolve(job.value, topics).without_login()
        key = resolve(job.key, topics, key=True).without_login()
        ids = {**ids_of(catalog, ends), **ids}
        return Run(job.name, last + 1, tuple(tasks), ends, value, key, ids), less

    def _own(self, run: Run) -> Layout:
        """Check the table's columns against the run's; create the table if there is none."""
        layout = layout_of(self.job, *converters(run, self.job))
        own(self.table, self.job, layout)
        self.table.prepare(layout.table, layout.folders)
        return replace(layout, files=self.table.file_schema(layout.files))

    def _finish(self, catalog: SourceCatalog, run: Run, resumed: bool, begun: float) -> RunRecord:
        if run.job != self.job.name:
            raise JobError(f"run {run.number} of this table was begun by the job {run.job}")
        layout = self._own(run)
        done = self.state.all_done(RUNS, run.number) if resumed else {}
        pending = [index for index in range(len(run.tasks)) if index not in done]
        try:
            done |= self._do(catalog, run, layout, pending)
            if len(done) < len(run.tasks) and not self._is_committed(run):
                raise AssertionError(f"run {run.number}: {len(done)} of {len(run.tasks)} tasks")
        except Exception as problem:
            if not self._is_committed(run):
                if resumed and isinstance(problem, SourceError):
                    self._say_if_begun_otherwise(run, problem)
                raise
        if self._is_committed(run):  # by another driver meanwhile
            self._settle_run(run.number)
        else:
            with phase(self._progress, COMMITTING):
                self._commit(run, list(done.values()), resumed, begun)
        self.state.put_hint(self.state.hint()._replace(run=run.number))
        record = self.state.read_record(run.number)
        assert record is not None
        return record

    def _say_if_begun_otherwise(self, run: Run, problem: SourceError) -> None:
        """Raise JobError if the job's formats were changed since this run began, which has no
        effect on it."""
        topics = sorted({part.topic for task in run.tasks for part in task})
        for name, now, begun in (
            ("value", self.job.value, run.value),
            ("key", self.job.key, run.key),
        ):
            try:
                if resolve(now, topics, key=name == "key").without_login() == begun:
                    continue
            except SourceError:
                pass
            hint = f"; nothing is in {self.job.table.path} yet: remove that folder and start again"
            raise JobError(
                f"{problem}; run {run.number} was begun with another [{name}], and ends with "
                f"it{hint if run.number == 1 else ''}"
            ) from problem

    def _do(
        self, catalog: SourceCatalog, run: Run, layout: Layout, pending: list[int]
    ) -> dict[int, Done]:
        read = {part.topic for index in pending for part in run.tasks[index]}
        if others := read & remade(catalog, run.ids):  # a broker would return their offsets
            raise DataLoss(
                f"the topic {min(others)} was deleted and created again since the run began, "
                "so its offsets are new: use another table"
            )
        tasks = {index: self._task(catalog, run.tasks[index]) for index in pending}
        spec = self.job.table
        target = WriteTarget(
            run.number, self.table.place, self._dead, self.job.name, layout, self.encoding(),
            self.table.hides,
        )  # fmt: skip
        key, value = converters(run, self.job)
        keep = self.job.running.on_damage == DEAD_LETTER
        source = self.job.reading.source
        work = Work(target, source, tuple(catalog.places), tasks, key, value, keep)
        what = f"tasks for {spec.path}"
        offset = len(run.tasks) - len(pending)
        self._progress(what, offset, len(run.tasks))

        def task_progress(count: int) -> None:
            self._progress(what, offset + count, len(run.tasks))

        if isinstance(self._executor, OnSpark) and (json := JsonWork.from_work(work)):
            found = json.run(self._executor, pending, task_progress)
        else:
            found = self._executor.run(work, pending, task_progress)
        return {one.task: one for one in found}

    def _task(self, catalog: SourceCatalog, ranges: Sequence[PartitionRange]) -> Task:
        """Return the task with the current files of its ranges. Raises DataLoss if a topic was
        deleted, unless that is allowed."""
        parts = []
        for wanted in ranges:
            if wanted.partition < catalog.topics.get(wanted.topic, 0):
                parts.append(catalog.part(wanted))
                continue
            if self.job.reading.source.fail_on_data_loss:
                raise DataLoss(
                    f"{wanted.topic} is gone, of which a run that was begun is to read offsets "
                    f"[{wanted.base}, {wanted.end}) of partition {wanted.partition}; "
                    "fail_on_data_loss = false goes on without them"
                )
            parts.append(TaskPart(wanted))
        return Task(tuple(parts))

    def _commit(self, run: Run, done: list[Done], resumed: bool, begun: float) -> None:
        record = self._record(run, done, time.monotonic() - begun)
        if resumed or any(one.retried for one in done):
            self._remove_leftovers(record)
        self.table.commit(record)
        if self.table.hides:
            self.state.put_record(record)
        self._settle_run(run.number)

    def _record(self, run: Run, done: list[Done], seconds: float) -> RunRecord:
        record = RunRecord.from_results(run, done, int(time.time() * 1000), round(seconds, 3))
        reported = [share.range for share in record.shares]
        if reported != [part for task in run.tasks for part in task]:
            raise AssertionError(f"run {run.number} read other ranges than it was to: {reported}")
        return replace(record, dead_letters=self._dead.url if self._dead else "")

    def _remove_leftovers(self, record: RunRecord) -> None:
        """Remove files of the run that are not in its record: of tasks that did not end, while
        their input changed."""
        _remove(self.table.place, "", record.run, record.files)
        if self._dead is not None:
            _remove(self._dead, folder_of(self.job.name), record.run, record.dead)
        remove_unfinished(self.table.place)

    def _is_committed(self, run: Run) -> bool:
        return self.table.read_last_run() >= run.number

    def _lags(self, last: int) -> dict[tuple[str, int], int]:
        record = self.state.read_record(last) if last else None
        catalog = self._open_current_catalog()
        return {
            (topic, partition): max(0, catalog.bounds(topic, partition).end - offset)
            for topic, parts in (record.ends if record else {}).items()
            for partition, offset in parts.items()
            if partition < catalog.topics.get(topic, 0)
        }


def _remove(place: Place, prefix: str, run: int, named: tuple[FileFacts, ...]) -> None:
    kept = {file.path for file in named}
    extra = [key for key in place.list(prefix) if written_by(key) == ("r", run) and key not in kept]
    if extra:
        place.delete(extra)
