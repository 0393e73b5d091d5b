"""An audit: list files, scan them, compare them with run reports and source, make a report.

Files are distributed over Spark tasks by size. The driver receives one result per partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

from kafkawire.progress import Progress, silent
from kafkawire_spark.audit.continuity import FINDINGS_KEPT, Outcome
from kafkawire_spark.audit.coverage import Coverage
from kafkawire_spark.audit.judging import Boundaries, Judge, Judgement, Where, judge, load
from kafkawire_spark.audit.listing import AuditError, ListedTable, describe_files, scan
from kafkawire_spark.audit.scanning import (
    DDL,
    DEAD,
    ISLAND,
    MISSING,
    OTHERS,
    ScanFile,
    ScanFinding,
    as_batch,
    scan_file,
)
from kafkawire_spark.audit.verdict import AuditProblem, PartitionReport, TableReport
from kafkawire_spark.mapping import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.reading.files.locations import Place
    from kafkawire.reading.model.source import Source


VERDICT = "verdict"
TASKS_PER_CORE = 4
"""Tasks per core, so that the last task does not leave other cores idle for long."""
TASK_BYTES = 256 << 20
"""Maximum bytes of files per task with several files: progress is known when a task ends, and a
failed one repeats little."""

Through = Callable[[ListedTable], Iterable[tuple[Any, ...]]]
"""Scans the files of a table and compares their islands; rows as in scanning.DDL."""
Batches = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def through_spark(spark: SparkSession, progress: Progress = silent) -> Through:
    """Run as a Spark job. Raises AuditError if it fails."""

    def through(listed: ListedTable) -> Sequence[tuple[Any, ...]]:
        from kafkawire_spark.session import sentence
        from kafkawire_spark.watch import collect_with_progress

        done = spark.sparkContext.accumulator(0)
        what, count = f"files of {listed.report.table} read", len(listed.files)
        progress(what, 0, count)
        try:
            # a retried task counts its files again
            return collect_with_progress(
                _scan_and_judge(spark, listed, done.add),
                lambda group: progress(what, min(done.value, count), count),
            )
        except Exception as error:  # errors of Spark and py4j have no common class
            raise AuditError(f"the Spark job failed: {sentence(error)}") from error

    return through


def through_new_spark(opening: Callable[[], SparkSession], progress: Progress = silent) -> Through:
    """Run as a Spark job of a new session, which is opened once the files are listed and stopped
    afterwards: a table that cannot be audited is reported before that. Raises SourceError."""

    def through(listed: ListedTable) -> Iterable[tuple[Any, ...]]:
        spark = opening()
        try:
            return list(through_spark(spark, progress)(listed))
        finally:
            spark.stop()

    return through


def _scan_and_judge(
    spark: SparkSession, listed: ListedTable, done: Callable[[int], None]
) -> DataFrame:
    """Yield findings on files, and a judgement for each partition with rows."""
    cores = max(1, spark.sparkContext.defaultParallelism)
    size = sum(file.size_bytes for file in listed.files)
    tasks = spread(listed.files, max(cores * TASKS_PER_CORE, size // TASK_BYTES))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = map_in_arrow(numbers, _scanner(tasks, listed.places, done), DDL)
    partitions = len(listed.coverages or {}) or cores
    # Islands are shuffled, so that one task processes all islands of a partition.
    sorted_ = found.repartition(min(cores, partitions), "topic", "partition").sortWithinPartitions(
        "topic", "partition", "base", "end"
    )
    return map_in_arrow(sorted_, _judging(listed.coverages, listed.boundaries), DDL)


def spread(files: Sequence[ScanFile], tasks: int) -> list[list[ScanFile]]:
    """Distribute files over `tasks` lists of about the same size, none empty."""
    piles: list[list[ScanFile]] = [[] for _ in range(min(tasks, len(files)))]
    sizes = [(0, at) for at in range(len(piles))]
    heapify(sizes)
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.path)):
        size, least = sizes[0]
        piles[least].append(file)
        heapreplace(sizes, (size + file.size_bytes + 1, least))
    return [pile for pile in piles if pile]


def _scanner(
    tasks: Sequence[Sequence[ScanFile]], places: list[Place], done: Callable[[int], None]
) -> Batches:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for file in tasks[task]:
                    yield from scan_file(places[file.place], file)
                    done(1)

    return run


def _judging(coverages: Mapping[Where, Coverage] | None, boundaries: Boundaries) -> Batches:
    return lambda batches: judge_batches(batches, coverages, boundaries)


def judge_batches(
    batches: Iterator[pa.RecordBatch],
    coverages: Mapping[Where, Coverage] | None,
    boundaries: Boundaries,
) -> Iterator[pa.RecordBatch]:
    """Return a judgement for the sorted islands of each partition, and other findings unchanged."""
    import pyarrow.compute as pc

    passed: list[pa.RecordBatch] = []  # some per defective file

    def only_islands() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_island = pc.or_(pc.equal(batch["kind"], ISLAND), pc.equal(batch["kind"], DEAD))
            passed.append(batch.filter(pc.invert(is_island)))
            yield batch.filter(is_island)

    for topic, partition, text in judge(only_islands(), coverages, boundaries):
        yield as_batch([ScanFinding(VERDICT, topic, partition, -1, -1, text)])
    yield from (batch for batch in passed if batch.num_rows)


def audit(
    url: str, through: Through, source: Source | None = None, progress: Progress = silent
) -> tuple[TableReport, ListedTable]:
    """Audit the table at a path or URL, compared with a source if one is given. Raises
    SourceError."""
    begun = time.monotonic()
    listed = scan(url)
    if source is None:
        _judge(listed, through)
    else:
        from kafkawire.reading.catalog import open_catalog, remade
        from kafkawire_spark.audit.against import compare
        from kafkawire_spark.audit.counting import Counting

        catalog = open_catalog(replace(source, fail_on_data_loss=False))
        try:
            others = remade(catalog, listed.ids)
            counting = Counting(catalog, listed.coverages, others)
            listed.boundaries = counting.boundaries
            rows = _judge(listed, through)
            compare(listed.report, catalog, others, counting, rows, progress)
        finally:
            catalog.close()
    listed.report.seconds = time.monotonic() - begun
    return listed.report, listed


def _judge(listed: ListedTable, through: Through) -> dict[Where, list[int]]:
    """Add the results of the scan to the report; return the number of rows between the borders."""
    report = listed.report
    judgements: dict[Where, Judgement] = {}
    others: dict[str, int] = {}
    for kind, topic, partition, base, end, text in through(listed) if listed.files else ():
        if kind == VERDICT:
            judgements[topic, partition] = load(text)
        elif kind == OTHERS:
            others[text] = end
        else:
            _file_problem(report, ScanFinding(kind, topic, partition, base, end, text))
    if any(problem.kind == MISSING for problem in report.problems) and listed.merged():
        raise AuditError(f"{report.table} was compacted while it was read: audit it again")
    if others:
        rows = f"{describe_files(sorted(others))} with {sum(others.values()):,} rows"
        report.notes.append(f"{rows} of other programs, without an offset, in the adopted table")
    for where in sorted({*judgements, *(listed.coverages or {}), *listed.nexts}):
        judgement = judgements.get(where) or _rowless(where, listed)
        report.partitions.append(_partition(where, judgement, listed))
    return {where: judgement.outcome.counts for where, judgement in judgements.items()}


def _file_problem(report: TableReport, finding: ScanFinding) -> None:
    same = sum(problem.kind == finding.kind for problem in report.problems)
    if same < FINDINGS_KEPT:
        report.problems.append(AuditProblem(finding.kind, finding.text))


def _rowless(where: Where, listed: ListedTable) -> Judgement:
    """Return the outcome of a partition without rows."""
    empty = Judge(listed.coverages, listed.boundaries)
    empty.start_walk(where)
    return empty.finish()


def _partition(where: Where, judgement: Judgement, listed: ListedTable) -> PartitionReport:
    outcome: Outcome = judgement.outcome
    made = PartitionReport(
        *where,
        outcome.first,
        outcome.last,
        listed.nexts.get(where, -1),
        outcome.rows - judgement.dead,
        judgement.dead,
        outcome.gaps,
        outcome.found,
    )
    if listed.coverages is None:
        return made
    known = listed.coverages.get(where, Coverage())
    for base, end in known.twice:
        made.problems.append(AuditProblem("read twice", f"two runs have read [{base}, {end})"))
    for base, end in known.unbalanced:
        text = f"the account of the run that read [{base}, {end}) does not add up"
        made.problems.append(AuditProblem("account", text))
    if known.stretches and made.next >= 0 and made.next != known.end:
        text = f"the runs have read up to {known.end}, and the next one begins at {made.next}"
        made.problems.append(AuditProblem("next offset", text))
    return made
