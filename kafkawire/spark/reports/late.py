"""Late data: how far records are behind the newest one before them in their partition.

That needs the order of a partition, which a table has not, and the newest timestamp of all that
precedes a task's range. So tasks read twice: first each range gives its newest timestamp, then,
told what precedes them, they count records by class of lateness (measures.LATE_EDGES_MS). Spark
adds the counts up. A manifest says when each segment was there (uploaded; in a data folder: cut): a
record had arrived by then, and its age at that time is counted as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.spark.columns import Selection
from kafkawire.spark.model import OffsetRange, Part, Source, Task
from kafkawire.spark.reports import plot_late
from kafkawire.spark.reports.measures import (
    LATE_EDGES_MS,
    duration,
    lateness_labels,
    number,
    quantile_class,
)
from kafkawire.spark.reports.report import Report, collect, rows_of
from kafkawire.spark.reports.scope import Rows, Scope, Work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kafkawire.spark.places import Place

CLASSES = len(LATE_EDGES_MS) + 1
NEVER = -1
"""The timestamp of a record that has none, and what precedes the first."""
NEWEST_DDL = "topic STRING, partition INT, base BIGINT, newest BIGINT"
COUNTS_DDL = (
    "topic STRING, partition INT, class INT, records BIGINT, latest BIGINT, arrived BIGINT, "
    "append_time BIGINT"
)
Uploads = Mapping[tuple[str, int], Sequence[tuple[int, int]]]
"""For a partition: (end offset, when it was in the tier in ms, -1 if not known), rising."""

_SUMS = """
SELECT topic, partition, class, sum(records) AS records, max(latest) AS latest,
       sum(arrived) AS arrived, sum(append_time) AS append_time
FROM {counts} GROUP BY topic, partition, class ORDER BY topic, partition, class
"""


class Lateness:
    """Counts of one range, a batch at a time. `newest`: the largest timestamp before the range.

    `counts` and `arrived` by class; `latest`: the largest lateness in ms of a class; records
    without a timestamp are in none.
    """

    def __init__(self, newest: int, uploads: Sequence[tuple[int, int]] = ()) -> None:
        self.newest = newest
        self.counts = np.zeros(CLASSES, np.int64)
        self.arrived = np.zeros(CLASSES, np.int64)
        self.latest = np.zeros(CLASSES, np.int64)
        self.append_time = 0
        self._ends = np.array([end for end, _ in uploads], np.int64)
        self._times = np.array([at for _, at in uploads], np.int64)

    def feed(self, offsets: Any, stamps: Any, kinds: Any) -> None:
        """The next records: offsets, timestamps (ms), timestamp types (1: the broker's)."""
        timed = stamps > NEVER
        if not timed.all():
            offsets, stamps, kinds = offsets[timed], stamps[timed], kinds[timed]
        if not len(stamps):
            return
        running = np.maximum.accumulate(np.concatenate(([self.newest], stamps)))
        self.newest = int(running[-1])
        behind = np.maximum(running[1:] - stamps, 0)
        classes = np.searchsorted(LATE_EDGES_MS, behind, side="left")
        self.counts += np.bincount(classes, minlength=CLASSES)
        np.maximum.at(self.latest, classes, behind)
        self.append_time += int((kinds == 1).sum())
        if len(self._ends):
            places = np.searchsorted(self._ends, offsets, side="right")
            at = np.append(self._times, NEVER)[places]
            there = at > NEVER
            ages = np.maximum(at[there] - stamps[there], 0)
            self.arrived += np.bincount(
                np.searchsorted(LATE_EDGES_MS, ages, side="left"), minlength=CLASSES
            )

    def rows(self, range_: OffsetRange) -> list[dict[str, Any]]:
        """One for each class that has anything."""
        return [
            {
                "topic": range_.topic, "partition": range_.partition, "class": index,
                "records": int(self.counts[index]), "latest": int(self.latest[index]),
                "arrived": int(self.arrived[index]),
                "append_time": self.append_time if index == 0 else 0,
            }
            for index in range(CLASSES)
            if self.counts[index] or self.arrived[index] or (not index and self.append_time)
        ]  # fmt: skip


def run(spark: SparkSession, scope: Scope) -> Report:
    """The report; nothing in it is a problem of offsets."""
    report = Report("late")
    newest = rows_of(scope.scan(spark, _newest, NEWEST_DDL).toArrow())
    uploads = uploads_of(scope)
    counts = scope.scan(spark, counter(before(newest), uploads), COUNTS_DDL)
    found = collect(spark.sql(_SUMS, counts=counts))
    rows = by_partition(rows_of(found))
    if not rows:
        report.sentences.append("No record has a timestamp.")
        return report
    shown = ("topic", "partition", "records", "late", "late_share", "max_late_ms", "p99_late",
             "append_time")  # fmt: skip
    report.add("late", "Partitions", _table(rows), *shown)
    report.add("late-histogram", "Classes of lateness", _histogram(found))
    arrived = _by_class(rows_of(found), "arrived") if uploads else None
    report.sentences = [*_sentences(rows, arrived), *report.sentences]
    subtitle = f"{scope.words()}, {number(sum(row['records'] for row in rows))} records"
    report.plot = plot_late.draw(rows, arrived if arrived and any(arrived) else None, subtitle)
    return report


def before(newest: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, int], int]:
    """(topic, partition, base) of each range -> the newest timestamp of all ranges before it."""
    found = {}
    order = sorted(newest, key=lambda row: (row["topic"], row["partition"], row["base"]))
    for place, rows in groupby(order, key=lambda row: (row["topic"], row["partition"])):
        highest = NEVER
        for row in rows:
            found[*place, row["base"]] = highest
            highest = max(highest, row["newest"])
    return found


