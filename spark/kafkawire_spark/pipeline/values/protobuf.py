"""Convert Protobuf values to columns: the protobuf library parses them with the table's message.

With a registry a value is in Confluent's wire format: the id of the writer's schema and the
message's path in it; the message must have the name of the table's. Protobuf resolves differences
between the two versions by field numbers: unknown fields are ignored, missing ones are null or the
default. Without a registry a value is only the message.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from kafkawire_spark.pipeline.values import registry as schema_registry
from kafkawire_spark.pipeline.values import shred
from kafkawire_spark.pipeline.values.framing import BadValue, message_path, number_of
from kafkawire_spark.pipeline.values.protobuf_types import (
    columns_of,
    complete,
    file_of,
    message_of,
    name_at,
)
from kafkawire_spark.pipeline.values.registry import Registry
from kafkawire_spark.pipeline.values.spec import ValueFormatError

MAIN = "the-schema.proto"  # file name of a registered schema, which has no name


def registered_file(schema: schema_registry.Schema, name: str) -> FileDescriptorProto:
    """Compile a registered schema. Raises ValueFormatError."""
    if schema.type != schema_registry.PROTOBUF:
        raise ValueFormatError(f"the schema in the registry is {schema.type}, not PROTOBUF")
    try:
        return file_of(base64.b64decode(schema.text, validate=True), name)
    except binascii.Error:
        raise ValueFormatError(
            "the registry gives Protobuf schemas as text only (it does not know "
            "?format=serialized): set descriptor to a file of `protoc --descriptor_set_out`"
        ) from None


def registered_set(registry: Registry, schema: schema_registry.Schema) -> str:
    """Return a registered schema with all its imports, as a descriptor set. Raises
    ValueFormatError, RegistryError."""
    needed = registry.needed(schema).items()
    files = [registered_file(other, name) for name, other in needed]
    return complete([*files, registered_file(schema, MAIN)])


class ProtobufDecoder:
    """Decodes values to messages, None for undecodable ones."""

    def __init__(self, text: str, message: str, registry: Registry | None) -> None:
        """`text`: a complete descriptor set in base64; `message`: a full name in it."""
        descriptor = message_of(text, message)
        self.root = columns_of(descriptor)
        self._message = message
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self._registry = registry
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}

    def decode(self, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        """Return a message for each payload, and the errors by row. Raises RegistryError."""
        rows: list[Any] = [None] * len(payloads)
        bad: dict[int, str] = {}
        parse, framed = self._parse, self._registry is not None
        for row, payload in enumerate(payloads):
            if payload is None:
                continue
            try:
                rows[row] = parse(payload[self._start(payload) :] if framed else payload)
            except BadValue as reason:
                bad[row] = str(reason)
            except DecodeError as error:
                bad[row] = f"not Protobuf of its schema: {error}"[:300]
        return rows, bad

    def _start(self, payload: bytes) -> int:
        """Return the position of the message, if it is of the table's type."""
        number = number_of(payload)
        path, start = message_path(payload)
        name = self._names.get((number, path)) or self._look_up(number, path)
        if name != self._message:
            raise BadValue(f"a message {name} of schema {number}, the table has {self._message}")
        return start

    def _look_up(self, number: int, path: tuple[int, ...]) -> str:
        assert self._registry is not None
        schema = self._registry.schema(number)
        if schema is None:
            raise BadValue(f"the registry has no schema {number}")
        try:
            name = name_at(registered_file(schema, ""), path)
        except ValueFormatError as error:
            raise BadValue(f"schema {number}: {error}") from None
        except IndexError:
            raise BadValue(f"schema {number} has no message at the indexes {list(path)}") from None
        return self._names.setdefault((number, path), name)


def build(decoder: ProtobufDecoder, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the values as one Arrow array, and the errors by row."""
    rows, bad = decoder.decode(payloads.to_pylist())
    column, misfits = shred.build_all(decoder.root, rows)
    return column, bad | misfits
