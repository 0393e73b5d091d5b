"""The columns of a job's table, those of its files, and the values of its partition columns.

_topic _partition _offset _index _timestamp _timestamp_type _key   VALUE'S COLUMNS   _headers

Files are named by partition columns, offsets and run. Pure.

    date=2026-11-21/orders-p00003-o00000000000000001000-00000000000000002000-r7.parquet

A name has the range of offsets in the file and the run (r) or compaction (c) that wrote it. If a
file must not be overwritten, an id of the attempt follows: -r7-3f9c.parquet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkawire.reading.model.columns import INDEX_NAME, NATIVE, Selection
from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.jobs.job import ICEBERG, Job, PartitionColumn
from kafkawire_spark.pipeline.jobs.section import JobError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder of nulls and of empty strings, as in Hive and Spark."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}
_NAME = re.compile(
    r"(?:.*/)?~?(?P<topic>[^/]+)-p(?P<partition>\d{5,})-o(?P<base>\d{20})-(?P<end>\d{20})"
    r"-(?P<kind>[rc])(?P<number>\d+)(?:-[0-9a-f]+)?\.parquet"
)

Values = tuple[tuple[str, str | None], ...]
"""Names of the partition columns with their values as text, None for null."""


def file_path(part: PartitionRange, values: Values, number: int, *, kind: str, attempt: str) -> str:
    """Return the path of a file from the table's root. `kind`: "r" for a run, "c" for a
    compaction."""
    topic, partition, base, end = part
    shown = topic if topic[:1] not in ("_", ".") else f"~{topic}"  # Spark ignores hidden files
    # A retry writes the same name, unless `attempt` prevents that.
    suffix = f"-{attempt}" if attempt else ""
    name = f"{shown}-p{partition:05}-o{base:020}-{end:020}-{kind}{number}{suffix}.parquet"
    return f"{folder(values)}{name}"


def folder(values: Values) -> str:
    """Return `name=value/` for each partition column, as in Hive's tables; "" without any."""
    return "".join(f"{escape(name)}={escape(value or NULL)}/" for name, value in values)


def escape(text: str) -> str:
    """Escape a value for a path as Spark does (its ExternalCatalogUtils.escapePathName), and also
    unprintable ones of the first 256 characters, which Spark can read."""
    return "".join(f"%{ord(char):02X}" if _is_escaped(char) else char for char in text)


def _is_escaped(char: str) -> bool:
    return char in _ESCAPED or (ord(char) < 256 and not char.isprintable())


def written_by(path: str) -> tuple[str, int] | None:
    """Return ("r", run) or ("c", compaction) of one of our files, None for any other."""
    match = _NAME.fullmatch(path)
    return (match["kind"], int(match["number"])) if match else None


def parse_path(path: str) -> tuple[PartitionRange, str, int] | None:
    """Return the offsets that may be in one of our files, "r" or "c", and its number; None for
    others."""
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    base, end = int(match["base"]), int(match["end"])
    part = PartitionRange(match["topic"].removeprefix("~"), int(match["partition"]), base, end)
    return part, match["kind"], int(match["number"])


def covering(parts: Sequence[PartitionRange]) -> PartitionRange:
    """Return the range from the first offset of adjacent parts of one partition to the last."""
    first = parts[0]
    return PartitionRange(
        first.topic,
        first.partition,
        min(part.base for part in parts),
        max(part.end for part in parts),
    )


DEAD_SCHEMA = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_end", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
        ("_reason", pa.string()),
        ("_key", pa.binary()),
        ("_value", pa.binary()),
    ]
)
"""Dead letters: a record has its offset in `_offset` and `_end` = offset + 1; an unreadable range
[_offset, _end) is one row, whose `_value` has its bytes as far as they are known."""


