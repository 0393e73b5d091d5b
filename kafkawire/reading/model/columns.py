"""The columns of a record: their selection, and their types in Spark and in Arrow. Pure.

Names and types are those of Spark's Kafka connector, so that a job is migrated by changing the
format's name. `headers` and `valueSize` are included only on request; the latter, an addition, has
the bytes of the value, 0 for none, at half the cost of the value itself. Each column also has a
native name (`_offset`), which the tables of the pipeline use. `_index` is the offset by its name in
SQL over SeaweedMQ: a computed column, equal to `_offset`. A timestamp is milliseconds in Kafka and
microseconds in Spark; -1 (none) is the millisecond before 1970, as with the connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkawire.reading.model.source import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC, PARTITION, OFFSET, TIMESTAMP = "topic", "partition", "offset", "timestamp"
TIMESTAMP_TYPE, KEY, VALUE, HEADERS = "timestampType", "key", "value", "headers"
VALUE_SIZE = "valueSize"

_TYPES = {
    TOPIC: "STRING",
    PARTITION: "INT",
    OFFSET: "BIGINT",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_TYPE: "INT",
    KEY: "BINARY",
    VALUE: "BINARY",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    VALUE_SIZE: "INT",
}
_NATIVE_NAMES = {kind: f"_{kind}" for kind in _TYPES} | {
    TIMESTAMP_TYPE: "_timestamp_type", VALUE_SIZE: "_value_size",
}  # fmt: skip
INDEX_NAME = "_index"
_KINDS = {kind: kind for kind in _TYPES} | {name: kind for kind, name in _NATIVE_NAMES.items()}
_KINDS[INDEX_NAME] = OFFSET


class Column(NamedTuple):
    """`name`: the name in the schema, `kind`: what it is (TOPIC, ...), `ddl`: its Spark type."""

    name: str
    kind: str
    ddl: str


class Selection(NamedTuple):
    """The selected columns, in this order, by either name."""

    names: tuple[str, ...]

    def fields(self) -> tuple[Column, ...]:
        """Build a selection. Raises SourceOptionError for an unknown or repeated name."""
        for index, name in enumerate(self.names):
            if name not in _KINDS:
                allowed = ", ".join(_KINDS)
                raise SourceError(f"there is no column {name!r}; the columns are {allowed}")
            if name in self.names[:index]:
                raise SourceError(f"the column {name!r} is asked for twice")
        kinds = [_KINDS[name] for name in self.names]
        return tuple(
            Column(name, kind, _TYPES[kind]) for name, kind in zip(self.names, kinds, strict=True)
        )

    def kinds(self) -> frozenset[str]:
        """Record fields to read for these columns."""
        return frozenset(column.kind for column in self.fields())

    def ddl(self) -> str:
        """Return the schema as a Spark DDL string."""
        return ", ".join(f"`{column.name}` {column.ddl}" for column in self.fields())

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema that Spark derives from `ddl()` (pyspark's to_arrow_schema with
        timezone UTC)."""
        import pyarrow as pa

        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        types = {
            TOPIC: pa.string(),
            PARTITION: pa.int32(),
            OFFSET: pa.int64(),
            TIMESTAMP: pa.timestamp("us", tz="UTC"),
            TIMESTAMP_TYPE: pa.int32(),
            KEY: pa.binary(),
            VALUE: pa.binary(),
            HEADERS: pa.list_(pa.field("element", header)),
            VALUE_SIZE: pa.int32(),
        }
        return pa.schema([(column.name, types[column.kind]) for column in self.fields()])


DEFAULT_HEADERS = Selection(tuple(_TYPES)[:-1])
DEFAULT = Selection(DEFAULT_HEADERS.names[:-1])
NATIVE = Selection(tuple(_NATIVE_NAMES[kind] for kind in DEFAULT_HEADERS.names))
