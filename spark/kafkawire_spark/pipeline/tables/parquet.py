"""A Parquet table: files under a path, and the records in `_kafkawire/` of the committed ones.

The record of a run is its commit. `ParquetTable.files()` is always consistent. A reader of the path
alone, `spark.read.parquet(path)`, sees the same rows while neither run nor compaction is in
progress. During a run it also sees complete files that are not committed yet (an object store shows
no partial file, and in a folder each is renamed into place). During a compaction it sees rows twice
from the creation of a merged file until its inputs are deleted. Readers that must not see that use
`files()`, or a Delta or Iceberg table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.runs import FileFacts, RunRecord
from kafkawire_spark.pipeline.jobs.state import SNAPSHOT_EVERY, TableSnapshot, TableState

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place


class ParquetTable:
    """A Parquet table, see kafkawire_spark.pipeline.tables.port.Table."""

    hides = False

    def __init__(self, job: Job, place: Place) -> None:
        self.place = place
        self._state = TableState(place)

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Do nothing: a Parquet table's columns are those of its files."""

    def exists(self) -> bool:
        return False

    def misfit(self, schema: pa.Schema, partition_columns: Sequence[str]) -> str:
        return ""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def committed(self) -> int:
        return self._state.last_record()

    def commit(self, record: RunRecord) -> None:
        self._state.put_record(record)
        if record.run % SNAPSHOT_EVERY == 0:
            self._snapshot(record.run)

    def compacted(self) -> int:
        number = self._state.hint().compaction
        while self._state.replaced(number + 1) is not None:
            number += 1
        return number

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """Write the record of the replacement, then delete the old files. File names are never
        reused, so repeating the call completes an interrupted one."""
        if number > self.compacted():
            self._state.put_replaced(number, [file.path for file in old], new)
        self.place.delete([file.path for file in old])

    def tidy(self) -> int:
        """Do nothing, see Table: there are no older states; `sweep` removes leftovers of
        compactions."""
        return 0

    def files(self) -> list[FileFacts]:
        return list(self._scan(self._state.hint().snapshot).files)

    def _scan(self, snapshot: int, upto: int | None = None) -> TableSnapshot:
        """Return the files after run `upto`, by default the last, starting from a snapshot."""
        state = self._state
        start = state.snapshot(snapshot) if snapshot else TableSnapshot(0, 0, ())
        files = {file.path: file for file in start.files}
        run, compaction = start.run, start.compaction
        for record in state.records(run + 1):
            if upto is not None and record.run > upto:
                break
            run = record.run
            files |= {file.path: file for file in record.files}
        while (replaced := state.replaced(compaction + 1)) is not None:
            if any(path not in files for path in replaced[0]):
                break  # replaces files of runs after `upto`
            for path in replaced[0]:
                del files[path]
            files |= {file.path: file for file in replaced[1]}
            compaction += 1
        return TableSnapshot(run, compaction, tuple(files.values()))

    def _snapshot(self, run: int) -> None:
        state, hint = self._state, self._state.hint()
        state.put_snapshot(self._scan(hint.snapshot, run))
        state.settled(hint._replace(snapshot=run))
