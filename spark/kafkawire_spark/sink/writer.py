"""`df.write.format("kafkawire")` and `writeStream`: rows written to topics, exactly once.

Spark creates a writer in a Python worker next to the driver, runs `write` in each task, and then
`commit` next to the driver, with the results of the successful tasks. A task knows the streaming
query and the number of its micro-batch from Spark's local properties.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafkawire_spark.sink.options import ID_PREFIX, SinkError, SinkOptions
from kafkawire_spark.sink.staging import (
    StagedPart,
    StagingWriter,
    abort_batch,
    discard,
    keep_in_open_batch,
    open_batch,
)
from kafkawire_spark.source.worker_errors import hide_traceback

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkawire.reading.files.locations import Place
    from kafkawire_spark.sink.transaction import BatchIdentity

QUERY_PROPERTY = "sql.streaming.queryId"
"""Spark's local property with the id of a streaming query, which its checkpoint keeps."""

logger = logging.getLogger("kafkawire_spark")

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_IGNORED = ("offset", "timestampType")
"""Columns of the source that a topic gives itself."""


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """Result of a task. `query`: id of the streaming query."""

    parts: tuple[StagedPart, ...]
    query: str = ""


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check that rows of a schema can be written. Raises SinkError."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in types.items():
        if name in _IGNORED:
            continue
        if name not in _TYPES:
            known = ", ".join((*_TYPES, *_IGNORED))
            raise SinkError(f"records have no column {name!r}; the columns are {known}")
        if kind not in _TYPES[name]:
            raise SinkError(f"the column {name} is {kind}, not {' or '.join(_TYPES[name])}")
    if "value" not in types:
        raise SinkError("there is no column value")
    if not options.topic and "topic" not in types:
        raise SinkError("give the option topic, or a column topic")


@hide_traceback
class SinkWriter:
    """Base of the batch and the stream writer. `prefix`: of staged files, "" for the query's id."""

    def __init__(self, options: SinkOptions, schema: StructType, prefix: str = "") -> None:
        check_schema(schema, options)
        self.options, self._prefix = options, prefix

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Encode and stage the rows of a task."""
        from pyspark import TaskContext

        from kafkawire_spark.sink.rows import (
            Partitioner,  # imports numba
            RowEncoder,
        )
        from kafkawire_spark.sink.transaction import SinkConnection

        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query = context.getLocalProperty(QUERY_PROPERTY) or ""
        connection = SinkConnection(self.options.bootstrap)
        try:
            partitioner = Partitioner(connection.partitions, context.partitionId())
            staged = StagingWriter(self._place(), self._prefix or query)
            parts = RowEncoder(self.options, partitioner, staged).encode(iterator)
        finally:
            connection.close()
        if self._prefix:
            keep_in_open_batch(self._place(), self._prefix, parts)
        return StagedRows(parts, query)

    def _place(self) -> Place | None:
        from kafkawire.reading.files.open import open_place

        return open_place(self.options.staging) if self.options.staging else None

    def _commit(
        self, identity: BatchIdentity, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        from kafkawire.reading.files.locations import PlaceError
        from kafkawire_spark.sink.transaction import SinkConnection, SinkTransaction

        staged = _select_staged(messages)
        if len(staged) < len(messages):
            raise SinkError(f"{len(messages) - len(staged)} tasks returned nothing to commit")
        parts = [part for rows in staged for part in rows.parts]
        place, connection = self._place(), SinkConnection(self.options.bootstrap)
        try:
            written = SinkTransaction(connection, self.options, identity, place).commit(parts)
        finally:
            connection.close()
        if not written:
            logger.info(
                "micro-batch %s of %s is committed already: it is not written again",
                identity.number, identity.transactional_id,
            )  # fmt: skip
        try:
            discard(place, [self._prefix or identity.query])
        except PlaceError as failure:
            logger.warning("staged files of a committed batch are left: %s", failure)


def _select_staged(messages: Iterable[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the results of tasks, without those of failed ones."""
    return [each for each in messages if isinstance(each, StagedRows)]


@hide_traceback
class BatchWriter(SinkWriter, DataSourceArrowWriter):
    """Writes a batch in one transaction."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema, prefix=f"batch-{uuid.uuid4().hex}")
        open_batch(self._place(), self._prefix)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from kafkawire_spark.sink.transaction import BatchIdentity

        who = self.options.transactional_id or f"{ID_PREFIX}{self._prefix}"
        self._commit(BatchIdentity(who, self.options.batch_id), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete staged files; nothing was sent to a broker."""
        abort_batch(self._place(), self._prefix)


@hide_traceback
class StreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """Writes each micro-batch in one transaction."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Write all rows, unless they are written already."""
        from kafkawire_spark.sink.transaction import BatchIdentity

        query = next((rows.query for rows in _select_staged(messages) if rows.query), "")
        if not query:
            raise SinkError("Spark did not pass the id of the streaming query to its tasks")
        who = self.options.transactional_id or f"{ID_PREFIX}{query}"
        self._commit(BatchIdentity(who, batchId, query), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete staged files; nothing was sent to a broker."""
        discard(self._place(), {rows.query for rows in _select_staged(messages)} - {""})
