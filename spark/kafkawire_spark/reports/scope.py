"""Scope of a report: its topics, the offsets of each partition, and the tasks that read them.

Tasks aggregate what they read (`run_tasks`), so that few rows pass through Java; other tasks merge
the results of a topic (`merge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from kafkawire.progress import Progress, silent
from kafkawire.reading.model.source import PartitionRange, Source, SourceError, Task, TaskPart
from kafkawire.reading.plan import plan_tasks
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.watch import count_completed_tasks, run_with_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkawire.reading.catalog import SourceCatalog
    from kafkawire.reading.files.locations import Place

Rows = list[dict[str, Any]]
Work = Callable[[Source, Sequence["Place"], Task], "Iterator[Rows | pa.RecordBatch]"]
"""The work of a task: yields rows, a few for each range, or Arrow batches of them."""
T = TypeVar("T")
Make = Callable[[], T]
Merge = Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a report. No topics: all. Times in ms since 1970: from the first record not older
    than `since`, up to the first not older than `until`, as in ListOffsets."""

    source: Source
    topics: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None


class ReportScope:
    """The offsets of all requested partitions, empty ones too."""

    def __init__(
        self,
        request: Request,
        catalog: SourceCatalog,
        *,
        internal: bool,
        progress: Progress = silent,
    ) -> None:
        self.request = request
        self.catalog = catalog
        self._progress = progress
        self.now_ms = int(time.time() * 1000)
        """When the report began; later timestamps are in the future."""
        self.topics = _topics(request, catalog, internal)
        # Fixed here, so that all jobs of the report use the same records.
        self.ranges = self.ranges_of(
            [(topic, index) for topic in self.topics for index in range(catalog.topics[topic])]
        )

    def run_with_progress(
        self, spark: SparkSession, what: str, tasks: Sequence[Task], work: Make[T]
    ) -> T:
        """Return the result of `work`, which runs these tasks in Spark: reports their progress, and
        Ctrl-C cancels them."""
        context = spark.sparkContext
        self._progress(what, 0, len(tasks))

        def scan(group: str) -> None:
            self._progress(what, min(count_completed_tasks(context, group), len(tasks)), len(tasks))

        return run_with_progress(context, work, scan)

    def close(self) -> None:
        self.catalog.close()

    def ranges_of(self, places: Sequence[tuple[str, int]]) -> list[PartitionRange]:
        """Return [first, end) of these partitions for the requested time, or all."""
        bounds = [self.catalog.bounds(*place) for place in places]
        ends = [end for _, _, end in bounds]
        firsts = self._at(places, self.request.since, ends, [start for start, _, _ in bounds])
        lasts = self._at(places, self.request.until, ends, ends)
        return [
            PartitionRange(*place, max(start, min(first, last)), last)
            for place, (start, _, _), first, last in zip(places, bounds, firsts, lasts, strict=True)
        ]

    def _at(
        self,
        places: Sequence[tuple[str, int]],
        ms: int | None,
        ends: Sequence[int],
        without: Sequence[int],
    ) -> list[int]:
        if ms is None:
            return list(without)
        found = self.catalog.offsets_for_times([(*place, ms) for place in places])
        return [end if at is None else at for at, end in zip(found, ends, strict=True)]

    @cached_property
    def parts(self) -> list[TaskPart]:
        """Return the parts of non-empty ranges."""
        return self.catalog.parts([each for each in self.ranges if each.end > each.base])

    @property
    def offsets(self) -> int:
        """Return the number of offsets; 0: nothing to report on."""
        return sum(range_.end - range_.base for range_ in self.ranges)

    def words(self) -> str:
        """Return source and size, for titles."""
        where = self.request.source.url or self.request.source.bootstrap
        return f"{where}: {_several(len(self.topics), 'topic')}, " + _several(
            len(self.ranges), "partition"
        )

    def tasks(
        self, spark: SparkSession, ranges: Sequence[PartitionRange] | None = None
    ) -> list[Task]:
        """Return tasks that read these ranges, or all."""
        parts = self.parts if ranges is None else self.catalog.parts(list(ranges))
        return plan_tasks(parts, min_tasks=spark.sparkContext.defaultParallelism)

    def run_tasks(
        self, spark: SparkSession, tasks: Sequence[Task], work: Work, ddl: str
    ) -> DataFrame:
        """Return a data frame with the results of `work`, which runs in each task and may be
        retried. `ddl`: the schema of its rows. Raises SourceError if there is nothing to read."""
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
                        whole = isinstance(rows, RecordBatch)
                        yield rows if whole else RecordBatch.from_pylist(rows, schema)

        return map_in_arrow(spark.range(0, len(tasks), 1, len(tasks)), run, ddl)


def merge(found: DataFrame, work: Merge, ddl: str) -> DataFrame:
    """Merge rows of tasks by topic: `work` gets those of some topics, one topic after another.
    `ddl`: the schema of its results."""
    schema = _arrow_schema(ddl)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyarrow import RecordBatch

        for row in work(row for batch in batches for row in batch.to_pylist()):
            yield RecordBatch.from_pylist([row], schema)

    by_topic = found.repartition("topic").sortWithinPartitions("topic")
    return map_in_arrow(by_topic, run, ddl)


def _arrow_schema(ddl: str) -> pa.Schema:
    """Return the schema of the rows of a task for Spark. On the driver only, because Java parses
    it."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = StructType.fromDDL(ddl)
    if not isinstance(struct, StructType):  # Spark takes the name of a single type too
        raise TypeError(f"{ddl!r} is not a list of columns")
    return to_arrow_schema(struct)


def _topics(request: Request, catalog: SourceCatalog, internal: bool) -> list[str]:
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
