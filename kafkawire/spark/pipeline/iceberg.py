"""An Iceberg table, committed to through pyiceberg: no Spark and no jar is needed for it.

A run is one snapshot that says its job, run and offset ranges in its summary; the number of the
last run is in the table's properties too, set by the same commit, so that it outlives snapshots
that expire. A commit holds only if the table is as it was when that was looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.table import Table as Loaded
from pyiceberg.transforms import DayTransform, IdentityTransform
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError, OperationalError

from kafkawire.spark.model import SourceError
from kafkawire.spark.pipeline.committing import (
    CommitError,
    Conflict,
    is_next,
    properties,
    until_settled,
)
from kafkawire.spark.pipeline.iceberg_files import (
    check_spec,
    data_file,
    file_facts,
    table_schema,
    with_ids,
)
from kafkawire.spark.pipeline.job import Job
from kafkawire.spark.pipeline.locations import iceberg_properties, location
from kafkawire.spark.pipeline.runs import FileFacts, Record

if TYPE_CHECKING:
    from kafkawire.spark.places import Place

NAMESPACE = "kafkawire"
CATALOG = "kafkawire"
CATALOG_FILE = "_kafkawire/catalog.db"
MAPPING = "schema.name-mapping.default"
# Old versions of the metadata file go; otherwise each commit leaves one for ever.
_NEW_TABLE = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergTable:
    """See kafkawire.spark.pipeline.table.Table.

    The catalog is the job's: pyiceberg's properties (type, uri, ...), `name` the table in it as
    NAMESPACE.TABLE, `catalog_name` the catalog's own. Without one it is an SQLite file in the
    table's folder. Merged files stay for readers of older snapshots until those are expired.
    """

    hides = True

    def __init__(self, job: Job, place: Place) -> None:
        """Raises CommitError."""
        self.place = place
        self._partition_by = job.table.partition_by
        said = dict(job.table.catalog or {})
        last = re.sub(r"\W", "_", location(place).rpartition("/")[2])
        self._name = said.pop("name", f"{NAMESPACE}.{last}")
        self._catalog_name = said.pop("catalog_name", CATALOG)
        self._said = said
        self._runs = f"kafkawire.run.{job.name}"
        self._compactions = f"kafkawire.compaction.{job.name}"
        self._job = job.name
        if not said and place.tier.is_s3:
            raise CommitError(
                f"[table] catalog is missing: an Iceberg table in a bucket ({location(place)}) "
                "needs one, like { type = 'sql', uri = 'postgresql+psycopg2://...' }"
            )

    def prepare(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """See Table. Raises CommitError."""
        until_settled(lambda: self._prepare(schema), "the table's schema", self._name)

    def _prepare(self, schema: pa.Schema) -> None:
        wanted = table_schema(schema, self._partition_by)
        with self._catalog(make=True) as catalog:
            table = self._load(catalog)
            if table is None:
                self._create(catalog, wanted)
                return
            check_spec(table.spec(), table.schema(), self._partition_by, self._name)
            with table.transaction() as change:
                with change.update_schema() as update:
                    update.union_by_name(wanted)
                mapping = change.table_metadata.schema().name_mapping.model_dump_json()
                if table.properties.get(MAPPING) != mapping:
                    change.set_properties({MAPPING: mapping})

    def _create(self, catalog: Catalog, schema: pa.Schema) -> None:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self._name.rpartition(".")[0])
        with catalog.create_table_transaction(
            self._name, schema, location(self.place), properties=_NEW_TABLE
        ) as change:
            with change.update_spec() as spec:
                for column in self._partition_by:
                    transform = DayTransform() if column.by_date else IdentityTransform()
                    spec.add_field(column.column, transform, column.name)
            mapping = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties({MAPPING: mapping})

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """See Table. Raises CommitError."""
        with self._catalog() as catalog:
            return with_ids(schema, self._needed(catalog).schema())

    def committed(self) -> int:
        with self._catalog() as catalog:
            return self._last(self._load(catalog), self._runs, "kafkawire.run")

    def compacted(self) -> int:
        with self._catalog() as catalog:
            return self._last(self._load(catalog), self._compactions, "kafkawire.compaction")

    def commit(self, record: Record) -> None:
        """See Table. Raises CommitError."""
        until_settled(lambda: self._commit(record), f"run {record.run}", self._name)

    def _commit(self, record: Record) -> None:
        with self._catalog() as catalog:
            table = self._needed(catalog)
            last = self._last(table, self._runs, "kafkawire.run")
            if not is_next(last, record.run, "run", self._name):
                return
            with table.transaction() as change:
                change.set_properties({self._runs: str(record.run)})
                with change.update_snapshot(properties(record)).merge_append() as append:
                    for file in record.files:
                        append.append_data_file(data_file(file, table.location(), table.metadata))

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        """See Table. Where somebody else has removed an old file meanwhile nothing is replaced: its
        rows are elsewhere by now. Raises CommitError."""
        until_settled(lambda: self._replace(old, new, number), f"compaction {number}", self._name)

    def _replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        with self._catalog() as catalog:
            table = self._needed(catalog)
            last = self._last(table, self._compactions, "kafkawire.compaction")
            if not is_next(last, number, "compaction", self._name):
                return
            paths = {f"{table.location()}/{file.path}" for file in old}
            there = [
                task.file
                for task in table.scan().plan_files()
                if task.file.file_path in paths and not task.delete_files
            ]
            said = {"kafkawire.job": self._job, "kafkawire.compaction": str(number)}
            with table.transaction() as change:
                change.set_properties({self._compactions: str(number)})
                if len(there) != len(paths):
                    return
                with change.update_snapshot(said).overwrite() as overwrite:
                    for file in there:
                        overwrite.delete_data_file(file)
                    for made in new:
                        overwrite.append_data_file(
                            data_file(made, table.location(), table.metadata)
                        )

    def files(self) -> list[FileFacts]:
        """See Table. A file of which somebody has deleted rows counts as not ours."""
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                return []
            specs, schema = table.specs(), table.schema()
            found = []
            for task in table.scan().plan_files():
                file = task.file
                one = file_facts(file, table.location(), specs[file.spec_id], schema)
                found.append(one if not task.delete_files else _not_ours(one))
            return found

    def _last(self, table: Loaded | None, name: str, said: str) -> int:
        """The highest number that the table's properties or snapshots have for this job."""
        if table is None:
            return 0
        numbers = [int(table.properties.get(name, 0))]
        for snapshot in table.metadata.snapshots:
            about = snapshot.summary.additional_properties if snapshot.summary else {}
            if about.get("kafkawire.job") == self._job and said in about:
                numbers.append(int(about[said]))
        return max(numbers)

    @contextmanager
    def _catalog(self, *, make: bool = False) -> Iterator[Catalog]:
        """The catalog, closed in the end. Raises Conflict, CommitError."""
        own = self._said or self._own_catalog(make)
        try:
            catalog = load_catalog(self._catalog_name, **(iceberg_properties(self.place) | own))
            with catalog:
                yield catalog
        except (SourceError, Conflict):
            raise
        except _PASSING as error:
            raise Conflict(_sentence(error)) from None
        except Exception as error:  # catalogs raise what their services and drivers do
            raise CommitError(f"the Iceberg table {self._name}: {_sentence(error)}") from None

    def _own_catalog(self, make: bool) -> dict[str, str]:
        path = f"{self.place.tier.folder}/{CATALOG_FILE}"
        if make:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if not make and not os.path.exists(path):
            return {"type": "in-memory"}  # there is no table
        return {"type": "sql", "uri": str(URL.create("sqlite", database=path))}

    def _load(self, catalog: Catalog) -> Loaded | None:
        try:
            table = catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        # For this process alone: the library would commit again without looking for the run.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _needed(self, catalog: Catalog) -> Loaded:
        table = self._load(catalog)
        if table is None:
            raise CommitError(f"there is no Iceberg table {self._name} in the catalog")
        return table


# Somebody else was quicker, or nobody knows: in any case the table is looked at again.
_PASSING = (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
    ValidationException,
    IntegrityError,
    OperationalError,
)


def _sentence(error: BaseException) -> str:
    text: Any = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def _not_ours(file: FileFacts) -> FileFacts:
    return replace(file, topic="", partition=-1)
