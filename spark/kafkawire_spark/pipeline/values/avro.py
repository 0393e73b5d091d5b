"""Convert Avro values to columns: fastavro decodes each with its writer's schema, resolved to the
schema of the table (Avro's schema resolution: promotions, defaults, aliases).

With a registry a value is 0, the id of its schema in four bytes, and the datum (Confluent's wire
format); without one it is only the datum, written with the schema of the job.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

from kafkawire_spark.pipeline.values import registry as schema_registry
from kafkawire_spark.pipeline.values import shred
from kafkawire_spark.pipeline.values.avro_types import AvroColumns, plain_numbers, self_contained
from kafkawire_spark.pipeline.values.framing import NUMBER_END, BadValue, number_of
from kafkawire_spark.pipeline.values.registry import Registry
from kafkawire_spark.pipeline.values.spec import ValueFormatError

Read = Callable[[bytes], Any]


def parsed(text: str) -> Any:
    """Return a self-contained schema for fastavro, with times as numbers."""
    return fastavro.parse_schema(plain_numbers(json.loads(text)))


def columns_of(text: str) -> AvroColumns:
    """Return the columns of a self-contained schema. Raises ValueFormatError."""
    return AvroColumns(fastavro.parse_schema(json.loads(text)))


def registered_text(registry: Registry, schema: schema_registry.Schema) -> str:
    """Return a registered schema including all it references. Raises RegistryError,
    ValueFormatError."""
    if schema.type != schema_registry.AVRO:
        raise ValueFormatError(f"the schema in the registry is {schema.type}, not AVRO")
    return self_contained(schema.text, [other.text for other in registry.needed(schema).values()])


class AvroDecoder:
    """Decodes values to rows, None for undecodable ones."""

    def __init__(self, text: str, registry: Registry | None) -> None:
        """`text`: the table's schema, self-contained."""
        self.columns = columns_of(text)
        self._schema = parsed(text)
        self._registry = registry
        self._start = NUMBER_END if registry else 0
        self._readers: dict[int, Read | BadValue] = {}
        self._plain = self._reader(self._schema)

    def decode(self, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        """Return a value for each payload, and the errors by row. Raises RegistryError."""
        rows: list[Any] = [None] * len(payloads)
        bad: dict[int, str] = {}
        plain = None if self._registry else self._plain
        for row, payload in enumerate(payloads):
            if payload is None:
                continue
            try:
                rows[row] = (plain or self._by_number(payload))(payload)
            except BadValue as reason:
                bad[row] = str(reason)
            except RecursionError:
                bad[row] = "not Avro of its schema: nested too deep"
            except _GARBAGE as error:
                reason_ = str(error) or type(error).__name__
                bad[row] = f"not Avro of its schema: {reason_}"[:300]
        return rows, bad

    def _by_number(self, payload: bytes) -> Read:
        number = number_of(payload)
        found = self._readers.get(number)
        if found is None:
            found = self._look_up(number)
        if isinstance(found, BadValue):
            raise found
        return found

    def _look_up(self, number: int) -> Read | BadValue:
        assert self._registry is not None
        schema = self._registry.schema(number)
        if schema is None:  # not cached: garbage has millions of ids
            return BadValue(f"the registry has no schema {number}")
        found: Read | BadValue
        try:
            found = self._reader(parsed(registered_text(self._registry, schema)))
        except ValueFormatError as error:
            found = BadValue(f"schema {number}: {error}")
        return self._readers.setdefault(number, found)

    def _reader(self, writer: Any) -> Read:
        """Return the decoder of a payload written with the schema `writer`."""
        read, start, stream = fastavro.schemaless_reader, self._start, io.BytesIO
        schema = None if writer == self._schema else self._schema
        names = self.columns.unions

        def value(payload: bytes) -> Any:
            data = stream(payload)
            data.seek(start)
            found = read(data, writer, schema, return_named_type=names)
            if data.tell() != len(payload):
                raise BadValue(f"{len(payload) - data.tell()} bytes after the value")
            return found

        return value


# Errors of fastavro for bytes that do not match the schema, or for schemas that cannot be resolved.
_GARBAGE = (
    EOFError, ValueError, LookupError, TypeError, OverflowError, ArithmeticError, MemoryError,
    AttributeError, fastavro.read.SchemaResolutionError,
)  # fmt: skip


def build(decoder: AvroDecoder, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the values as one Arrow array, and the errors by row."""
    rows, bad = decoder.decode(payloads.to_pylist())
    column, misfits = shred.build_all(decoder.columns.root, rows)
    return column, bad | misfits
