"""The end of each partition at each time, for the computation of lag.

The end at a time is the first offset of a later record, as in ListOffsets. So tasks keep, for each
bucket of time, the first offset of a record of that time; another task merges the results of a
partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkawire.reading.model.columns import OFFSET, TIMESTAMP
from kafkawire.reading.model.source import Source, Task
from kafkawire_spark.measures import BUCKETS
from kafkawire_spark.reports.buckets import Buckets
from kafkawire_spark.reports.runs import milliseconds, runs
from kafkawire_spark.reports.scope import Rows, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place

DDL = (
    "topic STRING, partition INT, newest BIGINT, level INT, starts ARRAY<BIGINT>, "
    "counts ARRAY<BIGINT>, firsts ARRAY<BIGINT>"
)
ROOM = BUCKETS + 16
"""Number of buckets: as many as the steps of a plot, so they are never wider."""
Row = dict[str, Any]


class BucketEnds:
    """The first offset of each bucket, and the newest time, of a partition or a range of it."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition, self.newest = topic, partition, -1
        self.buckets = Buckets(np.minimum, ROOM)

    def add(self, offsets: Any, stamps: Any) -> None:
        """Add records; times in ms."""
        if len(stamps):
            self.newest = max(self.newest, int(stamps.max()))
            self.buckets.add(stamps, offsets)

    def merge(self, row: Mapping[str, Any]) -> None:
        """Add the result of another range (DDL)."""
        self.newest = max(self.newest, row["newest"])
        self.buckets.merge(row["level"], row["starts"], row["counts"], row["firsts"])

    def row(self) -> Row:
        """Return the row (DDL)."""
        found = self.buckets
        return {
            "topic": self.topic, "partition": self.partition, "newest": self.newest,
            "level": found.level, "starts": found.starts.tolist(),
            "counts": found.records.tolist(), "firsts": found.values.tolist(),
        }  # fmt: skip


def finder(first: int, until: int) -> Work:
    """Return the work of the tasks: a row for each partition in a task. Only times in [first,
    until] (ms) are used: older ones are below every end needed, newer ones are in the future."""

    def find(source: Source, places: Sequence[Place], task: Task) -> Iterator[Rows]:
        every = runs(source, places, task, (OFFSET, TIMESTAMP))
        for (topic, partition), own in groupby(every, key=lambda run: (run.topic, run.partition)):
            ends = BucketEnds(topic, partition)
            for run in own:
                offsets, stamps = run.columns
                times = milliseconds(stamps)
                counted = (times >= first) & (times <= until)
                ends.add(offsets.to_numpy(zero_copy_only=False)[counted], times[counted])
            yield [ends.row()]

    return find


def merge_ends(rows: Iterator[Mapping[str, Any]]) -> Iterator[Row]:
    """Merge rows of ranges, sorted by topic, to one for each partition."""
    for topic, own in groupby(rows, key=itemgetter("topic")):
        whole: dict[int, BucketEnds] = {}
        for row in own:
            number = row["partition"]
            whole.setdefault(number, BucketEnds(topic, number)).merge(row)
        for number in sorted(whole):
            yield whole[number].row()


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return one row for each bucket: topic, partition, start (ms), first (offset)."""
    import pyarrow as pa

    each = [(row, bucket) for row in rows for bucket in range(len(row["starts"]))]
    return pa.table(
        {
            "topic": pa.array([row["topic"] for row, _ in each], pa.string()),
            "partition": pa.array([row["partition"] for row, _ in each], pa.int32()),
            "start": pa.array([row["starts"][bucket] for row, bucket in each], pa.int64()),
            "first": pa.array([row["firsts"][bucket] for row, bucket in each], pa.int64()),
        }
    )
