"""Lag history by group: committed offsets compared with the end of the log at that time.

Commits are read from `__consumer_offsets` and decoded in Spark tasks. That topic is compacted, so
the history contains only commits that were not removed yet; the newest commit of each partition
always exists. The end of a partition at a time is the first offset of a newer record, as in
ListOffsets, so it depends on the producers' clocks. Lag is never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.reading.commits import (
    COMMIT,
    DELETED,
    GROUP,
    REMOVED,
    UNREADABLE,
    decode_event,
)
from kafkawire.reading.model.columns import KEY, OFFSET, TIMESTAMP, VALUE, Selection
from kafkawire.reading.model.source import PartitionRange, Source, Task
from kafkawire_spark.measures import SKEW_MS, number, width_for
from kafkawire_spark.reports import ends as partition_ends
from kafkawire_spark.reports.plots import common
from kafkawire_spark.reports.plots import lag as plot_lag
from kafkawire_spark.reports.report import Report, collect, rows_of
from kafkawire_spark.reports.scope import ReportScope, merge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.reading.files.locations import Place

OFFSETS_TOPIC = "__consumer_offsets"
EVENTS_DDL = (
    "kind STRING, group_id STRING, topic STRING, partition INT, committed BIGINT, at BIGINT, "
    "place BIGINT"
)
Row = dict[str, Any]

# Commits by partition, groups as such (topic null), and unreadable records (all null).
_FOUND = f"""
SELECT group_id, topic, partition, count_if(kind = '{COMMIT}') AS commits,
       count_if(kind = '{REMOVED}') AS removed, count_if(kind = '{UNREADABLE}') AS unreadable,
       min(at) FILTER (WHERE kind = '{COMMIT}') AS first_ms,
       max(at) FILTER (WHERE kind = '{COMMIT}') AS last_ms,
       CASE WHEN max_by(kind, place) FILTER (WHERE kind IN ('{GROUP}', '{DELETED}')) = '{DELETED}'
            THEN max(at) FILTER (WHERE kind = '{DELETED}') END AS deleted_ms
FROM {{events}} GROUP BY group_id, topic, partition ORDER BY group_id, topic, partition
"""
# The last of each bucket; a tombstone counts as -1, so that it differs from "no commit".
_COMMITTED = f"""
SELECT group_id, topic, partition, bucket, max_by(coalesce(committed, -1), place) AS committed
FROM (SELECT *, at - pmod(at, {{width}}) AS bucket FROM {{events}}
      WHERE kind IN ('{COMMIT}', '{REMOVED}'))
