"""Scan the files of an audit in Spark tasks.

Files are distributed over tasks by size. Their islands are shuffled, so that one task processes all
islands of a partition. The driver receives one result per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

from kafkawire.progress import Progress, silent
from kafkawire_spark.audit.coverage import Coverage
from kafkawire_spark.audit.judging import Boundaries, Where, judge
from kafkawire_spark.audit.listing import AuditError, ListedTable
from kafkawire_spark.audit.scanning import (
    DDL,
    DEAD,
    ISLAND,
    ScanFile,
    ScanFinding,
    as_batch,
    scan_file,
)
from kafkawire_spark.mapping import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.reading.files.locations import Place

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
        from kafkawire_spark.watch import watched

        done = spark.sparkContext.accumulator(0)
        what, count = f"files of {listed.report.table} read", len(listed.files)
        progress(what, 0, count)
        try:
            # a retried task counts its files again
            return watched(
                _judged(spark, listed, done.add),
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


def _judged(spark: SparkSession, listed: ListedTable, done: Callable[[int], None]) -> DataFrame:
    """Yield findings on files, and a judgement for each partition with rows."""
    cores = max(1, spark.sparkContext.defaultParallelism)
    size = sum(file.size_bytes for file in listed.files)
    tasks = spread(listed.files, max(cores * TASKS_PER_CORE, size // TASK_BYTES))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = map_in_arrow(numbers, _scanner(tasks, listed.places, done), DDL)
    partitions = len(listed.coverages or {}) or cores
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
    return lambda batches: judged(batches, coverages, boundaries)


def judged(
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
