"""Offset continuity of a whole cluster: whether every offset exists exactly once, and if not, why.

Each task reads its ranges like the data source, checks order and number of records, and returns the
reader's account of offsets without a row. Spark sums that up by partition. Losses and damage are
reported rather than raised (the source is opened without failOnDataLoss).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import (
    DAMAGED,
    LOST,
    REASONS,
    Account,
    DamagedData,
    PartitionRange,
    Source,
    Task,
    TaskPart,
)
from kafkawire_spark.measures import CELLS, Strip, several
from kafkawire_spark.reports.plots import continuity as plot_continuity
from kafkawire_spark.reports.report import Report, collect, rows_of
from kafkawire_spark.reports.scope import ReportScope, Rows, Work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kafkawire.reading.files.locations import Place

UNEXPLAINED = "unexplained"
DDL = (
    "topic STRING, partition INT, base BIGINT, end BIGINT, first BIGINT, last BIGINT, "
    "records BIGINT, duplicates BIGINT, control BIGINT, aborted BIGINT, compacted BIGINT, "
    "lost BIGINT, damaged BIGINT, unexplained BIGINT, "
    "cells ARRAY<STRUCT<cell: INT, records: BIGINT>>, "
    "gaps ARRAY<STRUCT<base: BIGINT, end: BIGINT, reason: STRING>>"
)
Row = dict[str, Any]

_PARTITIONS = """
SELECT topic, partition, min(base) AS start, max(end) AS end, min(first) AS first,
       max(last) AS last, sum(records) AS records, sum(duplicates) AS duplicates,
       sum(control) AS control, sum(aborted) AS aborted, sum(compacted) AS compacted,
       sum(lost) AS lost, sum(damaged) AS damaged,
       sum(unexplained) + (max(end) - min(base) - sum(end - base)) AS unexplained
FROM {parts} GROUP BY topic, partition ORDER BY topic, partition
"""
_CELLS = """
SELECT topic, partition, cell.cell, sum(cell.records) AS records
FROM (SELECT topic, partition, explode(cells) AS cell FROM {parts}) GROUP BY ALL
"""
# Ranges with the same reason are merged across the boundaries of tasks.
_GAPS = """
WITH gaps AS (SELECT topic, partition, gap.* FROM
                (SELECT topic, partition, explode(gaps) AS gap FROM {parts})),
     begun AS (SELECT *, CASE WHEN base = lag(end) OVER w THEN 0 ELSE 1 END AS begins
               FROM gaps WINDOW w AS (PARTITION BY topic, partition, reason ORDER BY base)),
     numbered AS (SELECT *, sum(begins) OVER (PARTITION BY topic, partition, reason
                                              ORDER BY base) AS run FROM begun)
