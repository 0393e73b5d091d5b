"""Results of tasks for the report of sizes, merged into one row for each topic.

A task returns only sums: for each topic its partitions, records and bytes by bucket of time, and a
summary of its keys. Another task merges the results of a topic. No record, key or value passes
through Java or the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.reading.model.columns import KEY, TIMESTAMP, VALUE_SIZE
from kafkawire.reading.model.source import Source, Task
from kafkawire_spark.measures import gini
from kafkawire_spark.reports.buckets import Buckets
from kafkawire_spark.reports.keys import Keys, thin_curve
from kafkawire_spark.reports.runs import RecordRun, milliseconds, runs
from kafkawire_spark.reports.scope import Rows

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

TOP = 20
"""Number of keys per topic: those with the most records, and those with the most bytes."""
_PARTITIONS = (
    "ARRAY<STRUCT<partition: INT, records: BIGINT, bytes: BIGINT, timeless: BIGINT, "
    "first_ms: BIGINT, last_ms: BIGINT>>"
)
_TIMES = "level INT, starts ARRAY<BIGINT>, counts ARRAY<BIGINT>, sums ARRAY<BIGINT>, keyless BIGINT"
FOUND_DDL = f"topic STRING, partitions {_PARTITIONS}, {_TIMES}, packed BINARY"
TOPIC_DDL = (
    f"topic STRING, partitions {_PARTITIONS}, {_TIMES}, keys BIGINT, sampled BIGINT, gini DOUBLE, "
    "curve_records ARRAY<DOUBLE>, curve_keys ARRAY<BIGINT>, "
    "top ARRAY<STRUCT<text: BINARY, length: INT, records: BIGINT, bytes: BIGINT, "
    "records_off: BIGINT, bytes_off: BIGINT>>"
)
Row = dict[str, Any]


class Tally:
    """Sums of a topic, or of a task's share of it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: dict[int, Row] = {}
        self.times = Buckets()
        self.keys = Keys()
        self.keyless = 0

    def add(self, run: RecordRun) -> None:
        """Add records: columns TIMESTAMP, KEY and VALUE_SIZE of one partition."""
        import pyarrow.compute as pc

        stamps, keys, sizes = run.columns
        stamps = milliseconds(stamps)
        sizes = sizes.to_numpy(zero_copy_only=False).astype(np.int64)
        sizes += pc.fill_null(pc.binary_length(keys), 0).to_numpy(zero_copy_only=False)
        timed = stamps >= 0
        row = {"partition": run.partition, "records": len(stamps), "bytes": int(sizes.sum()),
               "timeless": 0, "first_ms": None, "last_ms": None}  # fmt: skip
        if keys.null_count:
            self.keyless += keys.null_count
            self.keys.add(keys.drop_null(), sizes[keys.is_valid().to_numpy(zero_copy_only=False)])
        else:
            self.keys.add(keys, sizes)
        if not timed.all():
            row["timeless"] = int((~timed).sum())
            stamps, sizes = stamps[timed], sizes[timed]
        if len(stamps):
            row |= {"first_ms": int(stamps.min()), "last_ms": int(stamps.max())}
            self.times.add(stamps, sizes)
        self._partition(row)

    def merge(self, row: Mapping[str, Any]) -> None:
        """Add the result of a task (FOUND_DDL)."""
        for partition in row["partitions"]:
            self._partition(partition)
        self.times.merge(row["level"], row["starts"], row["counts"], row["sums"])
        self.keys.merge(row["packed"])
        self.keyless += row["keyless"]

    def _partition(self, row: Row) -> None:
        known = self.partitions.setdefault(row["partition"], row)
        if known is row:
            return
        for name in ("records", "bytes", "timeless"):
            known[name] += row[name]
        for name, better in (("first_ms", min), ("last_ms", max)):
            values = [value for value in (known[name], row[name]) if value is not None]
            known[name] = better(values, default=None)

    def make_partial_row(self) -> Row:
        """Return a row (FOUND_DDL) for another task to merge."""
        return {**self._common(), "packed": self.keys.pack()}

    def make_topic_row(self) -> Row:
        """Return a row (TOPIC_DDL) of a whole topic."""
        records, keys = self.keys.curve()
        short, many = thin_curve(records, keys)
        return {
            **self._common(),
            "keys": int(keys.sum()),
            "sampled": int(self.keys.compute_sample_mask().sum()) if self.keys.level else 0,
            "gini": gini(zip(records.tolist(), keys.tolist(), strict=True)),
            "curve_records": short.tolist(), "curve_keys": many.tolist(),
            "top": [top._asdict() for top in self.keys.top(TOP)],
        }  # fmt: skip

    def _common(self) -> Row:
        times = self.times
        return {
            "topic": self.topic, "partitions": list(self.partitions.values()),
            "level": times.level, "starts": times.starts.tolist(),
            "counts": times.records.tolist(), "sums": times.values.tolist(),
            "keyless": self.keyless,
        }  # fmt: skip


def tally(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
    """Return the work of a task: a row (FOUND_DDL) for each topic."""
    every = runs(source, places, task, (TIMESTAMP, KEY, VALUE_SIZE))
    for topic, own in groupby(every, key=lambda run: run.topic):
        found = Tally(topic)
        for run in own:
            found.add(run)
        yield [found.make_partial_row()]


def merge_tallies(rows: Iterator[Mapping[str, Any]]) -> Iterator[Row]:
    """Merge rows of tasks (FOUND_DDL), sorted by topic, to a row (TOPIC_DDL) for each topic."""
    for topic, own in groupby(rows, key=itemgetter("topic")):
        whole = Tally(topic)
        for row in own:
            whole.merge(row)
        yield whole.make_topic_row()
