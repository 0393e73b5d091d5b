"""`spark.read.format("kafkawire")`: topics as a table.

Spark makes the source in a Python worker beside the driver, asks it for a schema, and for each
query asks a reader for partitions, one for each task; the tasks run `read` in their own workers.
So nothing that planning needs is imported before it plans, and what goes to the tasks is small.
Spark plans a loaded frame once: its later queries read up to the same offsets; load it again to see
what is new.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from kafkawire.spark.source.columns import Selection
from kafkawire.spark.source.limits import SourceOptionError
from kafkawire.spark.source.model import PartitionRange, Source, Task
from kafkawire.spark.source.options import SourceOptions, parse_options
from kafkawire.spark.source.pushdown import Pruning
from kafkawire.spark.source.ranges import batch_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from kafkawire.spark.source.catalog import SourceCatalog
    from kafkawire.spark.source.files.locations import Place

logger = logging.getLogger("kafkawire.spark")
_PLANS_WITH_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"


class KafkawireSource(DataSource):
    """What `spark.dataSource.register` takes. The options: `kafkawire.spark.source.options`."""

    @classmethod
    def name(cls) -> str:
        return "kafkawire"

    def schema(self) -> str:
        """Of the columns that `columns` and `includeHeaders` ask for."""
        return parse_options(self.options).selection.ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch; `schema` may be a part of the columns, in any order."""
        options = self._options(streaming=False)
        pushed = options.push_filters and _plans_with_filters()
        return FilteringReader(options, schema) if pushed else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kafkawire.spark.source.stream import StreamReader

        return StreamReader(self._options(streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """There is none. SourceOptionError."""
        raise SourceOptionError(
            'kafkawire is for reading: topics are written with format("kafka"), tables by '
            "kafkawire pipeline run"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Likewise."""
        self.writer(schema, overwrite)

    def _options(self, *, streaming: bool) -> SourceOptions:
        options = parse_options(self.options, streaming=streaming)
        if options.unused:
            logger.warning("nothing here uses the options %s", ", ".join(options.unused))
        return options


def _plans_with_filters() -> bool:
    """Whether this process plans with filters.

    Where spark.sql.python.filterPushdown.enabled is off, Spark refuses a reader that has
    `pushFilters` at all, and the setting is nowhere to be seen here; but it plans with filters in
    workers of a module of their own.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PLANS_WITH_FILTERS in (sys.argv[1:2] or [""]) + [getattr(main, "name", "")]


def selected(schema: StructType) -> Selection:
    """The columns of a schema. SourceOptionError for one that is none, or is of another type."""
    selection = Selection(tuple(field.name for field in schema.fields))
    for field, column in zip(schema.fields, selection.fields(), strict=True):
        wanted = column.ddl.lower().replace(" ", "")
        if field.dataType.simpleString() != wanted:
            raise SourceOptionError(
                f"the column {field.name} is {column.ddl}, "
                f"not {field.dataType.simpleString().upper()}: cast it after reading"
            )
    return selection


class TaskPartition(InputPartition):
    """What one Spark task reads, and where."""

    def __init__(self, task: Task, places: Sequence[Place]) -> None:
        self.task, self.places = task, tuple(places)


class TaskReader:
    """What batches and streams have in common: tasks, and how they are read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self.selection = selected(schema)

    def plan(
        self, catalog: SourceCatalog, wanted: Sequence[PartitionRange]
    ) -> list[InputPartition]:
        """Tasks for ranges, in the order of topic, partition and offset."""
        from kafkawire.spark.source.plan import plan_tasks

        options = self.options
        if options.max_records:
            # Each range is a task of its own then, however small.
            tasks = [
                Task((catalog.part(part),))
                for whole in wanted
                for part in _pieces(whole, options.max_records)
            ]
        else:
            parts = catalog.parts(each for each in wanted if each.base < each.end)
            tasks = plan_tasks(
                parts, task_bytes=options.task_bytes, min_tasks=max(1, options.min_partitions)
            )
        return [TaskPartition(task, catalog.places) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. Spark hands a partition of nothing to a reader that has none."""
        from kafkawire.spark.source.read_task import read_task

        if isinstance(partition, TaskPartition):
            yield from read_task(
                self.options.source, partition.places, partition.task, self.selection
            )


def _pieces(whole: PartitionRange, most: int) -> Iterator[PartitionRange]:
    """A range in equal pieces of at most so many offsets."""
    offsets = whole.end - whole.base
    count = -(-offsets // most)
    for index in range(count):
        yield whole._replace(
            base=whole.base + offsets * index // count,
            end=whole.base + offsets * (index + 1) // count,
        )


class BatchReader(TaskReader, DataSourceReader):
    """Plans and reads a batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        catalog = open_current(self.options.source)
        wanted = batch_ranges(catalog, self.options)
        return self.plan(catalog, self.pruning.of(wanted, catalog.offsets_for_times))


class FilteringReader(BatchReader):
    """A batch of which Spark says what is not wanted."""

    def pushFilters(self, filters: list[Filter]) -> list[Any]:
        kinds = {column.name: column.kind for column in self.selection.fields()}
        return self.pruning.push(filters, kinds)


_opened: dict[Source, tuple[SourceCatalog, float]] = {}
OPENED_MAX = 2
"""Catalogs kept by a process that plans, which Spark uses again: a manifest may be 100 MB."""


def open_current(source: Source, within_s: float = 0.0) -> SourceCatalog:
    """The catalog as it is now, or was `within_s` seconds ago at most. Where this process had it
    before only what is new is read."""
    from kafkawire.spark.source.catalog import open_catalog

    known, scanned_at = _opened.pop(source, (None, 0.0))
    if known is None:
        known = open_catalog(source)
        scanned_at = time.monotonic()
    elif time.monotonic() - scanned_at > within_s:
        known = known.refreshed()
        scanned_at = time.monotonic()
    while len(_opened) >= OPENED_MAX:
        del _opened[next(iter(_opened))]
    _opened[source] = known, scanned_at
    return known
