"""An audit: files listed, scanned in Spark's tasks, islands shuffled and judged, a report.

What crosses to the driver is one judgement for each partition and what is wrong with files; offsets
never do. Files are spread over tasks by their bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.spark.audit.continuity import FINDINGS_KEPT, Outcome
from kafkawire.spark.audit.coverage import Coverage
from kafkawire.spark.audit.judging import Judge, Judgement, Where, judge, load
from kafkawire.spark.audit.listing import AuditError, Listed, look
from kafkawire.spark.audit.scanning import (
    DDL,
    DEAD,
    ISLAND,
    MISSING,
    Finding,
    ScanFile,
    as_batch,
    scan,
    schema,
)
from kafkawire.spark.audit.verdict import PartitionReport, Problem, TableReport
from kafkawire.spark.mapping import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.spark.places import Place

VERDICT = "verdict"
TASKS_PER_CORE = 4
"""So that the last of them does not leave the other cores idle for long."""


Through = Callable[[Listed], Iterable[tuple[Any, ...]]]
"""Scans and judges the files of a table: rows as scanning.DDL has them."""


def audit(url: str, through: Through) -> tuple[TableReport, Listed]:
    """The table at a path or URL; the source is not asked. SourceError."""
    begun = time.monotonic()
    listed = look(url)
    report = listed.report
    judgements: dict[Where, Judgement] = {}
    for kind, topic, partition, base, end, text in through(listed) if listed.files else ():
        if kind == VERDICT:
            judgements[topic, partition] = load(text)
        else:
            _file_problem(report, Finding(kind, topic, partition, base, end, text))
    if any(problem.kind == MISSING for problem in report.problems) and listed.merged():
        raise AuditError(f"{report.table} was compacted while it was read: audit it again")
    for where in sorted({*judgements, *(listed.coverages or {}), *listed.nexts}):
        judgement = judgements.get(where) or _rowless(where, listed)
        report.partitions.append(_partition(where, judgement, listed))
    report.seconds = time.monotonic() - begun
    return report, listed


def through_spark(spark: SparkSession) -> Through:
    """By a Spark job. AuditError where that fails."""

    def through(listed: Listed) -> Sequence[tuple[Any, ...]]:
        from kafkawire.spark.session import sentence

        try:
            return _judged(spark, listed).collect()
        except Exception as error:  # Spark's and py4j's have no common class
            raise AuditError(f"the Spark job failed: {sentence(error)}") from error

    return through


def in_process(listed: Listed) -> Iterator[Finding]:
    """Without Spark, all islands in memory: for tables of which that is known to be small."""
    import pyarrow as pa

    found = pa.Table.from_batches(scan(listed.places, listed.files), schema())
    order = [(name, "ascending") for name in ("topic", "partition", "base", "end")]
    for batch in judged(iter(found.sort_by(order).to_batches()), listed.coverages):
        for row in batch.to_pylist():
            yield Finding(**row)


def _judged(spark: SparkSession, listed: Listed) -> DataFrame:
    """Findings on files, and a verdict for each partition that has rows."""
    cores = max(1, spark.sparkContext.defaultParallelism)
    tasks = spread(listed.files, cores * TASKS_PER_CORE)
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = map_in_arrow(numbers, _scanner(tasks, listed.places), DDL)
    partitions = len(listed.coverages or {}) or cores
    sorted_ = found.repartition(min(cores, partitions), "topic", "partition").sortWithinPartitions(
        "topic", "partition", "base", "end"
    )
    return map_in_arrow(sorted_, _judging(listed.coverages), DDL)


def spread(files: Sequence[ScanFile], tasks: int) -> list[list[ScanFile]]:
    """Files as `tasks` lists of about the same bytes, none empty."""
    piles: list[list[ScanFile]] = [[] for _ in range(min(tasks, len(files)))]
    sizes = [0] * len(piles)
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.path)):
        least = sizes.index(min(sizes))
        piles[least].append(file)
        sizes[least] += file.size_bytes + 1
    return [pile for pile in piles if pile]


def _scanner(
    tasks: Sequence[Sequence[ScanFile]], places: list[Place]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from scan(places, tasks[task])

    return run


def _judging(
    coverages: Mapping[Where, Coverage] | None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return lambda batches: judged(batches, coverages)


def judged(
    batches: Iterator[pa.RecordBatch], coverages: Mapping[Where, Coverage] | None
) -> Iterator[pa.RecordBatch]:
    """Sorted findings: of islands a verdict for each partition, the others as they are."""
    import pyarrow.compute as pc

    passed: list[pa.RecordBatch] = []  # some for each file that is not as it should be

    def only_islands() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_island = pc.or_(pc.equal(batch["kind"], ISLAND), pc.equal(batch["kind"], DEAD))
            passed.append(batch.filter(pc.invert(is_island)))
            yield batch.filter(is_island)

    verdicts = judge(only_islands(), coverages)
    for topic, partition, text in verdicts:
        yield as_batch([Finding(VERDICT, topic, partition, -1, -1, text)])
    yield from (batch for batch in passed if batch.num_rows)


def _file_problem(report: TableReport, finding: Finding) -> None:
    same = sum(problem.kind == finding.kind for problem in report.problems)
    if same < FINDINGS_KEPT:
        report.problems.append(Problem(finding.kind, finding.text))


def _rowless(where: Where, listed: Listed) -> Judgement:
    """Of a partition that gave no row."""
    empty = Judge(listed.coverages)
    empty.begin(where)
    return empty.finish()


def _partition(where: Where, judgement: Judgement, listed: Listed) -> PartitionReport:
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
        made.problems.append(Problem("read twice", f"two runs have read [{base}, {end})"))
    for base, end in known.unbalanced:
        text = f"the account of the run that read [{base}, {end}) does not add up"
        made.problems.append(Problem("account", text))
    if known.stretches and made.next >= 0 and made.next != known.end:
        text = f"the runs have read up to {known.end}, and the next one begins at {made.next}"
        made.problems.append(Problem("next offset", text))
    return made
