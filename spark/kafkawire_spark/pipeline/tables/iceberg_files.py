"""Convert files of a run to Iceberg's metadata and back.

All data comes from the results of the tasks; no file is opened. Fields of files have the ids of the
table's fields, and the table has a name mapping for files without ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from kafkawire_spark.pipeline.jobs.job import PartitionColumn
from kafkawire_spark.pipeline.jobs.state import FileFacts
from kafkawire_spark.pipeline.tables.commit import CommitError, facts

EPOCH = date(1970, 1, 1)


def table_schema(schema: pa.Schema, columns: Sequence[PartitionColumn]) -> pa.Schema:
    """Return the schema without columns that are the day of another: Iceberg derives them (hidden
    partitioning)."""
    days = {column.name for column in columns if column.by_date}
    return pa.schema([field for field in schema if field.name not in days])


def with_ids(schema: pa.Schema, table: Schema) -> pa.Schema:
    """Return `schema` with the ids of the table's fields, for Parquet files."""
    return pa.schema([_with_id(field, field.name, table) for field in schema])


def _with_id(field: pa.Field, path: str, table: Schema) -> pa.Field:
    type = field.type
    if pa.types.is_struct(type):
        type = pa.struct([_with_id(one, f"{path}.{one.name}", table) for one in type])
    elif pa.types.is_map(type):
        key = _with_id(type.key_field, f"{path}.key", table)
        type = pa.map_(key, _with_id(type.item_field, f"{path}.value", table))
    elif pa.types.is_list(type):
        type = pa.list_(_with_id(type.value_field, f"{path}.element", table))
    number = str(table.find_field(path).field_id)
    return field.with_type(type).with_metadata({b"PARQUET:field_id": number.encode()})


def check_spec(
    spec: PartitionSpec, schema: Schema, columns: Sequence[PartitionColumn], where: str
) -> None:
    """Raise CommitError unless the table is partitioned as the job requires."""
    there = [(field.name, type(field.transform)) for field in spec.fields]
    wanted = [(c.name, DayTransform if c.by_date else IdentityTransform) for c in columns]
    if there != wanted:
        names = ", ".join(name for name, _ in there) or "nothing"
        raise CommitError(
            f"the table {where} is partitioned by {names}: a job's partition_by must stay as it was"
        )


def data_file(file: FileFacts, location: str, metadata: TableMetadata) -> DataFile:
    """Describe a new file for a commit."""
    schema, spec = metadata.schema(), metadata.spec()
    said = json.loads(file.stats) if file.stats else {}
    nulls = {
        schema.find_field(name).field_id: count
        for name, count in said.get("nullCount", {}).items()
        if _has_column(schema, name)
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{file.path}",
        file_format=FileFormat.PARQUET,
        # Partition columns may be missing in the file. Readers take them from here, as specified
        # for identity transforms.
        partition=Record(*_partition(file, spec, schema)),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        column_sizes=None,
        value_counts={number: file.rows for number in nulls} or None,
        null_value_counts=nulls or None,
        nan_value_counts=None,
        lower_bounds=_bounds(said.get("minValues", {}), schema) or None,
        upper_bounds=_bounds(said.get("maxValues", {}), schema) or None,
        split_offsets=None,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def _has_column(schema: Schema, name: str) -> bool:
    return name in schema.column_names


def _bounds(values: dict[str, Any], schema: Schema) -> dict[int, bytes]:
    """Convert Delta's statistics to Iceberg's bounds; types with another representation are left
    out."""
    found = {}
    for name, value in values.items():
        if not _has_column(schema, name):
            continue
        field = schema.find_field(name)
        if isinstance(field.field_type, TimestampType | TimestamptzType):
            value = datetime.fromisoformat(value)
        elif isinstance(field.field_type, DateType):
            value = date.fromisoformat(value)
        try:
            found[field.field_id] = to_bytes(field.field_type, value)
        except (TypeError, ValueError, AttributeError):
            continue  # e.g. a decimal, which is a number in JSON
    return found


def _partition(file: FileFacts, spec: PartitionSpec, schema: Schema) -> list[Any]:
    texts = dict(file.values)
    found: list[Any] = []
    for field in spec.fields:
        if field.name not in texts:
            raise CommitError(f"the file {file.path} is of no {field.name}, which its table needs")
        text = texts[field.name]
        if text is None:
            found.append(None)
        elif isinstance(field.transform, DayTransform):
            found.append((date.fromisoformat(text) - EPOCH).days)
        else:
            type = schema.as_arrow().field(schema.find_column_name(field.source_id)).type
            value = pa.scalar(text).cast(type)
            found.append(value.value if pa.types.is_temporal(type) else value.as_py())
    return found


def file_facts(file: DataFile, location: str, spec: PartitionSpec, schema: Schema) -> FileFacts:
    """Describe a file by the table's metadata."""
    path = file.file_path.removeprefix(f"{location}/")
    values = [
        (field.name, _text(file.partition[at], field.transform, schema, field.source_id))
        for at, field in enumerate(spec.fields)
    ]
    stats = json.dumps({"numRecords": file.record_count}, separators=(",", ":"))
    return facts(path, file.record_count, file.file_size_in_bytes, values, stats)


def _text(value: Any, transform: Any, schema: Schema, source: int) -> str | None:
    """Return a partition's value as the engine writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(transform, DayTransform):
        return date.fromordinal(EPOCH.toordinal() + value).isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    type = schema.as_arrow().field(schema.find_column_name(source)).type
    if isinstance(value, int) and pa.types.is_temporal(type):
        raw = pa.int32() if pa.types.is_date32(type) else pa.int64()
        return str(pa.scalar(value, raw).cast(type).cast(pa.string()).as_py())
    return str(value)
