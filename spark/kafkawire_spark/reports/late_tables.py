"""Tables and sentences of the report on late data. Pure; called by kafkawire_spark.reports.late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafkawire_spark.reports.report import Report, table_of
from kafkawire_spark.reports.stats.measures import (
    LATE_EDGES_MS,
    duration,
    lateness_labels,
    quantile_class,
)

SHOWN = ("topic", "partition", "records", "late", "late_share", "max_late_ms", "p99_late",
         "append_time", "future", "timeless")  # fmt: skip
Row = dict[str, Any]
_BY_CLASS = ("counts", "arrived")


def measured(sums: Mapping[str, Any]) -> Row:
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
