"""What a report is on: which topics, which offsets of each partition, read by which tasks.

The offsets are fixed once, when the report begins, so that all its jobs speak of the same records.
Reading is either `records` (the data source: rows in no order, for SQL) or `scan` (a function for
each task, where the order within a partition or the account of its offsets matters).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kafkawire.spark.mapping import map_in_arrow
from kafkawire.spark.model import OffsetRange, Part, Source, SourceError, Task
from kafkawire.spark.plan import plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.spark.catalog import Catalog
    from kafkawire.spark.places import Place

Rows = list[dict[str, Any]]
Work = Callable[[Source, Sequence["Place"], Task], Iterator[Rows]]
"""What a task does with its Task: it gives rows, a few for each range, never one for a record."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. No topics: all. Times in ms since 1970: from the first record not older
    than `since`, up to the first that is not older than `until`, as ListOffsets finds them."""

    source: Source
    topics: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None


class Scope:
    """The offsets of all partitions that were asked for, empty ones too."""

    def __init__(self, request: Request, catalog: Catalog, *, internal: bool) -> None:
        self.request = request
        self.catalog = catalog
        self.topics = _topics(request, catalog, internal)
        self.ranges = [
            self.range_of(topic, partition)
            for topic in self.topics
            for partition in range(catalog.topics[topic])
        ]

    def close(self) -> None:
        """End the connections of the catalog."""
        self.catalog.close()

    def range_of(self, topic: str, partition: int) -> OffsetRange:
        """[first, end) of the time that was asked for, or of all there is."""
        start, _, end = self.catalog.bounds(topic, partition)
        first = self._at(topic, partition, self.request.since, end, start)
        last = self._at(topic, partition, self.request.until, end, end)
        return OffsetRange(topic, partition, max(start, min(first, last)), last)

    def _at(self, topic: str, partition: int, ms: int | None, end: int, without: int) -> int:
        if ms is None:
            return without
        found = self.catalog.offset_for_time(topic, partition, ms)
        return end if found is None else found

    @cached_property
    def parts(self) -> list[Part]:
        """Where those lie that have any offsets."""
        return self.catalog.parts([each for each in self.ranges if each.end > each.base])

    @property
    def offsets(self) -> int:
        """How many there are in all; 0: nothing to report on."""
        return sum(range_.end - range_.base for range_ in self.ranges)

    def words(self) -> str:
        """Source and size, for titles."""
        where = self.request.source.url or self.request.source.bootstrap
        return f"{where}: {_several(len(self.topics), 'topic')}, " + _several(
            len(self.ranges), "partition"
        )

    def records(
        self, spark: SparkSession, columns: str, ranges: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """The records of these ranges (all, if none are given) through `format("kafkawire")`."""
        wanted = self.ranges if ranges is None else ranges
        source = self.request.source
        reader = spark.read.format("kafkawire").option("source", source.url or source.bootstrap)
        if source.url and source.bootstrap:
            reader = reader.option("kafka.bootstrap.servers", source.bootstrap)
        assigned: dict[str, list[int]] = {}
        starting: dict[str, dict[str, int]] = {}
        ending: dict[str, dict[str, int]] = {}
        for topic, partition, base, end in wanted:
            assigned.setdefault(topic, []).append(partition)
            starting.setdefault(topic, {})[str(partition)] = base
            ending.setdefault(topic, {})[str(partition)] = end
        return (
            reader.option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(starting))
            .option("endingOffsets", json.dumps(ending))
            .option("columns", columns)
            .load()
        )

    def oldest(self, spark: SparkSession) -> int:
        """The least timestamp (ms) of the first records of all partitions; 0 without any. Enough
        to choose a scale by, and only a record of each is read."""
        some = [range_ for range_ in self.ranges if range_.end > range_.base]
        return self._extreme(spark, [r._replace(end=r.base + 1) for r in some], min)

    def newest(self, spark: SparkSession, ranges: Sequence[OffsetRange] | None = None) -> int:
        """The largest timestamp (ms) of the last records of these ranges, or of all."""
        wanted = self.ranges if ranges is None else ranges
        some = [range_ for range_ in wanted if range_.end > range_.base]
        return self._extreme(spark, [r._replace(base=r.end - 1) for r in some], max)

    def _extreme(
        self, spark: SparkSession, ranges: Sequence[OffsetRange], which: Callable[[Any], int]
    ) -> int:
        if not ranges:
            return 0
        asked = "SELECT unix_millis(min(timestamp)), unix_millis(max(timestamp)) FROM {some}"
        (row,) = spark.sql(asked, some=self.records(spark, "timestamp", ranges)).collect()
        found = [value for value in row if value is not None]
        return which(found) if found else 0

    def scan(self, spark: SparkSession, work: Work, ddl: str) -> DataFrame:
        """What `work` gives for each task: it runs there, once for each, and may run again.
        `ddl`: the schema of its rows. Raises SourceError where there is nothing to read."""
        tasks = plan_tasks(self.parts, min_tasks=spark.sparkContext.defaultParallelism)
        if not tasks:
            raise SourceError("there is nothing to read")
        places = self.catalog.places
        source = self.catalog.source
        schema = _arrow_schema(ddl)

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyarrow import RecordBatch

            for batch in numbers:
                for index in batch.column(0).to_pylist():
                    for rows in work(source, places, tasks[index]):
                        yield RecordBatch.from_pylist(rows, schema)

        return map_in_arrow(spark.range(0, len(tasks), 1, len(tasks)), run, ddl)


def _arrow_schema(ddl: str) -> pa.Schema:
    """What Spark expects of a task that gives rows of this schema. On the driver only: Java parses
    it."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = StructType.fromDDL(ddl)
    assert isinstance(struct, StructType)
    return to_arrow_schema(struct)


def _topics(request: Request, catalog: Catalog, internal: bool) -> list[str]:
    for name in request.topics:
        if name not in catalog.topics:
            known = sorted(catalog.topics)
            said = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise SourceError(f"there is no topic {name!r}; there are {said or 'none at all'}")
    if request.topics:
        return sorted(set(request.topics))
    return sorted(name for name in catalog.topics if internal or not catalog.facts(name).internal)


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
