"""Sizes, rates and skew: bytes and records by topic and partition, over time, and by key.

One pass over the records: Spark adds them up by (topic, partition, time) and by (topic, key) at
once. Bytes are those of key and value, as the producer had them; `stored_bytes` those of the
batches in segments, compressed. What has not been cut into segments is estimated there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.spark.reports import plot_sizes, plots
from kafkawire.spark.reports.measures import (
    duration,
    gini,
    largest_share,
    number,
    size,
    text_of,
    width_for,
)
from kafkawire.spark.reports.report import Report, collect, rows_of
from kafkawire.spark.reports.scope import Scope

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEYS = 20
"""Of each topic: those with the most records, and those with the most bytes."""
Row = dict[str, Any]

_BOTH = """
SELECT topic, partition, bucket, key, grouping(partition) = 1 AS by_key, count(*) AS records,
       sum(bytes) AS bytes, min(ms) AS first_ms, max(ms) AS last_ms
FROM (SELECT topic, partition, key, unix_millis(timestamp) AS ms,
             unix_millis(timestamp) - pmod(unix_millis(timestamp), {width}) AS bucket,
             coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS bytes
      FROM {records})
GROUP BY GROUPING SETS ((topic, partition, bucket), (topic, key))
"""
_PARTITIONS = """
SELECT topic, partition, sum(records) AS records, sum(bytes) AS bytes, min(first_ms) AS first_ms,
       max(last_ms) AS last_ms
FROM {sums} WHERE NOT by_key GROUP BY topic, partition ORDER BY topic, partition
"""
_RATES = """
SELECT topic, bucket, sum(records) AS records, sum(bytes) AS bytes
FROM {sums} WHERE NOT by_key GROUP BY topic, bucket ORDER BY topic, bucket
"""
# Two queries: for a rank alone Spark keeps the first of each group and sorts nothing else.
_TOP = """
SELECT topic, key, records, bytes FROM (
  SELECT topic, key, records, bytes, row_number() OVER (PARTITION BY topic
                                                        ORDER BY {by} DESC, key) AS place
  FROM {{sums}} WHERE by_key AND key IS NOT NULL) WHERE place <= {keys}