SELECT topic, partition, min(base) AS base, max(end) AS end, max(end) - min(base) AS offsets, reason
FROM numbered GROUP BY topic, partition, reason, run
ORDER BY reason IN ('lost', 'damaged', 'unexplained') DESC, offsets DESC, topic, partition, base
"""


def run(spark: SparkSession, scope: ReportScope) -> Report:
    """Make the report; `problems` counts offsets that are lost, damaged, unexplained or
    duplicates."""
    report = Report("continuity")
    bounds = {(topic, partition): (base, end) for topic, partition, base, end in scope.ranges}
    tasks = scope.tasks(spark)
    parts = scope.run_tasks(spark, tasks, checker(bounds), DDL).persist()
    try:
        sums = spark.sql(_PARTITIONS, parts=parts)
        found = rows_of(
            scope.run_with_progress(spark, "ranges checked", tasks, lambda: collect(sums))
        )
        cells = _by_cell(rows_of(spark.sql(_CELLS, parts=parts).toArrow()))
        gaps = collect(spark.sql(_GAPS, parts=parts))
    finally:
        parts.unpersist()
    table = with_empty(found, scope.ranges)
    shown = ("topic", "partition", "start", "end", "records", *REASONS, "unexplained", "duplicates")
    report.add("continuity", "Partitions", table, *shown)
    gaps = report.add("continuity-gaps", "Gaps", gaps)
    rows = rows_of(table)
    report.problems = sum(plot_continuity.wrong(row) for row in rows)
    report.sentences = [*_sentences(rows), *report.sentences]
    subtitle = f"{scope.words()}, {several(sum(row['records'] for row in rows))}"
    report.plot = plot_continuity.draw(rows, cells, _bad(gaps), subtitle)
    return report


def checker(bounds: Mapping[tuple[str, int], tuple[int, int]]) -> Work:
    """Return the work of each task: a row for each of its parts."""

    def check(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
        for part in task.parts:
            start, end = bounds[part.range.topic, part.range.partition]
            yield [check_part(source, places, part, start, end)]

    return check


def check_part(
    source: Source, places: Sequence[Place], part: TaskPart, start: int, end: int
) -> dict[str, Any]:
    """Read a range to its end; `start`, `end`: of its partition."""
    from kafkawire.reading.read_task import read_task

    strip = Strip(part.range, start, end)
    accounts: list[Account] = []
    batches = read_task(
        source,
        places,
        Task((part,)),
        Selection(("offset",)),
        on_damage=_on_damage,
        accounts=accounts,
    )
    for batch in batches:
        strip.add(batch.column(0).to_numpy(zero_copy_only=False))
    (account,) = accounts
    return compare_with_account(strip, account)


def _on_damage(error: DamagedData, data: bytes) -> None:
    """Record damage in the account; reading continues after it."""


def compare_with_account(strip: Strip, account: Account) -> dict[str, Any]:
    """Return the row of a range: the records found, compared with the reader's account."""
    span = account.range.end - account.range.base
    explained = sum(account.counts.values())
    return {
        **account.range._asdict(),
        "first": strip.first if strip.records else None,
        "last": strip.last if strip.records else None,
        "records": strip.records,
        "duplicates": strip.duplicates + strip.outside,
        **{reason: account.counts.get(reason, 0) for reason in REASONS},
        "unexplained": abs(span - strip.records - explained),
        "cells": [
            {"cell": int(cell), "records": int(strip.cells[cell])}
            for cell in strip.cells.nonzero()[0]
        ],
        "gaps": [gap._asdict() for gap in account.gaps],
    }


def with_empty(found: Sequence[Row], ranges: Sequence[PartitionRange]) -> pa.Table:
    """Return the table: partitions with problems first, then the others, then empty ones."""
    import pyarrow as pa

    known = {(row["topic"], row["partition"]): row for row in found}
    rows = []
    for topic, partition, base, end in ranges:
        empty: Row = dict.fromkeys(("records", "duplicates", *REASONS, UNEXPLAINED), 0)
        place: Row = {"topic": topic, "partition": partition, "start": base, "end": end}
        rows.append(known.get((topic, partition), {**place, "first": None, "last": None, **empty}))
    rows.sort(key=lambda row: (not plot_continuity.wrong(row), row["end"] == row["start"]))
    names = ("start", "end", "first", "last", "records", "duplicates", *REASONS, UNEXPLAINED)
    fields = [("topic", pa.string()), ("partition", pa.int32())]
    return pa.Table.from_pylist(rows, pa.schema([*fields, *((name, pa.int64()) for name in names)]))


def _by_cell(rows: list[Row]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        cells = found.setdefault((row["topic"], row["partition"]), [0] * CELLS)
        cells[row["cell"]] = row["records"]
    return found


def _bad(gaps: pa.Table) -> dict[tuple[str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows_of(gaps):
        if row["reason"] in (LOST, DAMAGED):
            place = row["topic"], row["partition"]
            found.setdefault(place, []).append((row["base"], row["end"]))
    return found


def _sentences(rows: Sequence[Row]) -> list[str]:
    sums = {name: sum(row[name] for row in rows) for name in ("records", "duplicates", *REASONS,
                                                              UNEXPLAINED)}  # fmt: skip
    explained = [f"{sums[name]:,} {name}" for name in REASONS[:3] if sums[name]]
    offsets = sum(row["end"] - row["start"] for row in rows)
    found = f"{offsets:,} offsets of {len(rows):,} partitions: {sums['records']:,} have a record"
    sentences = [", ".join([found, *explained]) + "."]
    amiss = [row for row in rows if plot_continuity.wrong(row)]
    for row in amiss[:10]:
        what = [f"{row[name]:,} {name}" for name in plot_continuity.WRONG_COUNTS if row[name]]
        sentences.append(f"{row['topic']}-{row['partition']}: {', '.join(what)}.")
    if len(amiss) > 10:
        sentences.append(f"{len(amiss) - 10:,} more partitions have offsets that are not there.")
    if not amiss:
        sentences.append("Every offset is there once, or its absence is explained.")
    return sentences
