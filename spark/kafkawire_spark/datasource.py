"""`spark.read.format("kafkawire")`: topics as a table; and the entry to writing them (sink.writer).

Spark creates the source in a Python worker next to the driver and gets its schema, then for each
query a reader with its partitions, one for each task; the tasks run `read` in their own workers.
Spark plans a loaded frame once: its later queries read the same offsets; load it again to read new
records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from kafkawire.reading.model.columns import KEY
from kafkawire.reading.model.source import SourceError
from kafkawire.reading.pushdown import Pruning
from kafkawire_spark.source.base_reader import BaseReader, open_current
from kafkawire_spark.source.options import SourceOptions, parse_options
from kafkawire_spark.source.ranges import batch_ranges
from kafkawire_spark.source.stream import RefusedStream, StreamReader
from kafkawire_spark.source.worker_errors import hide_traceback, worker_module

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from kafkawire_spark.sink.options import SinkOptions

logger = logging.getLogger("kafkawire_spark")
_PLANS_WITH_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"


@hide_traceback
class KafkawireSource(DataSource):
    """Data source for `spark.dataSource.register`. The options:
    `kafkawire_spark.source.options`."""

    @classmethod
    def name(cls) -> str:
        return "kafkawire"

    def schema(self) -> str:
        """Return the schema selected by `columns` and `includeHeaders`."""
        return parse_options(self.options).selection.ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader; `schema` may be a part of the columns, in any order."""
        options = self._options(streaming=False)
        pushed = options.push_filters and _plans_with_filters()
        return FilteringReader(options, schema) if pushed else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader, which raises the errors of its options and schema when it is
        called."""
        try:
            return StreamReader(self._options(streaming=True), schema)
        except SourceError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer. Raises SinkError."""
        from kafkawire_spark.sink.writer import BatchWriter

        return BatchWriter(self._sink_options(overwrite, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a stream writer. Raises SinkError."""
        from kafkawire_spark.sink.writer import StreamWriter

        return StreamWriter(self._sink_options(overwrite, streaming=True), schema)

    def _sink_options(self, overwrite: bool, *, streaming: bool) -> SinkOptions:
        from kafkawire_spark.sink.options import SinkError, parse_options

        if overwrite:
            raise SinkError('a topic cannot be overwritten: use mode("append")')
        options = parse_options(self.options, streaming=streaming)
        _warn_unused(options.unused)
        return options

    def _options(self, *, streaming: bool) -> SourceOptions:
        options = parse_options(self.options, streaming=streaming)
        _warn_unused(options.unused)
        return options


def _warn_unused(names: Sequence[str]) -> None:
    if names:
        logger.warning("nothing here uses the options %s", ", ".join(names))


def _plans_with_filters() -> bool:
    """Return True if this process plans with filters.

    If spark.sql.python.filterPushdown.enabled is off, Spark rejects a reader with `pushFilters`.
    The setting is not visible here, but Spark plans with filters in workers of a separate module.
    """
    return worker_module() == _PLANS_WITH_FILTERS


@hide_traceback
class BatchReader(BaseReader, DataSourceReader):
    """Plans and reads a batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        catalog = open_current(self.options.source)
        wanted = batch_ranges(catalog, self.options)
        wanted = self.pruning.prune_ranges(wanted, catalog.offsets_for_times)
        if self.pruning.keys is not None:
            # Imported here, because tasks import this module too.
            from kafkawire.reading.files.key_index import KeyIndexBlocks
            from kafkawire.reading.key_filter import ranges_with_keys

            parts = catalog.parts(wanted)
            keys = self.pruning.keys
            wanted = ranges_with_keys(catalog.places, parts, keys, KeyIndexBlocks())
        return self.plan(catalog, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read in a task; only rows with the keys of a filter."""
        from kafkawire.reading.key_filter import rows_with_keys

        batches = super().read(partition)
        keys = self.pruning.keys
        if keys is None:
            return batches
        names = {column.kind: column.name for column in self.selection.fields()}
        return rows_with_keys(batches, names[KEY], keys)


@hide_traceback
class FilteringReader(BatchReader):
    """A batch reader to which Spark pushes filters."""

    def pushFilters(self, filters: list[Filter]) -> list[Any]:
        kinds = {column.name: column.kind for column in self.selection.fields()}
        return self.pruning.push(filters, kinds)