"""
_SKEW = """
SELECT topic, records, count(*) AS keys, max(key IS NULL) AS keyless
FROM {sums} WHERE by_key GROUP BY topic, records, key IS NULL ORDER BY topic, records
"""


def run(spark: SparkSession, scope: Scope) -> Report:
    """The report; nothing in it is a problem of offsets."""
    report = Report("sizes")
    width = width_for(scope.newest(spark) - scope.oldest(spark))
    records = scope.records(spark, "topic, partition, timestamp, key, value")
    sums = spark.sql(_BOTH, records=records, width=width).persist()
    try:
        partitions = rows_of(spark.sql(_PARTITIONS, sums=sums).toArrow())
        rates = collect(spark.sql(_RATES, sums=sums))
        top = _top_keys(spark, sums)
        skew = rows_of(spark.sql(_SKEW, sums=sums).toArrow())
    finally:
        sums.unpersist()
    rows = _with_stored(partitions, scope)
    topics = by_topic(rows, skew)
    keys = _ranked(top, topics)
    report.add("sizes", "Topics", _arrow(topics), "topic", "partitions", "records", "bytes",
               "stored_bytes", "largest_partition", "largest_share", "gini_partitions", "keys",
               "largest_key_share", "gini_keys")  # fmt: skip
    report.add("sizes-partitions", "Partitions", _arrow(rows), "topic", "partition", "records",
               "bytes", "stored_bytes", "records_per_s")  # fmt: skip
    report.add("sizes-rates", f"Rates by {duration(width)}", rates)
    if keys:
        report.add("sizes-keys", "Largest keys", _arrow(keys), "topic", "key", "records", "bytes",
                   "share")  # fmt: skip
    report.sentences = [*_sentences(topics, rows), *report.sentences]
    report.plot = plot_sizes.draw(
        rows, rows_of(rates), _curves(skew), keys, width, _subtitle(scope, rows)
    )
    return report


def _top_keys(spark: SparkSession, sums: DataFrame) -> list[Row]:
    found: dict[tuple[str, bytes], Row] = {}
    for by in ("records", "bytes"):
        for row in rows_of(spark.sql(_TOP.format(by=by, keys=KEYS), sums=sums).toArrow()):
            found[row["topic"], row["key"]] = row
    return list(found.values())


def _with_stored(partitions: Sequence[Row], scope: Scope) -> list[Row]:
    """All partitions, empty ones too, with what they take in segments and their rate."""
    known = {(row["topic"], row["partition"]): row for row in partitions}
    stored = {(part.range.topic, part.range.partition): part.size_bytes for part in scope.parts}
    rows = []
    for topic, partition, _, _ in scope.ranges:
        empty: Row = {"topic": topic, "partition": partition, "records": 0, "bytes": 0,
                      "first_ms": None, "last_ms": None}  # fmt: skip
        row = known.get((topic, partition), empty)
        span = (row["last_ms"] - row["first_ms"]) / 1000 if row["records"] else 0.0
        rate = round(row["records"] / span, 3) if span else None
        rows.append(
            row | {"stored_bytes": stored.get((topic, partition), 0), "records_per_s": rate}
        )
    return rows


def by_topic(rows: Sequence[Row], skew: Sequence[Row]) -> list[Row]:
    """One row for each topic: sums, the largest partition, and how uneven partitions and keys
    are. `skew`: topic, records of a key, how many keys have so many, whether that is "no key"."""
    found = []
    curves = _curves(skew)
    for topic in sorted({row["topic"] for row in rows}):
        own = [row for row in rows if row["topic"] == topic]
        records = [row["records"] for row in own]
        largest = max(own, key=lambda row: row["records"])
        keyed = curves.get(topic, [])
        total = sum(records)
        found.append(
            {
                "topic": topic, "partitions": len(own), "records": total,
                "bytes": sum(row["bytes"] for row in own),
                "stored_bytes": sum(row["stored_bytes"] for row in own),
                "first_ms": min((row["first_ms"] for row in own if row["records"]), default=None),
                "last_ms": max((row["last_ms"] for row in own if row["records"]), default=None),
                "largest_partition": largest["partition"],
                "largest_share": round(largest_share(records), 4),
                "gini_partitions": round(gini((count, 1) for count in records), 4),
                "keys": sum(keys for _, keys in keyed),
                "keyless": total - sum(count * keys for count, keys in keyed),
                "largest_key_share": round(keyed[-1][0] / total, 4) if keyed else None,
                "gini_keys": round(gini(keyed), 4) if keyed else None,
            }
        )  # fmt: skip
    return found


def _curves(skew: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    """For each topic (records of a key, keys that have so many), rising, without "no key"."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in skew:
        if not row["keyless"]:
            found.setdefault(row["topic"], []).append((row["records"], row["keys"]))
    return found


def _ranked(top: Sequence[Row], topics: Sequence[Row]) -> list[Row]:
    """Keys by records, as words and in hexadecimal, with their share of the topic's records."""
    totals = {row["topic"]: row["records"] for row in topics}
    return [
        {
            "topic": row["topic"], "key": text_of(row["key"]), "key_hex": row["key"].hex(),
            "records": row["records"], "bytes": row["bytes"],
            "share": round(row["records"] / totals[row["topic"]], 6),
        }
        for row in sorted(top, key=lambda row: (-row["records"], row["topic"], row["key"]))
    ]  # fmt: skip


def _arrow(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows))


def _subtitle(scope: Scope, rows: Sequence[Row]) -> str:
    firsts = [row["first_ms"] for row in rows if row["records"]]
    lasts = [row["last_ms"] for row in rows if row["records"]]
    return (
        f"{scope.words()}, {plots.span_text(min(firsts, default=None), max(lasts, default=None))}"
    )


def _sentences(topics: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    records, payload, stored = (
        sum(row[name] for row in rows) for name in ("records", "bytes", "stored_bytes")
    )
    sentences = [
        f"{records:,} records ({number(records)}) with {size(payload)} in keys and values; "
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
