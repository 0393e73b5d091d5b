"""An Iceberg table, written with pyiceberg, without Spark or a jar.

A run is one snapshot with its job, run and offset ranges in its summary. A commit succeeds only if
the table has not changed since it was read.

When old snapshots expire, the library removes them from the metadata but deletes no files. As in
Iceberg's expireSnapshots, files without a reference from a remaining snapshot are deleted here:
manifest lists, manifests, and data files that a compaction replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.state import Expiry, FileFacts, RunRecord, TableState
from kafkawire_spark.pipeline.tables.commit import (
    CommitError,
    Conflict,
    is_next,
    properties,
    until_settled,
)
from kafkawire_spark.pipeline.tables.iceberg_catalog import OpenedCatalog, same_place
from kafkawire_spark.pipeline.tables.iceberg_files import (
    check_spec,
    data_file,
    file_facts,
    table_schema,
    with_ids,
)
from kafkawire_spark.pipeline.tables.locations import location

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place


NEVER = "gc.enabled"
"""Iceberg's property of tables whose files must not be deleted, because other tables share them."""


def expirable(table: PyIcebergTable, before_ms: int) -> list[Snapshot]:
    """Return snapshots older than that, without those that a branch or tag names, such as the
    newest."""
    if table.properties.get(NEVER, "true").lower() == "false":
        return []
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [
        one
        for one in table.metadata.snapshots
        if one.timestamp_ms < before_ms and one.snapshot_id not in named
    ]


def only_theirs(table: PyIcebergTable, old: Iterable[Snapshot]) -> set[str]:
    """Return the paths of all files that only these snapshots of the table refer to."""
    gone = {one.snapshot_id: one for one in old}
    stay = [one for one in table.metadata.snapshots if one.snapshot_id not in gone]
    kept = _manifests(stay, table.io)
    theirs = {path: one for path, one in _manifests(gone.values(), table.io).items()}
    theirs = {path: one for path, one in theirs.items() if path not in kept}
    data = _data_files(theirs.values(), table.io)
    if data:  # a merged manifest has the same files as its result
        data -= _data_files(kept.values(), table.io)
    return data | set(theirs) | {one.manifest_list for one in gone.values()}


def _manifests(snapshots: Iterable[Snapshot], io: FileIO) -> dict[str, ManifestFile]:
    read = ExecutorFactory.get_or_create().map(lambda one: one.manifests(io), snapshots)
    return {manifest.manifest_path: manifest for manifests in read for manifest in manifests}


def _data_files(manifests: Iterable[ManifestFile], io: FileIO) -> set[str]:
    """Return the files of rows and of deleted rows."""
    read = ExecutorFactory.get_or_create().map(
        lambda one: {entry.data_file.file_path for entry in one.fetch_manifest_entry(io)}, manifests
    )
    return set().union(*read)


MAPPING = "schema.name-mapping.default"
# Delete old versions of the metadata file; otherwise each commit leaves one forever.
_NEW_TABLE = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
HISTORY_S = 86_400.0
"""Default time that snapshots are kept; each makes every commit a little slower."""