GROUP BY group_id, topic, partition, bucket
"""
_ENDS = """
SELECT topic, partition, start - pmod(start, {width}) AS bucket, min(first) AS first
FROM {found} GROUP BY topic, partition, bucket
"""
# At the end of each bucket: the last commit so far, and the first offset of a later bucket.
_HISTORY = """
WITH steps AS (SELECT explode(sequence({first}, {last}, {width})) AS bucket),
     firsts AS (SELECT topic, partition, least(bucket, {last}) AS bucket, min(first) AS first
                FROM {ends} GROUP BY ALL),
     ends AS (SELECT topic, partition, bucket, log_end,
                     min(first) OVER (PARTITION BY topic, partition ORDER BY bucket
                       ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS later
              FROM (SELECT * FROM {bounds} CROSS JOIN steps)
                   LEFT JOIN firsts USING (topic, partition, bucket)),
     reported AS (SELECT group_id, topic, partition, greatest(bucket, {first}) AS bucket,
                     max_by(committed, bucket) AS committed
              FROM {committed} WHERE bucket <= {last} GROUP BY ALL),
     known AS (SELECT group_id, topic, partition, bucket,
                      last_value(committed) IGNORE NULLS OVER (
                        PARTITION BY group_id, topic, partition ORDER BY bucket) AS committed
               FROM (SELECT * FROM (SELECT DISTINCT group_id, topic, partition FROM {committed})
                              CROSS JOIN steps)
                    LEFT JOIN reported USING (group_id, topic, partition, bucket))
SELECT group_id, topic, partition, bucket + {width} AS at, committed,
       coalesce(later, log_end) AS log_end,
       greatest(coalesce(later, log_end) - committed, 0) AS lag
FROM known JOIN ends USING (topic, partition, bucket)
WHERE committed >= 0
"""
_BY_GROUP = """
SELECT group_id, at, sum(lag) AS lag, max(lag) AS largest, count(*) AS partitions
FROM {history} GROUP BY group_id, at ORDER BY group_id, at
"""
_NOW = """
SELECT group_id, topic, partition, committed, log_end, lag FROM {history} WHERE at = {at}
ORDER BY lag DESC, group_id, topic, partition
"""


def run(spark: SparkSession, scope: ReportScope) -> Report:
    """Make the report; it never has problems of offsets."""
    report = Report("lag")
    if not scope.catalog.topics.get(OFFSETS_TOPIC):
        report.sentences.append("No group has committed anything: there is no __consumer_offsets.")
        return report
    tasks = scope.tasks(spark, _all_of(scope, OFFSETS_TOPIC))
    if not tasks:
        report.sentences.append("No group has committed anything: __consumer_offsets is empty.")
        return report
    events = _events(spark, scope, tasks).persist()
    try:
        sums = spark.sql(_FOUND, events=events)
        found = rows_of(scope.run_with_progress(spark, "commits read", tasks, sums.toArrow))
        _fill(spark, scope, events, found, report)
    finally:
        events.unpersist()
    return report


def _all_of(scope: ReportScope, topic: str) -> list[PartitionRange]:
    """Return the whole topic regardless of the requested time, because offsets at its beginning
    were committed before."""
    ranges = []
    for partition in range(scope.catalog.topics[topic]):
        start, _, end = scope.catalog.bounds(topic, partition)
        ranges.append(PartitionRange(topic, partition, start, end))
    return [range_ for range_ in ranges if range_.end > range_.base]


def _events(spark: SparkSession, scope: ReportScope, tasks: Sequence[Task]) -> DataFrame:
    """Return events from the records of `__consumer_offsets`, for the requested topics and time."""
    events = scope.run_tasks(spark, tasks, decode_events, EVENTS_DDL)
    if scope.request.until is not None:
        events = events.where(events["at"] < scope.request.until)
    if scope.request.topics:
        events = events.where(events["topic"].isNull() | events["topic"].isin(scope.topics))
    return events


def decode_events(source: Source, places: Sequence[Place], task: Task) -> Iterator[pa.RecordBatch]:
    """Return the work of a task: its records as events (EVENTS_DDL)."""
    import pyarrow as pa
    import pyarrow.compute as pc  # a submodule, which may not have been imported yet

    from kafkawire.reading.read_task import read_task

    selection = Selection((OFFSET, TIMESTAMP, KEY, VALUE))
    for batch in read_task(source, places, task, selection):
        offsets, stamps, keys, values = batch.columns
        pairs = zip(keys, values, strict=True)
        events = [decode_event(key.as_buffer(), value.as_buffer()) for key, value in pairs]
        strings = [pa.array([event[i] for event in events], pa.string()) for i in range(3)]
        partitions = pa.array([event.partition for event in events], pa.int32())
        committed = pa.array([event.committed for event in events], pa.int64())
        at = pc.divide(stamps.cast(pa.int64()), 1000)
        columns = [*strings, partitions, committed, at, offsets]
        names = ["kind", "group_id", "topic", "partition", "committed", "at", "place"]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _fill(
    spark: SparkSession, scope: ReportScope, events: DataFrame, found: Sequence[Row], report: Report
) -> None:
    groups = by_group(found)
    committed = [row for row in found if row["commits"]]
    bounds = _bounds(scope, committed)
    if not committed or not bounds:
        report.sentences.append("No group has committed an offset of a topic that is there.")
        return
    first = max(min(row["first_ms"] for row in committed), scope.request.since or 0)
    ends = _ends(spark, scope, bounds, first)
    last = max(first, *(row["last_ms"] for row in committed), *(row["newest"] for row in ends))
    width = width_for(last - first)
    at = last - last % width + width  # the end of the last step
    history = _history(spark, events, bounds, ends, (first, last, width)).persist()
    try:
        lines = collect(spark.sql(_BY_GROUP, history=history))
        now = collect(spark.sql(_NOW, history=history, at=at))
        every = collect(history.orderBy("group_id", "topic", "partition", "at"))
    finally:
        history.unpersist()
    report.add("lag", "Groups", _summary(groups, lines, at), "group_id", "lag", "largest",
               "peak_lag", "partitions", "commits", "removed", "deleted_ms")  # fmt: skip
    report.add("lag-partitions", "Lag at the end", now, *now.column_names)
    report.add("lag-groups", "Lag of groups over time", lines)
    report.add("lag-history", "Lag of partitions over time", every)
    unreadable = sum(row["unreadable"] for row in found)
    report.sentences = [*_sentences(groups, rows_of(now), unreadable), *report.sentences]
    deleted = {row["group_id"]: row["deleted_ms"] for row in groups if row["deleted_ms"]}
    subtitle = f"{scope.words()}; {common.span_text(first, last)}"
    report.plot = plot_lag.draw(series(rows_of(lines)), deleted, rows_of(now), subtitle)


def by_group(found: Sequence[Row]) -> list[Row]:
    """Return one row for each group: number of commits, first and last commit, when it was
    deleted."""
    groups: dict[str, Row] = {}
    for row in found:
        if row["group_id"] is None:
            continue
        empty: Row = {"group_id": row["group_id"], "commits": 0, "removed": 0, "first_ms": None,
                      "last_ms": None, "deleted_ms": None}  # fmt: skip
        group = groups.setdefault(row["group_id"], empty)
        group["commits"] += row["commits"]
        group["removed"] += row["removed"]
        for name, better in (("first_ms", min), ("last_ms", max), ("deleted_ms", max)):
            values = [value for value in (group[name], row[name]) if value is not None]
            group[name] = better(values, default=None)
    return [groups[name] for name in sorted(groups)]


def _bounds(scope: ReportScope, committed: Sequence[Row]) -> list[PartitionRange]:
    """Return the ranges of existing partitions with commits of any group."""
    known = scope.catalog.topics
    places = {(row["topic"], row["partition"]) for row in committed}
    return scope.ranges_of(
        [
            (topic, partition)
            for topic, partition in sorted(places)
            if partition < known.get(topic, 0)
        ]
    )


def _ends(
    spark: SparkSession, scope: ReportScope, bounds: Sequence[PartitionRange], first: int
) -> list[Row]:
    """Return the end of each non-empty partition over time (ends.DDL)."""
    tasks = scope.tasks(spark, [range_ for range_ in bounds if range_.end > range_.base])
    if not tasks:
        return []
    work = partition_ends.finder(first, scope.now_ms + SKEW_MS)
    whole = merge(
        scope.run_tasks(spark, tasks, work, partition_ends.DDL),
        partition_ends.merge_ends,
        partition_ends.DDL,
    )
    return rows_of(scope.run_with_progress(spark, "ranges read", tasks, whole.toArrow))


def _history(
    spark: SparkSession,
    events: DataFrame,
    bounds: Sequence[PartitionRange],
    ends: Sequence[Row],
    steps: tuple[int, int, int],
) -> DataFrame:
    """Return a row for each group, partition and time step with a commit. `steps`: first, end and
    width, in ms."""
    first, last, width = steps
    found = spark.createDataFrame(partition_ends.table(ends))
    known = spark.createDataFrame(
        [(topic, partition, end) for topic, partition, _, end in bounds],
        "topic STRING, partition INT, log_end BIGINT",
    )
    return spark.sql(
        _HISTORY,
        ends=spark.sql(_ENDS, found=found, width=width),
        committed=spark.sql(_COMMITTED, events=events, width=width),
        bounds=known,
        first=first - first % width,
        last=last - last % width,
        width=width,
    )


def series(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, int | None]]]:
    """Return each group's lag over time; None from when it has no offset any more."""
    times = sorted({row["at"] for row in lines})
    found: dict[str, dict[int, int]] = {}
    for row in lines:
        found.setdefault(row["group_id"], {})[row["at"]] = row["lag"]
    return {
        group: [(at, known.get(at)) for at in times if at >= min(known)]
        for group, known in found.items()
    }


def _summary(groups: Sequence[Row], lines: pa.Table, at: int) -> pa.Table:
    """Return each group with its lag at the end and its maximum."""
    import pyarrow as pa

    now = {row["group_id"]: row for row in rows_of(lines) if row["at"] == at}
    peaks: dict[str, int] = {}
    for row in rows_of(lines):
        peaks[row["group_id"]] = max(peaks.get(row["group_id"], 0), row["lag"])
    rows = []
    for row in groups:
        group = row["group_id"]
        here = now.get(group, {"lag": None, "largest": None, "partitions": 0})
        rest = {name: here[name] for name in ("lag", "largest", "partitions")}
        rows.append({**row, **rest, "peak_lag": peaks.get(group)})
    numbers = ("commits", "removed", "first_ms", "last_ms", "deleted_ms", "lag", "largest",
               "partitions", "peak_lag")  # fmt: skip
    fields = [("group_id", pa.string()), *((name, pa.int64()) for name in numbers)]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def _sentences(groups: Sequence[Row], now: Sequence[Row], unreadable: int) -> list[str]:
    total_lag = sum(row["lag"] for row in now)
    with_lag = {row["group_id"] for row in now if row["lag"]}
    sentences = [
        f"{len(groups):,} groups, {sum(row['commits'] for row in groups):,} commits; at the end "
        f"{len(with_lag):,} have lag, by {total_lag:,} records ({number(total_lag)}) in all."
    ]
    deleted = [row["group_id"] for row in groups if row["deleted_ms"]]
    if deleted:
        more = ", ..." if len(deleted) > 5 else ""
        sentences.append(f"{len(deleted):,} were deleted: {', '.join(deleted[:5])}{more}.")
    if unreadable:
        sentences.append(f"{unreadable:,} records of {OFFSETS_TOPIC} could not be read.")
    return sentences
