"""Dead letters: records that cannot be converted, kept once each with their position and the
reason.

They are Parquet files in the folder `job=NAME/` of the job's `[dead_letter] path`, named like the
table's files. A run's record lists them, so they are committed with the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.jobs.layout import DEAD_SCHEMA, escape, file_path
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FileFacts
from kafkawire_spark.pipeline.tables.parquet import Encoding, ParquetFile

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place


def folder_of(job: str) -> str:
    """Return the path of a job's dead letters, from the root of their location."""
    return f"job={escape(job)}/"


def open_dead_letters(url: str) -> Place:
    """Return the location of dead letters without reading anything. Raises PlaceError for an
    invalid URL."""
    from kafkawire.reading.files.open import open_place

    return open_place(url, "dead letter location")


class DeadLetters:
    """The dead letters of one task. `records`: number by topic and partition, damaged ranges not
    counted."""

    def __init__(self, number: int, place: Place | None, job: str, encoding: Encoding) -> None:
        self._number, self._place, self._job, self._encoding = number, place, job, encoding
        self._files: dict[PartitionRange, ParquetFile] = {}
        self.records: dict[tuple[str, int], int] = {}

    def add(self, part: PartitionRange, batch: pa.RecordBatch) -> None:
        """Add records of `part`, with `_reason`. Raises JobError if the job has no location for
        them."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        if self._place is None:
            offset, reason = columns["_offset"][0].as_py(), columns["_reason"][0].as_py()
            raise JobError(
                f"offset {offset} of {part.topic}-{part.partition} has no place in the table: "
                f"{reason}; with a path in [dead_letter] it goes there"
            )
        rows = batch.num_rows
        columns["_end"] = pc.add(columns["_offset"], pa.scalar(1, pa.int64()))
        columns["_topic"] = pa.repeat(pa.scalar(part.topic), rows)
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows)
            for field in DEAD_SCHEMA
        ]
        self._file(part).add(pa.RecordBatch.from_arrays(arrays, names=DEAD_SCHEMA.names))
        key = (part.topic, part.partition)
        self.records[key] = self.records.get(key, 0) + rows

    def add_damaged(
        self, part: PartitionRange, base: int, end: int, reason: str, data: bytes
    ) -> None:
        """Add an unreadable range, as one row with its bytes."""
        row = (part.topic, part.partition, base, end, None, reason, None, data)
        arrays = [pa.array([v], field.type) for v, field in zip(row, DEAD_SCHEMA, strict=True)]
        self._file(part).add(pa.RecordBatch.from_arrays(arrays, schema=DEAD_SCHEMA))

    def finish(self, is_done: Callable[[], bool]) -> tuple[FileFacts, ...]:
        """Write the files, unless the task `is_done` by another."""
        found = []
        for part, file in self._files.items():
            assert self._place is not None
            # Every attempt has the same name: files of an interrupted run are overwritten, or
            # removed.
            name = file_path(part, (), self._number, kind="r", attempt="")
            path = f"{folder_of(self._job)}{name}"
            data, stats = file.close()
            if not is_done():
                self._place.put(path, data)
            found.append(FileFacts(path, file.rows, len(data), *part, (), self._number, stats))
        return tuple(found)

    def _file(self, part: PartitionRange) -> ParquetFile:
        if part not in self._files:
            self._files[part] = ParquetFile(DEAD_SCHEMA, self._encoding, {})
        return self._files[part]
