"""Late data: how much older records are than the newest one before them in their partition.

Tasks count the records of their ranges by class of lateness (measures.LATE_EDGES_MS), as if nothing
preceded the range, and return its newest time. The newest time before each range is known only
then; records of the range that are older than it, few in most topics, are read again, and the
difference is added.

The manifest has the time each segment was written (uploaded; in a data folder: cut). Its records
had arrived by then, so their age at that time is counted as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.reading.model.columns import OFFSET, TIMESTAMP, TIMESTAMP_TYPE
from kafkawire.reading.model.source import PartitionRange, Source, Task, TaskPart
from kafkawire_spark.measures import (
    LATE_EDGES_MS,
    SKEW_MS,
    duration,
    lateness_labels,
    number,
    quantile_class,
    several,
)
from kafkawire_spark.reports.plots import late as plot_late
from kafkawire_spark.reports.report import Report, rows_of, table_of
from kafkawire_spark.reports.runs import milliseconds, runs
from kafkawire_spark.reports.scope import ReportScope, Rows, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkawire.reading.files.locations import Place


CLASSES = len(LATE_EDGES_MS) + 1
NEVER = -1
"""The timestamp of a record that has none, and the newest time before the first record."""
SOON = 16_384
"""Offsets that are read again at first; the whole range if that is not enough."""
DDL = (
    "topic STRING, partition INT, base BIGINT, end BIGINT, first BIGINT, newest BIGINT, "
    "latest BIGINT, timeless BIGINT, future BIGINT, append_time BIGINT, counts ARRAY<BIGINT>, "
    "arrived ARRAY<BIGINT>"
)
MORE_DDL = "topic STRING, partition INT, latest BIGINT, counts ARRAY<BIGINT>"
Row = dict[str, Any]
Uploads = Mapping[tuple[str, int], Sequence[tuple[int, int]]]
"""For a partition: (end offset, time of its upload in ms, -1 if unknown), ascending."""
_COLUMNS = (OFFSET, TIMESTAMP, TIMESTAMP_TYPE)


class Lateness:
    """Counts of one range, one batch at a time. `newest`: the largest timestamp before the range;
    `until`: a later one (ms) is in the future.

    `counts` and `arrived` by class; `latest`: the largest lateness in ms. Records without a
    timestamp, or with one in the future, are not in any class.
    """

    def __init__(self, newest: int, until: int, uploads: Sequence[tuple[int, int]] = ()) -> None:
        self.first, self.newest, self.until = NEVER, newest, until
        self.counts = np.zeros(CLASSES, np.int64)
        self.arrived = np.zeros(CLASSES, np.int64)
        self.latest = self.timeless = self.future = self.append_time = 0
        self._ends = np.array([end for end, _ in uploads], np.int64)
        self._times = np.array([at for _, at in uploads] + [NEVER], np.int64)

    def add(self, offsets: Any, stamps: Any, kinds: Any) -> None:
        """Add records: offsets, timestamps (ms), timestamp types (1: the broker's)."""
        # Records of the future are counted separately: all following ones would be late by years.
        counted = (stamps > NEVER) & (stamps <= self.until)
        if not counted.all():
            self.timeless += int((stamps <= NEVER).sum())
            self.future += int((stamps > self.until).sum())
            offsets, stamps, kinds = offsets[counted], stamps[counted], kinds[counted]
        if not len(stamps):
            return
        if self.first == NEVER:
            self.first = int(stamps[0])
        running = np.maximum(np.maximum.accumulate(stamps), self.newest)
        self.newest = int(running[-1])
        lateness = running - stamps
        lateness = lateness[lateness > 0]
        self.counts += by_class(lateness)
        self.counts[0] += len(stamps) - len(lateness)
        self.latest = max(self.latest, int(lateness.max(initial=0)))
        self.append_time += int((kinds == 1).sum())
        if len(self._ends):
            at = self._times[np.searchsorted(self._ends, offsets, side="right")]
            there = at > NEVER
            self.arrived += by_class(np.maximum(at[there] - stamps[there], 0))

    def row(self, range_: PartitionRange) -> Row:
        """Return the row (DDL)."""
        return {
            **range_._asdict(), "first": self.first, "newest": self.newest, "latest": self.latest,
            "timeless": self.timeless, "future": self.future, "append_time": self.append_time,
            "counts": self.counts.tolist(), "arrived": self.arrived.tolist(),
        }  # fmt: skip


def by_class(ms: Any) -> Any:
    """Count records in each class of lateness."""
    return np.bincount(np.searchsorted(LATE_EDGES_MS, ms, side="left"), minlength=CLASSES)


def run(spark: SparkSession, scope: ReportScope) -> Report:
    """Make the report; it never has problems of offsets."""
    report = Report("late")
    until = scope.now_ms + SKEW_MS
    uploads = uploads_of(scope)
    tasks = scope.tasks(spark)
    counted = scope.run_tasks(spark, tasks, counter(until, uploads), DDL)
    found = rows_of(scope.run_with_progress(spark, "ranges read", tasks, counted.toArrow))
    again = to_read_again(found)
    if again:
        parts = scope.catalog.parts(sorted(again))
        many = min(len(parts), 4 * spark.sparkContext.defaultParallelism)
        tasks = [Task(tuple(parts[at::many])) for at in range(many)]
        more = scope.run_tasks(spark, tasks, corrector(again, until), MORE_DDL)
        found += rows_of(
            scope.run_with_progress(spark, "beginnings read again", tasks, more.toArrow)
        )
    rows = by_partition(found)
    fill(report, rows, known=bool(uploads))
    if any(row["records"] for row in rows):
        arrived = np.sum([row["arrived"] for row in rows], axis=0).tolist() if uploads else None
        subtitle = f"{scope.words()}, {several(sum(row['records'] for row in rows))}"
        out = sum(row["future"] + row["timeless"] for row in rows)
        subtitle += f"; left out {number(out)} of the future or without a time" if out else ""
        report.plot = plot_late.draw(rows, arrived if arrived and any(arrived) else None, subtitle)
    return report


def uploads_of(scope: ReportScope) -> Uploads:
    """Return when the records of each partition were uploaded, by offset, from its manifest;
    unknown for rewritten segments."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for part in scope.parts:
        for piece in part.pieces:
            at = scope.catalog.created_ms(piece)
            found.setdefault((part.range.topic, part.range.partition), []).append((piece.end, at))
    return {place: rows for place, rows in found.items() if any(at >= 0 for _, at in rows)}


def counter(until: int, uploads: Uploads) -> Work:
    """Return the work of each task: a row (DDL) for each of its ranges, as if nothing preceded
    it."""

    def count(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
        ranges = spans_of(task)
        found = {place: Lateness(NEVER, until, uploads.get(place, ())) for place in ranges}
        for run in runs(source, places, task, _COLUMNS):
            found[run.topic, run.partition].add(*_numbers(run.columns))
        yield [found[place].row(range_) for place, range_ in ranges.items()]

    return count


def spans_of(task: Task) -> dict[tuple[str, int], PartitionRange]:
    """Return the range of each partition in a task; its parts are adjacent."""
    spans: dict[tuple[str, int], PartitionRange] = {}
    for part in task.parts:
        known = spans.setdefault(part.range[:2], part.range)
        spans[part.range[:2]] = known._replace(end=part.range.end)
    return spans


def to_read_again(found: Sequence[Mapping[str, Any]]) -> dict[PartitionRange, int]:
    """Return ranges whose first record is older than the newest of all before them, and that newest
    time."""
    again = {}
    order = sorted(found, key=lambda row: (row["topic"], row["partition"], row["base"]))
    for _, rows in groupby(order, key=lambda row: (row["topic"], row["partition"])):
        highest = NEVER
        for row in rows:
            if NEVER < row["first"] < highest:
                again[PartitionRange(*(row[name] for name in PartitionRange._fields))] = highest
            highest = max(highest, row["newest"])
    return again


def corrector(newest: Mapping[PartitionRange, int], until: int) -> Work:
    """Return the work of the second pass: corrections of the counts of each range, a row of
    MORE_DDL."""

    def correct(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
        for part in task.parts:
            before = newest[part.range]
            yield [correction(source, places, part, before, until)]

    return correct


def correction(
    source: Source, places: Sequence[Place], part: TaskPart, before: int, until: int
) -> Row:
    """Count both ways until the results agree."""
    for some in (beginning(part, SOON), part):
        alone, after = Lateness(NEVER, until), Lateness(before, until)
        for run in runs(source, places, Task((some,)), _COLUMNS):
            columns = _numbers(run.columns)
            alone.add(*columns)
            after.add(*columns)
            if alone.newest == after.newest:
                break
        if alone.newest == after.newest:
            break
    topic, partition = part.range[:2]
    more = (after.counts - alone.counts).tolist()
    return {"topic": topic, "partition": partition, "latest": after.latest, "counts": more}


def beginning(part: TaskPart, offsets: int) -> TaskPart:
    end = min(part.range.base + offsets, part.range.end)
    pieces = [piece._replace(end=min(piece.end, end)) for piece in part.pieces if piece.base < end]
    return replace(part, range=part.range._replace(end=end), pieces=tuple(pieces))


def _numbers(columns: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return offsets, timestamps in ms and timestamp types."""
    offsets, stamps, kinds = columns
    return (
        offsets.to_numpy(zero_copy_only=False),
        milliseconds(stamps),
        kinds.to_numpy(zero_copy_only=False),
    )


def by_partition(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row for each partition: the sum of its ranges (DDL) and corrections (MORE_DDL)."""
    sums: dict[tuple[str, int], Row] = {}
    for row in found:
        place = {"topic": row["topic"], "partition": row["partition"]}
        empty: Row = {**place, "latest": 0, "timeless": 0, "future": 0, "append_time": 0,
                      "counts": [0] * CLASSES, "arrived": [0] * CLASSES}  # fmt: skip
        known = sums.setdefault((row["topic"], row["partition"]), empty)
        known["latest"] = max(known["latest"], row["latest"])
        for name in ("timeless", "future", "append_time"):
            known[name] += row.get(name, 0)
        for name in ("counts", "arrived"):
            pairs = zip(known[name], row.get(name) or [0] * CLASSES, strict=True)
            known[name] = [a + b for a, b in pairs]
    return [summarize_partition(sums[place]) for place in sorted(sums)]


SHOWN = ("topic", "partition", "records", "late", "late_share", "max_late_ms", "p99_late",
         "append_time", "future", "timeless")  # fmt: skip
_BY_CLASS = ("counts", "arrived")


def summarize_partition(sums: Mapping[str, Any]) -> Row:
    """Return the row of a partition from its counts by class."""
    counts = sums["counts"]
    records = sum(counts)
    return {
        "topic": sums["topic"], "partition": sums["partition"], "records": records,
        "late": records - counts[0],
        "late_share": round(1 - counts[0] / records, 6) if records else 0.0,
        "max_late_ms": sums["latest"],
        "p99_late": lateness_labels()[quantile_class(counts, 0.99)],
        "append_time": sums["append_time"], "future": sums["future"],
        "timeless": sums["timeless"], "counts": counts, "arrived": sums["arrived"],
    }  # fmt: skip


def fill(report: Report, rows: Sequence[Row], known: bool) -> None:
    """Fill tables and sentences. `known`: a manifest has arrival times."""
    if any(row["records"] for row in rows):
        table = table_of([{k: row[k] for k in row if k not in _BY_CLASS} for row in rows])
        report.add("late", "Partitions", table, *SHOWN)
        histogram = table_of(_histogram(rows))
        report.add("late-histogram", "Classes of lateness", histogram)
        report.sentences += _sentences(rows)
        report.sentences += _arrival(rows, known)
    else:
        report.sentences.append("No record has a timestamp that says when it happened.")
    report.sentences += _apart(rows)


def _histogram(rows: Sequence[Row]) -> list[Row]:
    """Return records of each partition and class, with the class's label and upper edge in ms, null
    for the last."""
    edges = [*LATE_EDGES_MS, None]
    labels = lateness_labels()
    return [
        {
            "topic": row["topic"], "partition": row["partition"], "class": index,
            "records": count, "arrived": arrived, "up_to_ms": edges[index], "words": labels[index],
        }
        for row in rows
        for index, (count, arrived) in enumerate(zip(row["counts"], row["arrived"], strict=True))
        if count or arrived
    ]  # fmt: skip


def _sums(rows: Sequence[Row], name: str) -> list[int]:
    return [sum(column) for column in zip(*(row[name] for row in rows), strict=True)]


def _sentences(rows: Sequence[Row]) -> list[str]:
    records, late = (sum(row[name] for row in rows) for name in ("records", "late"))
    labels = lateness_labels()
    share = 100 * late / records if records else 0.0
    worst = max(rows, key=lambda row: row["max_late_ms"])
    sentences = [f"{late:,} of {records:,} records ({share:.3g} %) are late: older than one before "
                 "them in their partition."]  # fmt: skip
    if late:
        most = quantile_class(_sums(rows, "counts"), 0.99)
        words = f"late by {labels[most].removeprefix('to ')} at most"
        if most in (0, len(labels) - 1):
            words = labels[most] if not most else f"late by {labels[most]}"
        sentences.append(
            f"99 % are {words}, the latest by {duration(worst['max_late_ms'])}, in "
            f"{worst['topic']}-{worst['partition']}."
        )
    return sentences


def _arrival(rows: Sequence[Row], known: bool) -> list[str]:
    arrived = _sums(rows, "arrived")
    if not known or not any(arrived):
        return ["When records arrived is not known: only a manifest says it."]
    labels = lateness_labels()
    half, most = (labels[quantile_class(arrived, q)] for q in (0.5, 0.99))
    return [f"Age when its segment was there: half {half}, 99 % {most}."]


def _apart(rows: Sequence[Row]) -> list[str]:
    """Return a note on records that were not counted."""
    stamped, future, timeless = (
        sum(row[name] for row in rows) for name in ("append_time", "future", "timeless")
    )
    sentences = []
    if stamped:
        sentences.append(f"{stamped:,} have the broker's time (LogAppendTime), which says nothing "
                         "of when something happened.")  # fmt: skip
    if future:
        sentences.append(f"Dated in the future, and left out, since all that follow would be late: "
                         f"{future:,}.")  # fmt: skip
    if timeless:
        sentences.append(f"Without a timestamp, and left out: {timeless:,}.")
    return sentences
