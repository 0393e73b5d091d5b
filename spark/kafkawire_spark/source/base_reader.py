"""Base of batch and stream readers: plans the tasks that Spark runs, and opens the catalog.

Runs in Spark's planning processes; `BaseReader.read` runs in its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kafkawire.reading.limits import SourceOptionError
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import PartitionRange, Source, Task
from kafkawire_spark.source.options import SourceOptions
from kafkawire_spark.source.worker_errors import hide_traceback

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkawire.reading.catalog import SourceCatalog
    from kafkawire.reading.files.locations import Place


def select_columns(schema: StructType) -> Selection:
    """Return the columns of a schema. Raises SourceOptionError for an unknown one, or one of
    another type."""
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
    """Input of one Spark task."""

    def __init__(self, task: Task, places: Sequence[Place]) -> None:
        self.task, self.places = task, tuple(places)


@hide_traceback
class BaseReader:
    """Base of the batch and the stream reader that Spark uses: plans tasks, and reads them with
    `read_task`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self.selection = select_columns(schema)

    def plan(
        self, catalog: SourceCatalog, wanted: Sequence[PartitionRange]
    ) -> list[InputPartition]:
        """Return tasks for ranges, in the order of topic, partition and offset."""
        from kafkawire.reading.plan import plan_tasks

        options = self.options
        if options.max_records:
            # Each range is then a separate task, however small.
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
        """Read in a task. Spark passes an empty partition to a reader without tasks."""
        from kafkawire.reading.read_task import read_task

        if isinstance(partition, TaskPartition):
            yield from read_task(
                self.options.source, partition.places, partition.task, self.selection
            )


def _pieces(whole: PartitionRange, most: int) -> Iterator[PartitionRange]:
    """Split a range into equal pieces of at most this many offsets."""
    offsets = whole.end - whole.base
    count = -(-offsets // most)
    for index in range(count):
        yield whole._replace(
            base=whole.base + offsets * index // count,
            end=whole.base + offsets * (index + 1) // count,
        )


_opened: dict[Source, tuple[SourceCatalog, float]] = {}
OPENED_MAX = 2
"""Catalogs cached by a planning process, which Spark reuses: a manifest may have 100 MB."""


def open_current(source: Source, within_s: float = 0.0) -> SourceCatalog:
    """Return the current catalog, or one at most `within_s` seconds old. If this process has opened
    it before, only new parts are read."""
    from kafkawire.reading.catalog import open_catalog

    known, scanned_at = _opened.pop(source, (None, 0.0))
    if known is None:
        known = open_catalog(source)
        scanned_at = time.monotonic()
    elif time.monotonic() - scanned_at > within_s:
        known = known.refresh_catalog()
        scanned_at = time.monotonic()
    while len(_opened) >= OPENED_MAX:
        del _opened[next(iter(_opened))]
    _opened[source] = known, scanned_at
    return known
