"""A Delta table, written with delta-rs, without Spark or a jar.

A run is one Delta commit with the run's number as the version of the application `kafkawire:JOB`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord
from kafkawire_spark.pipeline.tables.commit import (
    CommitError,
    Conflict,
    facts,
    is_next,
    properties,
    until_settled,
)
from kafkawire_spark.pipeline.tables.locations import delta_location

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place


_PLAIN_VERSIONS = (1, 2, 7)
_PLAIN_FEATURES = {"appendOnly", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features with which a data file has the rows and columns as they are, and nothing must be checked
or computed when it is added: no column mapping, constraints, row ids, change data."""


class DeltaTable:
    """A Delta table, see kafkawire_spark.pipeline.tables.port.Table.

    Merged files stay for readers of older versions until VACUUM, as in every Delta table.
    """

    hides = True

    def __init__(self, job: Job, place: Place) -> None:
        self.place = place
        self._runs = f"kafkawire:{job.name}"
        self._compactions = f"kafkawire:{job.name}:compaction"
        self._where = place.url.partition("?")[0]
        self._history_s = job.table.history_s
        self._opened: deltalake.DeltaTable | None = None

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Create the table if absent, and add new columns. Raises CommitError."""

        def attempt() -> None:
            table = self._open()
            if table is None:
                url, options = delta_location(self.place)
                with self._translate_errors("created"):
                    deltalake.DeltaTable.create(
                        url,
                        schema,
                        mode="ignore",
                        partition_by=list(partition_columns),
                        storage_options=options,
                    )
                return
            wanted = Schema.from_arrow(schema)
            known = {field.name: field for field in table.schema().fields}
            new = [
                field
                for field in wanted.fields
                if (there := known.get(field.name)) is None or there.type != field.type
            ]
            if new:
                with self._translate_errors("changed"):
                    table.alter.add_columns(new)

        until_settled(attempt, "the table's schema", self._where)

    def exists(self) -> bool:
        return self._open() is not None

    def misfit(self, schema: pa.Schema, partition_columns: Sequence[str]) -> str:
        table = self._open_existing()
        protocol, there = table.protocol(), table.metadata().partition_columns
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        if protocol.min_writer_version not in _PLAIN_VERSIONS or features - _PLAIN_FEATURES:
            said = ", ".join(sorted(features - _PLAIN_FEATURES)) or "features"
            return f"it has {said} of Delta's writer version {protocol.min_writer_version}"
        if there != list(partition_columns):
            return f"it is partitioned by {', '.join(there) or 'nothing'}"
        known = {field.name.lower(): field for field in table.schema().fields}
        for field in Schema.from_arrow(schema).fields:
            other = known.pop(field.name.lower(), field)
            if (other.name, other.type) != (field.name, field.type):
                return f"its column {other.name} is {other.type}, the job's is {field.type}"
        needed = [field.name for field in known.values() if not field.nullable]
        return f"its column {needed[0]} must have a value, and the job has none" if needed else ""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def read_last_run(self) -> int:
        return self._version(self._open(), self._runs)

    def read_last_replacement(self) -> int:
        return self._version(self._open(), self._compactions)

    def commit(self, record: RunRecord) -> None:
        """Make the files of a run visible in one version of the table. Raises CommitError."""

        def attempt() -> None:
            table = self._open_existing()
            last = self._version(table, self._runs)
            if is_next(last, record.run, "run", self._where):
                adds = [_add(file, data_change=True) for file in record.files]
                self._write(table, adds, self._runs, record.run, properties(record))

        until_settled(attempt, f"run {record.run}", self._where)

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """Replace files by others with the same rows. If another writer has removed an old file
        meanwhile nothing is replaced, because its rows are in other files now. Raises
        CommitError."""

        def attempt() -> None:
            table = self._open_existing()
            last = self._version(table, self._compactions)
            if not is_next(last, number, "compaction", self._where):
                return
            there = {file.path for file in _files(table)}
            actions: list[Any] = []
            if all(file.path in there for file in old):
                actions = [_remove(file) for file in old]
                actions += [_add(file, data_change=False) for file in new]
            said = {"kafkawire.compaction": str(number)}
            self._write(table, actions, self._compactions, number, said)

        until_settled(attempt, f"compaction {number}", self._where)

    def tidy(self) -> int:
        """Delete the files that only expired versions had. The library removes the log's own files
        by delta.logRetentionDuration when it writes a checkpoint, but never the versions of
        applications. Raises CommitError."""
        hours = math.ceil(self._history_s / 3600) or None  # None: by the table's properties

        def attempt() -> int:
            table = self._open()
            if table is None:
                return 0
            with self._translate_errors("vacuumed"):
                return len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))

        return until_settled(attempt, "the end of old versions", self._where)

    def files(self) -> list[FileFacts]:
        table = self._open()
        return [] if table is None else _files(table)

    def _open(self) -> deltalake.DeltaTable | None:
        """Return the current table, None if there is none. Only new commits are read, because
        reading all takes as long as the table has files."""
        known, self._opened = self._opened, None  # discarded if this fails
        try:
            if known is None:
                url, options = delta_location(self.place)
                known = deltalake.DeltaTable(url, storage_options=options)
            else:
                known.update_incremental()
            self._opened = known
            return known
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise CommitError(f"the Delta table {self._where} cannot be read: {error}") from None

    def _open_existing(self) -> deltalake.DeltaTable:
        table = self._open()
        if table is None:
            raise CommitError(f"there is no Delta table at {self._where}")
        return table

    def _version(self, table: deltalake.DeltaTable | None, application: str) -> int:
        return (table.transaction_version(application) or 0) if table is not None else 0

    def _write(
        self,
        table: deltalake.DeltaTable,
        actions: list[Any],
        application: str,
        version: int,
        said: dict[str, str],
    ) -> None:
        """Commit on top of the read version, or not at all. Raises Conflict, CommitError."""
        # No retries by the library: it would not check that removed files still exist.
        commit = CommitProperties(
            custom_metadata=said,
            max_commit_retries=0,
            # The protocol's transaction identifiers, like Spark's txnAppId and txnVersion. So the
            # table itself has the number of the last run, committed atomically with its files.
            app_transactions=[Transaction(application, version, _now_ms())],
        )
        columns = table.metadata().partition_columns
        with self._translate_errors("committed to"):
            table.create_write_transaction(
                actions, "append", table.schema(), columns, commit_properties=commit
            )

    @contextmanager
    def _translate_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except CommitFailedError:
            raise Conflict from None
        except (DeltaError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            raise CommitError(f"the Delta table {self._where} cannot be {done}: {reason}") from None


def _files(table: deltalake.DeltaTable) -> list[FileFacts]:
    rows = pa.table(table.get_add_actions()).to_pylist()
    columns = table.metadata().partition_columns
    found = []
    for row in rows:
        partition = row.get("partition") or {}
        values = [(name, _text(partition.get(name))) for name in columns]
        # In the log a path is a URL, so a % in a file's name is %25 there.
        path = unquote(row["path"])
        found.append(facts(path, row["num_records"] or 0, row["size_bytes"], values, _stats(row)))
    return found


def _text(value: Any) -> str | None:
    """Return a partition's value as in Delta's log."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stats(row: dict[str, Any]) -> str:
    """Return statistics of offsets alone, by which readers select files."""
    least, most = ((row.get(name) or {}).get("_offset") for name in ("min", "max"))
    if least is None or most is None:
        return ""
    said = {"minValues": {"_offset": least}, "maxValues": {"_offset": most}}
    return json.dumps({"numRecords": row["num_records"], **said}, separators=(",", ":"))


def _add(file: FileFacts, *, data_change: bool) -> AddAction:
    values = dict(file.values)
    return AddAction(file.path, file.size_bytes, values, _now_ms(), data_change, file.stats)


def _remove(file: FileFacts) -> RemoveAction:
    return RemoveAction(file.path, False, _now_ms(), file.size_bytes, dict(file.values))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