def uploads_of(scope: Scope) -> Uploads:
    """When the records of each partition were in the tier, by offset, as far as its manifest says
    it; what was rewritten since says nothing of it."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for part in scope.parts:
        for piece in part.pieces:
            at = scope.catalog.created_ms(piece)
            found.setdefault((part.range.topic, part.range.partition), []).append((piece.end, at))
    return {place: rows for place, rows in found.items() if any(at >= 0 for _, at in rows)}


def _newest(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
    """The newest timestamp of each of a task's ranges."""
    for part in task.parts:
        highest = NEVER
        for _, stamps, _ in _columns(source, places, part):
            if len(stamps):
                highest = max(highest, int(stamps.max()))
        yield [{**part.range._asdict(), "newest": highest}]


def counter(newest: Mapping[tuple[str, int, int], int], uploads: Uploads) -> Work:
    """What each task does the second time."""

    def count(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
        for part in task.parts:
            topic, partition, base, _ = part.range
            lateness = Lateness(newest[topic, partition, base], uploads.get((topic, partition), ()))
            for columns in _columns(source, places, part):
                lateness.feed(*columns)
            yield lateness.rows(part.range)

    return count


def _columns(source: Source, places: Sequence[Place], part: Part) -> Iterator[tuple[Any, Any, Any]]:
    """Offsets, timestamps in ms and timestamp types, batch by batch."""
    import pyarrow as pa

    from kafkawire.spark.reading import read_task

    selection = Selection(("offset", "timestamp", "timestampType"))
    for batch in read_task(source, places, Task((part,)), selection):
        offsets, stamps, kinds = batch.columns
        stamps = stamps.cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
        yield offsets.to_numpy(zero_copy_only=False), stamps, kinds.to_numpy(zero_copy_only=False)


def by_partition(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each partition, with its `counts` by class."""
    rows = []
    for place, classes in groupby(found, key=lambda row: (row["topic"], row["partition"])):
        counts, latest, append_time = [0] * CLASSES, 0, 0
        for row in classes:
            counts[row["class"]] = row["records"]
            latest = max(latest, row["latest"])
            append_time += row["append_time"]
        records = sum(counts)
        rows.append(
            {
                "topic": place[0], "partition": place[1], "records": records,
                "late": records - counts[0],
                "late_share": round(1 - counts[0] / records, 6) if records else 0.0,
                "max_late_ms": latest,
                "p99_late": lateness_labels()[quantile_class(counts, 0.99)],
                "append_time": append_time, "counts": counts,
            }
        )  # fmt: skip
    return rows


def _by_class(found: Sequence[Mapping[str, Any]], what: str) -> list[int]:
    sums = [0] * CLASSES
    for row in found:
        sums[row["class"]] += row[what]
    return sums


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows)).drop_columns(["counts"])


def _histogram(found: pa.Table) -> pa.Table:
    """The counts with the upper edge of each class in ms, null for the last, and its words."""
    import pyarrow as pa

    edges = [*LATE_EDGES_MS, None]
    labels = lateness_labels()
    classes = found.column("class").to_pylist()
    return (
        found.append_column("up_to_ms", pa.array([edges[index] for index in classes], pa.int64()))
        .append_column("words", pa.array([labels[index] for index in classes], pa.string()))
        .drop_columns(["append_time"])
    )


def _sentences(rows: Sequence[Mapping[str, Any]], arrived: Sequence[int] | None) -> list[str]:
    records, late = (sum(row[name] for row in rows) for name in ("records", "late"))
    counts = [sum(column) for column in zip(*(row["counts"] for row in rows), strict=True)]
    labels = lateness_labels()
    share = 100 * late / records if records else 0.0
    worst = max(rows, key=lambda row: row["max_late_ms"])
    sentences = [f"{late:,} of {records:,} records ({share:.3g} %) are late: older than one before "
                 "them in their partition."]  # fmt: skip
    if late:
        sentences.append(
            f"99 % are at most {labels[quantile_class(counts, 0.99)].removeprefix('to ')} late, "
            f"the latest {duration(worst['max_late_ms'])}, in {worst['topic']}-{worst['partition']}"
            "."
        )
    stamped = sum(row["append_time"] for row in rows)
    if stamped:
        sentences.append(f"{stamped:,} have the broker's time (LogAppendTime), which says nothing "
                         "of when something happened.")  # fmt: skip
    if arrived is None or not any(arrived):
        sentences.append("When records arrived is not known: only a manifest says it.")
    else:
        half, most = (labels[quantile_class(arrived, q)] for q in (0.5, 0.99))
        sentences.append(f"Age when its segment was there: half {half}, 99 % {most}.")
    return sentences