@dataclass(frozen=True)
class Layout:
    """`files`: the schema of the table's files; `table`: with its partition columns; `reads`: the
    native columns that a task reads."""

    files: pa.Schema
    table: pa.Schema
    partition_by: tuple[PartitionColumn, ...]
    reads: Selection

    @classmethod
    def from_job(cls, job: Job, key: Sequence[pa.Field], value: Sequence[pa.Field]) -> Layout:
        """Build the layout. `key`, `value`: the columns of keys and values. Raises JobError."""
        native = Selection((*NATIVE.names, INDEX_NAME)).arrow_schema()
        spec = job.table
        names = ["_topic"] * spec.topic_column + ["_partition", "_offset"]
        names += [INDEX_NAME] * spec.index_column + ["_timestamp"]
        names += ["_timestamp_type"] * spec.timestamp_type_column
        fields = [native.field(name) for name in names] + [*key, *value]
        fields += [native.field("_headers")] * job.reading.headers
        whole = pa.schema(fields)
        if spec.index_column and whole.names.count(INDEX_NAME) > 1:
            raise JobError(
                f"[table] index_column makes a column {INDEX_NAME}, which the values have"
            )
        table, folders = whole, []
        for column in spec.partition_by:
            _check_partition_column(column, whole)
            if column.by_date:
                if column.name in table.names:
                    raise JobError(
                        f"[table] partition_by makes a column {column.name}, which the values have"
                    )
                table = table.append(pa.field(column.name, pa.date32()))
            folders.append(column.name)
        if len(folders) == len(table.names) or len(set(folders)) < len(folders):
            raise JobError(f"[table] partition_by is {folders}: no column twice, and not all")
        # Iceberg's partition columns are columns of its files, days are a transform of a column.
        files = whole if spec.format == ICEBERG else _without(table, folders)
        reads = [name for name in NATIVE.names if name != "_headers" or job.reading.headers]
        if not spec.timestamp_type_column:
            reads.remove("_timestamp_type")
        reads += [INDEX_NAME] * spec.index_column
        return cls(files, table, spec.partition_by, Selection(tuple(reads)))

    @property
    def folders(self) -> list[str]:
        """Return the names of the partition columns."""
        return [column.name for column in self.partition_by]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """Split rows of `batch` by the values of the partition columns; all its columns are
        kept."""
        if not self.partition_by:
            yield (), batch
            return
        keys = []
        for column in self.partition_by:
            array = batch.column(column.column)
            array = pc.cast(array, pa.date32()) if column.by_date else array
            keys.append(_as_text(array.dictionary_encode(null_encoding="encode")))
        yield from self._groups(batch, keys)

    def _groups(
        self, batch: pa.RecordBatch, keys: Sequence[pa.DictionaryArray]
    ) -> Iterator[tuple[Values, pa.RecordBatch]]:
        codes = keys[0].indices.cast(pa.int64())
        for key in keys[1:]:
            codes = pc.add(pc.multiply(codes, len(key.dictionary)), key.indices.cast(pa.int64()))
        found = pc.unique(codes)
        for code in found.to_pylist():
            rows = batch if len(found) == 1 else batch.filter(pc.equal(codes, code))
            values = []
            for key in reversed(keys):
                code, index = divmod(code, len(key.dictionary))
                values.append(key.dictionary[index].as_py())
            names = [column.name for column in self.partition_by]
            yield tuple(zip(names, reversed(values), strict=True)), rows


def _as_text(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return its dictionary as text; an empty text becomes null, because Spark has no folder for
    it."""
    text = pc.cast(values.dictionary, pa.string())
    if pa.types.is_string(values.dictionary.type):
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
        text = text.dictionary_encode(null_encoding="encode")
        return pa.DictionaryArray.from_arrays(text.indices.take(values.indices), text.dictionary)
    return pa.DictionaryArray.from_arrays(values.indices, text)


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])


def _check_partition_column(column: PartitionColumn, schema: pa.Schema) -> None:
    if column.column not in schema.names:
        raise JobError(
            f"[table] partition_by names {column.column!r}, which is no column of the table; it "
            f"has {', '.join(schema.names)}"
        )
    kind = schema.field(column.column).type
    if column.by_date:
        if not pa.types.is_timestamp(kind):
            raise JobError(f"[table] partition_by has date({column.column}), which is a {kind}")
    elif not (
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
    ):
        raise JobError(
            f"[table] partition_by names {column.column!r}, which is a {kind}: text, whole "
            "numbers, booleans and dates are allowed, and date(COLUMN) of a timestamp"
        )


def describe_schema(schema: pa.Schema) -> dict[str, str]:
    """Return columns and their types as text, for `table.json`."""
    return {field.name: str(field.type) for field in schema}


def check_evolution(known: Mapping[str, str], schema: pa.Schema) -> list[str]:
    """Return the new columns. Raises JobError if one was removed or has another type, because old
    and new files could not be read together."""
    now = describe_schema(schema)
    for name, kind in known.items():
        if name not in now:
            raise JobError(f"the table has a column {name} ({kind}), which the job does not have")
        if now[name] != kind:
            raise JobError(
                f"the table's column {name} is {kind}, the job makes it {now[name]}: write to "
                "another table, or give the schema as it was, with new columns only"
            )
    return [name for name in now if name not in known]


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return an array of one repeated value, dictionary-encoded, which Parquet stores directly."""
    indices = pa.repeat(pa.scalar(0, pa.int32()), rows)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], kind))


def repeating(schema: pa.Schema) -> pa.Schema:
    """Return the schema with `_topic` in the dictionary type of `constant`."""
    at = schema.get_field_index("_topic")
    kind = pa.dictionary(pa.int32(), pa.string())
    return schema if at < 0 else schema.set(at, schema.field(at).with_type(kind))
