"""`spark.readStream.format("kafkawire")`: topics as a stream of micro batches.

One process next to the driver returns offsets and partitions as long as the query runs. Repeated
calls, as after a restart from a checkpoint, return the same, so each offset is in exactly one micro
batch. New partitions, and new topics of a pattern, are added while it runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kafkawire_spark.source.base_reader import BaseReader, open_current
from kafkawire_spark.source.ranges import (
    Positions,
    begin_at,
    ends_of,
    from_json,
    limit_offsets,
    list_subscribed_partitions,
    resolve,
    stream_ranges,
    to_json,
    waiting,
)
from kafkawire_spark.source.worker_errors import hide_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafkawire.reading.catalog import SourceCatalog
    from kafkawire.reading.model.source import SourceError
    from kafkawire_spark.source.options import SourceOptions

Offsets = dict[str, Any]
CHECK_INTERVAL_S = 1.0
"""Minimum interval of checks: Spark calls for the newest offsets a hundred times a second while
there is nothing new. A check costs a bucket three requests, one dollar a month at this interval."""


@hide_traceback
class StreamReader(BaseReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro batches. Tasks create their own from the options."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Positions | None = None
        self._latest: Positions = {}
        self._looked: SourceCatalog | None = None
        self._began_at = float("-inf")  # the last micro batch, for minOffsetsPerTrigger

    def initialOffset(self) -> Offsets:
        """Return the start of a query without a checkpoint."""
        catalog, options = open_current(self.options.source), self.options
        partitions = list_subscribed_partitions(catalog, options.subscription)
        found = resolve(catalog, options.starting, partitions, options, starting=True)
        return to_json({key: begin_at(catalog, key, offset) for key, offset in found.items()})

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next micro batch: `start` again if there is nothing to read."""
        known, catalog = from_json(start), open_current(self.options.source, CHECK_INTERVAL_S)
        latest = self._ends(catalog) if self._target is None else self._target
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        if self._is_too_little(known, latest):
            return start
        if isinstance(limit, ReadMaxRows):
            return to_json(limit_offsets(catalog, known, latest, limit.max_rows))
        return to_json(latest)

    def _ends(self, catalog: SourceCatalog) -> Positions:
        if catalog is not self._looked:
            self._latest, self._looked = ends_of(catalog, self.options.subscription), catalog
        return self._latest

    def _is_too_little(self, known: Positions, latest: Positions) -> bool:
        """Return True to wait for minOffsetsPerTrigger; not beyond a fixed end, after which no more
        records are read."""
        now, options = time.monotonic(), self.options
        is_patient = now - self._began_at < options.max_trigger_delay_ms / 1000
        if self._target is None and is_patient and waiting(known, latest) < options.min_offsets:
            return True
        self._began_at = now
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of maxOffsetsPerTrigger and minOffsetsPerTrigger. Spark does not support
        both: the lower one is always checked here."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        return (
            ReadMinRows(self.options.min_offsets)
            if self.options.min_offsets
            else ReadAllAvailable()
        )

    def reportLatestOffset(self) -> Offsets | None:
        """Return the latest offsets for the query's progress, as of the last check."""
        return to_json(self._latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current end offsets as the end of the query."""
        self._target = self._ends(open_current(self.options.source))

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the tasks of a micro batch; none if it is empty."""
        first, last = from_json(start), from_json(end)
        if first == last:
            return []
        catalog = open_current(self.options.source, CHECK_INTERVAL_S)
        return self.plan(catalog, stream_ranges(catalog, first, last))


@hide_traceback
class RefusedStream(DataSourceStreamReader):
    """A reader that cannot be created: any call raises the error. PySpark loses one that is raised
    while it creates a reader, because it then stops the reader that it does not have."""

    def __init__(self, error: SourceError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> NoReturn:
        raise self._error

    def partitions(self, start: Offsets, end: Offsets) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error