class IcebergTable:
    """An Iceberg table, see kafkawire_spark.pipeline.tables.port.Table.

    `catalog` of the job are pyiceberg's properties (type, uri, ...), with `name` as the table's
    NAMESPACE.TABLE and `catalog_name` as the catalog's name. Without them the catalog is an SQLite
    file in the table's folder. Merged files are kept for readers of older snapshots until those
    expire.
    """

    hides = True

    def __init__(self, job: Job, place: Place) -> None:
        """Raise CommitError."""
        self.place = place
        self._partition_by = job.table.partition_by
        self._catalog = OpenedCatalog(job, place)
        self._name = self._catalog.table
        self._runs = f"kafkawire.run.{job.name}"
        self._compactions = f"kafkawire.compaction.{job.name}"
        self._job = job.name
        self._history_s = job.table.history_s or HISTORY_S
        self._prepared: pa.Schema | None = None
        self._with_ids: dict[pa.Schema, pa.Schema] = {}

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Create the table if absent, and add new columns. Raises CommitError."""
        if self._prepared is not None and self._prepared.equals(schema):
            return
        until_settled(lambda: self._prepare(schema), "the table's schema", self._name)
        self._prepared, self._with_ids = schema, {}

    def _prepare(self, schema: pa.Schema) -> None:
        wanted = table_schema(schema, self._partition_by)
        with self._catalog(make=True) as catalog:
            table = self._load(catalog)
            if table is None:
                self._create(catalog, wanted)
                return
            check_spec(table.spec(), table.schema(), self._partition_by, self._name)
            with _light(table).transaction() as change:
                with change.update_schema() as update:
                    update.union_by_name(wanted)
                mapping = change.table_metadata.schema().name_mapping.model_dump_json()
                if table.properties.get(MAPPING) != mapping:
                    change.set_properties({MAPPING: mapping})

    def _create(self, catalog: Catalog, schema: pa.Schema) -> None:
        levels = tuple(self._name.split(".")[:-1])
        if not catalog.namespace_exists(levels):
            for count in range(1, len(levels) + 1):
                with suppress(NamespaceAlreadyExistsError):
                    catalog.create_namespace(levels[:count])
        with catalog.create_table_transaction(
            self._name, schema, location(self.place), properties=_NEW_TABLE
        ) as change:
            with change.update_spec() as spec:
                for column in self._partition_by:
                    transform = DayTransform() if column.by_date else IdentityTransform()
                    spec.add_field(column.column, transform, column.name)
            mapping = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties({MAPPING: mapping})
            self._check_location(change.table_metadata.location)

    def exists(self) -> bool:
        """Return True if the catalog has the table. Raises CommitError."""

        def attempt() -> bool:
            with self._catalog() as catalog:
                return self._load(catalog) is not None

        return until_settled(attempt, "whether it exists", self._name)

    def misfit(self, schema: pa.Schema, partition_columns: Sequence[str]) -> str:
        """Return why, see Table. Raises CommitError."""
        wanted = table_schema(schema, self._partition_by)

        def attempt() -> str:
            with self._catalog() as catalog:
                table = self._load_existing(catalog)
                try:
                    check_spec(table.spec(), table.schema(), self._partition_by, self._name)
                    table.transaction().update_schema().union_by_name(wanted)
                except (CommitError, ValueError, ValidationError) as error:
                    return str(error).partition("\n")[0]
                needed = [
                    field.name
                    for field in table.schema().fields
                    if field.required and field.name not in wanted.names
                ]
                return f"its column {needed[0]} is required, the job has none" if needed else ""

        return until_settled(attempt, "whether its columns fit", self._name)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return `schema` with the ids of the table's fields. Raises CommitError."""

        def attempt() -> pa.Schema:
            with self._catalog() as catalog:
                return with_ids(schema, self._load_existing(catalog).schema())

        if schema not in self._with_ids:  # a field keeps its id forever
            made = until_settled(attempt, "the table's schema", self._name)
            self._with_ids = {schema: made}
        return self._with_ids[schema]

    def read_last_run(self) -> int:
        """Raises CommitError."""
        return self._number(self._runs, "kafkawire.run")

    def read_last_replacement(self) -> int:
        """Raises CommitError."""
        return self._number(self._compactions, "kafkawire.compaction")

    def _number(self, name: str, said: str) -> int:
        def attempt() -> int:
            with self._catalog() as catalog:
                return self._last(self._load(catalog), name, said)

        return until_settled(attempt, "its last run", self._name)

    def commit(self, record: RunRecord) -> None:
        """Make the files of a run visible as one snapshot. Raises CommitError."""
        until_settled(lambda: self._commit(record), f"run {record.run}", self._name)

    def _commit(self, record: RunRecord) -> None:
        with self._catalog() as catalog:
            table = self._load_existing(catalog)
            last = self._last(table, self._runs, "kafkawire.run")
            if not is_next(last, record.run, "run", self._name):
                return
            with _light(table).transaction() as change:
                # In the properties it survives the expiration of the run's snapshot.
                change.set_properties({self._runs: str(record.run)})
                with change.update_snapshot(properties(record)).merge_append() as append:
                    for file in record.files:
                        append.append_data_file(data_file(file, _root(table), table.metadata))

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """Replace files by others with the same rows. If another writer has removed an old file
        meanwhile nothing is replaced, because its rows are in other files now. Raises
        CommitError."""
        until_settled(lambda: self._replace(old, new, number), f"compaction {number}", self._name)

    def _replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        with self._catalog() as catalog:
            table = self._load_existing(catalog)
            last = self._last(table, self._compactions, "kafkawire.compaction")
            if not is_next(last, number, "compaction", self._name):
                return
            paths = {f"{_root(table)}/{file.path}" for file in old}
            there = [
                task.file
                for task in table.scan().plan_files()
                if task.file.file_path in paths and not task.delete_files
            ]
            said = {"kafkawire.job": self._job, "kafkawire.compaction": str(number)}
            with _light(table).transaction() as change:
                change.set_properties({self._compactions: str(number)})
                if len(there) != len(paths):
                    return
                with change.update_snapshot(said).overwrite() as overwrite:
                    for file in there:
                        overwrite.delete_data_file(file)
                    for made in new:
                        overwrite.append_data_file(data_file(made, _root(table), table.metadata))

    def tidy(self) -> int:
        """Expire old snapshots, and delete the files that only they had. Raises CommitError."""
        state = TableState(self.place)
        left = self._sweep(state)  # by an interrupted one
        until_settled(lambda: self._expire(state), "the end of old snapshots", self._name)
        return left + self._sweep(state)

    def _expire(self, state: TableState) -> None:
        with self._catalog() as catalog:
            table = self._load(catalog)
            before_ms = int((time.time() - self._history_s) * 1000)
            old = expirable(table, before_ms) if table is not None else []
            if table is None or not old:
                return
            root = f"{_root(table)}/"
            theirs = only_theirs(table, old)
            paths = [path.removeprefix(root) for path in sorted(theirs) if path.startswith(root)]
            ids = [one.snapshot_id for one in old]
            # Before the snapshots expire, so that an interruption leaves no unknown files.
            state.put_expiry(Expiry(tuple(ids), tuple(paths)))
            try:
                table.maintenance.expire_snapshots().by_ids(ids).commit()
            except ValueError as error:  # another writer has expired one of them meanwhile
                raise Conflict(str(error)[:100]) from None

    def _sweep(self, state: TableState) -> int:
        """Delete pending files whose snapshots have expired; return how many."""
        noted = state.expiry()
        if noted is None:
            return 0

        def attempt() -> bool:
            with self._catalog() as catalog:
                there = {one.snapshot_id for one in self._load_existing(catalog).metadata.snapshots}
                return there.isdisjoint(noted.snapshots)

        gone = until_settled(attempt, "the end of old snapshots", self._name)
        if gone:
            self.place.delete(noted.files)
        state.put_expiry(None)
        return len(noted.files) if gone else 0

    def files(self) -> list[FileFacts]:
        """Return the files, see Table. A file with deleted rows counts as another tool's."""
        return until_settled(self._files, "the list of its files", self._name)

    def _files(self) -> list[FileFacts]:
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                return []
            specs, schema = table.specs(), table.schema()
            found = []
            for task in table.scan().plan_files():
                file = task.file
                one = file_facts(file, _root(table), specs[file.spec_id], schema)
                found.append(one if not task.delete_files else _not_ours(one))
            return found

    def _last(self, table: PyIcebergTable | None, name: str, said: str) -> int:
        """Return the highest number for this job in the table's properties and snapshots."""
        if table is None:
            return 0
        numbers = [int(table.properties.get(name, 0))]
        for snapshot in table.metadata.snapshots:
            about = snapshot.summary.additional_properties if snapshot.summary else {}
            if about.get("kafkawire.job") == self._job and said in about:
                numbers.append(int(about[said]))
        return max(numbers)

    def _load(self, catalog: Catalog) -> PyIcebergTable | None:
        try:
            table = catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        self._check_location(table.location())
        # In this process only: the library would commit again without checking for the run.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        # The library merges manifests only if set, although that is the specification's default.
        table.metadata.properties.setdefault("commit.manifest-merge.enabled", "true")
        if isinstance(catalog, RestCatalog):
            table.metadata.metadata_log.clear()  # its server deletes old ones
        return table

    def _load_existing(self, catalog: Catalog) -> PyIcebergTable:
        table = self._load(catalog)
        if table is None:
            raise CommitError(f"there is no Iceberg table {self._name} in the catalog")
        return table

    def _check_location(self, there: str) -> None:
        """Check that the table's location is the job's, where tasks write the files."""
        if not same_place(there, location(self.place)):
            raise CommitError(
                f"the catalog has the table {self._name} at {there}, [table] path is "
                f"{location(self.place)}: they must be the same place"
            )


def _root(table: PyIcebergTable) -> str:
    """Return the root of its files' paths; some catalogs write it with a slash at the end."""
    return table.location().rstrip("/")


def _light(table: PyIcebergTable) -> PyIcebergTable:
    """Return the metadata without its history, of which the library makes dozens of copies per
    commit. The catalog has the history and applies the commit's changes to it."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = table.metadata.snapshots
    snapshots[:] = [one for one in snapshots if one.snapshot_id in named]
    table.metadata.snapshot_log.clear()
    return table


def _not_ours(file: FileFacts) -> FileFacts:
    return replace(file, topic="", partition=-1)
