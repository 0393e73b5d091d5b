"""Sizes, rates and skew: bytes and records by topic and partition, over time, and by key.

One pass over the records, which tasks sum up where they read them (`tally`). Bytes are those of
uncompressed keys and values; `stored_bytes` those of the compressed batches in segments, estimated
for records that are not in segments yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafkawire_spark.measures import (
    SKEW_MS,
    WIDTHS_MS,
    duration,
    gini,
    largest_share,
    number,
    size,
    text_of,
)
from kafkawire_spark.reports import tally
from kafkawire_spark.reports.buckets import Buckets, window
from kafkawire_spark.reports.keys import ROOM
from kafkawire_spark.reports.plots import common
from kafkawire_spark.reports.plots import sizes as plot_sizes
from kafkawire_spark.reports.report import Report, rows_of, table_of
from kafkawire_spark.reports.scope import ReportScope, merge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def run(spark: SparkSession, scope: ReportScope) -> Report:
    """Make the report; it never has problems of offsets."""
    tasks = scope.tasks(spark)
    found = scope.run_tasks(spark, tasks, tally.tally, tally.FOUND_DDL)
    whole = merge(found, tally.merge_tallies, tally.TOPIC_DDL)
    topics = rows_of(scope.run_with_progress(spark, "ranges read", tasks, whole.toArrow))
    return sizes_report(sorted(topics, key=lambda row: row["topic"]), scope)


def sizes_report(found: Sequence[Row], scope: ReportScope) -> Report:
    """Make the report from rows of topics (tally.TOPIC_DDL), in their order."""
    report = Report("sizes")
    rows = _with_stored(found, scope)
    topics = by_topic(rows, found)
    keys = _rank_keys(found, topics)
    rates, shown = _rates(found)
    report.add("sizes", "Topics", table_of(topics), "topic", "partitions", "records", "bytes",
               "stored_bytes", "largest_partition", "largest_share", "gini_partitions", "keys",
               "largest_key_share", "gini_keys")  # fmt: skip
    report.add("sizes-partitions", "Partitions", table_of(rows), "topic", "partition", "records",
               "bytes", "stored_bytes", "records_per_s")  # fmt: skip
    if rates:
        report.add("sizes-rates", f"Rates by {duration(shown.width)}", table_of(rates))
    if keys:
        report.add("sizes-keys", "Largest keys", table_of(keys), "topic", "key", "records", "bytes",
                   "share")  # fmt: skip
    report.sentences = [
        *_sentences(topics, rows), *_estimates(found), *_times(rows, scope.now_ms),
        *report.sentences,
    ]  # fmt: skip
    report.plot = plot_sizes.draw(rows, rates, _curves(found), keys, shown, _subtitle(scope, rows))
    return report


def _rates(found: Sequence[Row]) -> tuple[list[Row], plot_sizes.TimeSpan]:
    """Return records and bytes of each topic by bucket of time, all of one width, and the shown
    range."""
    whole, every = Buckets(), []
    for row in found:
        own = Buckets()
        for times in (own, whole):
            times.merge(row["level"], row["starts"], row["counts"], row["sums"])
        every.append((row["topic"], own))
    level, first, end = window(whole)
    rates = []
    for topic, times in every:
        times.widen(level)
        columns = zip(times.starts.tolist(), times.records.tolist(), times.values.tolist(),
                      strict=True)  # fmt: skip
        rates += [
            {"topic": topic, "bucket": start, "records": records, "bytes": bytes_}
            for start, records, bytes_ in columns
        ]
    width = WIDTHS_MS[level]
    return rates, plot_sizes.TimeSpan(first - first % width, end, width)


def _with_stored(found: Sequence[Row], scope: ReportScope) -> list[Row]:
    """Return all partitions, empty ones too, with their stored bytes and rate."""
    known = {
        (row["topic"], partition["partition"]): {"topic": row["topic"], **partition}
        for row in found
        for partition in row["partitions"]
    }
    stored = {(part.range.topic, part.range.partition): part.size_bytes for part in scope.parts}
    rows = []
    for topic, partition, _, _ in scope.ranges:
        empty: Row = {"topic": topic, "partition": partition, "records": 0, "bytes": 0,
                      "timeless": 0, "first_ms": None, "last_ms": None}  # fmt: skip
        row = known.get((topic, partition), empty)
        timed = row["records"] - row["timeless"]
        span = (row["last_ms"] - row["first_ms"]) / 1000 if timed else 0.0
        rate = round(timed / span, 3) if span else None
        rows.append(
            row | {"stored_bytes": stored.get((topic, partition), 0), "records_per_s": rate}
        )
    return rows


def by_topic(rows: Sequence[Row], found: Sequence[Row]) -> list[Row]:
    """Return one row for each topic: sums, the largest partition, and the skew of partitions and
    keys. `rows`: of partitions; `found`: of topics with records (tally.TOPIC_DDL)."""
    known = {row["topic"]: row for row in found}
    partitions: dict[str, list[Row]] = {}
    for row in rows:
        partitions.setdefault(row["topic"], []).append(row)
    made = []
    for topic, own in sorted(partitions.items()):
        records = [row["records"] for row in own]
        largest = max(own, key=lambda row: row["records"])
        of = known.get(topic, {"keys": 0, "keyless": 0})
        keyed = of["keys"] > 0
        most = max((top["records"] for top in of["top"]), default=0) if keyed else 0
        made.append(
            {
                "topic": topic, "partitions": len(own), "records": sum(records),
                "bytes": sum(row["bytes"] for row in own),
                "stored_bytes": sum(row["stored_bytes"] for row in own),
                "first_ms": _extreme(min, own, "first_ms"),
                "last_ms": _extreme(max, own, "last_ms"),
                "largest_partition": largest["partition"],
                "largest_share": round(largest_share(records), 4),
                "gini_partitions": round(gini((count, 1) for count in records), 4),
                "keys": of["keys"], "keyless": of["keyless"],
                "largest_key_share": round(most / sum(records), 4) if keyed else None,
                "gini_keys": round(of["gini"], 4) if keyed else None,
            }
        )  # fmt: skip
    return made


def _extreme(which: Any, rows: Sequence[Row], name: str) -> int | None:
    found: int | None = which((row[name] for row in rows if row[name] is not None), default=None)
    return found


def _curves(found: Sequence[Row]) -> dict[str, list[tuple[float, int]]]:
    """Return for each topic (records of a key, keys that have so many)."""
    return {
        row["topic"]: list(zip(row["curve_records"], row["curve_keys"], strict=True))
        for row in found
        if row["keys"]
    }


def _rank_keys(found: Sequence[Row], topics: Sequence[Row]) -> list[Row]:
    """Return keys by records, as text and in hexadecimal, with their share of the topic's
    records."""
    totals = {row["topic"]: row["records"] for row in topics}
    every = [{"topic": row["topic"], **top} for row in found for top in row["top"]]
    return [
        {
            "topic": row["topic"], "key": text_of(row["text"], row["length"]),
            "key_hex": row["text"].hex(), "records": row["records"], "bytes": row["bytes"],
            "share": round(row["records"] / totals[row["topic"]], 6),
            "records_off": row["records_off"], "bytes_off": row["bytes_off"],
        }
        for row in sorted(every, key=lambda row: (-row["records"], row["topic"], row["text"]))
    ]  # fmt: skip


def _subtitle(scope: ReportScope, rows: Sequence[Row]) -> str:
    first, last = _extreme(min, rows, "first_ms"), _extreme(max, rows, "last_ms")
    return f"{scope.words()}, {common.span_text(first, last)}"


def _sentences(topics: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    records, payload, stored = (
        sum(row[name] for row in rows) for name in ("records", "bytes", "stored_bytes")
    )
    sentences = [
        f"{records:,} record{'' if records == 1 else 's'} with {size(payload)} in keys and values; "
        f"{size(stored)} as they are stored."
    ]
    uneven = [row for row in topics if row["largest_share"] * row["partitions"] > 2]
    for row in sorted(uneven, key=lambda row: -row["records"])[:5]:
        sentences.append(
            f"{row['topic']}: partition {row['largest_partition']} has "
            f"{100 * row['largest_share']:.3g} % of the records, "
            f"{row['largest_share'] * row['partitions']:.3g} times an even share."
        )
    return sentences


def _estimates(found: Sequence[Row]) -> list[str]:
    """Return a note on estimates: topics with more keys than are counted exactly."""
    return [
        f"{row['topic']}: about {number(row['keys'])} keys (to {_error(row['sampled'])}): more "
        f"than the {ROOM:,} that are counted one by one, so how uneven they are is estimated "
        f"from {row['sampled']:,} of them; counts of the largest are too low by "
        f"{max((top['records_off'] for top in row['top']), default=0):,} records at most."
        for row in found
        if row["sampled"]
    ]


def _error(sampled: int) -> str:
    """Return two standard errors of the estimated number of keys."""
    return f"{200 / sampled**0.5:.2g} %"


def _times(rows: Sequence[Row], now_ms: int) -> list[str]:
    sentences = []
    timeless = sum(row["timeless"] for row in rows)
    if timeless:
        sentences.append(f"{timeless:,} records have no timestamp, and are in no rate.")
    last = _extreme(max, rows, "last_ms")
    if last is not None and last > now_ms + SKEW_MS:
        ahead = next(row for row in rows if row["last_ms"] == last)
        sentences.append(f"Some are dated in the future, the last in {ahead['topic']}-"
                         f"{ahead['partition']}: {common.moment_text(last)}.")  # fmt: skip
    return sentences
