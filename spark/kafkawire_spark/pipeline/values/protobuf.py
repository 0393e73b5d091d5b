"""Convert Protobuf values to columns: the protobuf library parses them with the table's message.

With a registry a value is in Confluent's wire format: the id of the writer's schema and the
message's path in it; the message must have the name of the table's. Protobuf resolves differences
between the two versions by field numbers: unknown fields are ignored, missing ones are null or the
default. Without a registry a value is only the message.

Descriptor sets become columns (a tree of shred.SchemaNode). The types are those of Spark's
from_protobuf, except that all numbers fit: uint32 is a long, uint64 a decimal(20, 0). Enums are
their names, Timestamp a timestamp, unset fields with presence null, messages without fields no
column.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError

from kafkawire_spark.pipeline.values import registry as schema_registry
from kafkawire_spark.pipeline.values import shred
from kafkawire_spark.pipeline.values.framing import BadValue, message_path, number_of
from kafkawire_spark.pipeline.values.registry import Registry
from kafkawire_spark.pipeline.values.spec import ValueFormatError

UTC = pa.timestamp("us", tz="UTC")
TIMESTAMP = "google.protobuf.Timestamp"
WELL_KNOWN = "google/protobuf/"  # imports that come with the protobuf library

# By FieldDescriptor.type; 10, 11 are messages and 14 enums.
_PLAIN = {
    1: pa.float64(), 2: pa.float32(), 3: pa.int64(), 4: pa.decimal128(20, 0), 5: pa.int32(),
    6: pa.decimal128(20, 0), 7: pa.int64(), 8: pa.bool_(), 9: pa.string(), 12: pa.binary(),
    13: pa.int64(), 15: pa.int32(), 16: pa.int64(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
_MESSAGES, _ENUM = (10, 11), 14


def file_of(data: bytes, name: str = "") -> FileDescriptorProto:
    """Return one file's descriptor. Raises ValueFormatError."""
    try:
        file = FileDescriptorProto.FromString(data)
    except DecodeError as error:
        raise ValueFormatError(
            f"{name or 'the schema'} is no compiled Protobuf file: {error}"
        ) from None
    if name:
        file.name = name
    for message in file.message_type:
        _add_oneofs(message)
    return file


def _add_oneofs(message: DescriptorProto) -> None:
    """Give each `optional` field of proto3 the oneof of its own that protoc writes and the library
    requires. Karapace leaves it out."""
    taken = {one.name for one in (*message.field, *message.oneof_decl)}
    for field in message.field:
        if field.proto3_optional and not field.HasField("oneof_index"):
            name = f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)
    for nested in message.nested_type:
        _add_oneofs(nested)


def set_of(data: bytes, name: str) -> list[FileDescriptorProto]:
    """Return the files of a descriptor set. Raises ValueFormatError."""
    try:
        files = list(FileDescriptorSet.FromString(data).file)
    except DecodeError:
        files = []
    if not files:
        raise ValueFormatError(
            f"{name} is no descriptor set, as `protoc --descriptor_set_out` writes"
        )
    return files


def complete(files: Iterable[FileDescriptorProto]) -> str:
    """Return a descriptor set in base64 that includes imported files of the protobuf library.
    Imported files precede those that import them. Raises ValueFormatError."""
    there: dict[str, FileDescriptorProto] = {}
    for file in files:
        _add(file, there)
    return base64.b64encode(FileDescriptorSet(file=there.values()).SerializeToString()).decode()


def _add(file: FileDescriptorProto, there: dict[str, FileDescriptorProto]) -> None:
    for name in file.dependency:
        if name in there:
            continue
        if not name.startswith(WELL_KNOWN):
            raise ValueFormatError(f"{file.name} imports {name}, which the schema does not bring")
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        try:
            known = importlib.import_module(module).DESCRIPTOR.serialized_pb
        except ImportError:
            raise ValueFormatError(f"{file.name} imports {name}, which is not known here") from None
        _add(FileDescriptorProto.FromString(known), there)
    there.setdefault(file.name, file)


def message_of(text: str, message: str) -> Any:
    """Return the descriptor of a message in a complete descriptor set. Raises ValueFormatError."""
    pool = descriptor_pool.DescriptorPool()
    files = set_of(base64.b64decode(text), "the schema")
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = ", ".join(name for file in files[-1:] for name in _names(file)) or "none"
        raise ValueFormatError(
            f"the schema has no message {message!r}; those of its last file: {known}"[:400]
        ) from None
    except TypeError as error:
        raise ValueFormatError(
            f"the Protobuf schema does not fit together: {error}"[:400]
        ) from None


def _names(file: FileDescriptorProto) -> list[str]:
    return [_full(file, message.name) for message in file.message_type]


def _full(file: FileDescriptorProto, name: str) -> str:
    return f"{file.package}.{name}" if file.package else name


def name_at(file: FileDescriptorProto, path: tuple[int, ...]) -> str:
    """Return the full name of the message at a path of indexes. Raises IndexError."""
    if min(path) < 0:
        raise IndexError(path)
    message = file.message_type[path[0]]
    name = message.name
    for index in path[1:]:
        message = message.nested_type[index]
        name += f".{message.name}"
    return _full(file, name)


def columns_of(message: Any, around: tuple[str, ...] = ()) -> shred.SchemaNode:
    """Return the columns of a message's descriptor; `around`: the messages it is nested in. Raises
    ValueFormatError."""
    name = message.full_name
    if name == TIMESTAMP:
        return shred.SchemaNode(UTC, _timestamps)
    if name in around:
        raise ValueFormatError(
            f"the message {around[0]} has a {name} inside of a {name}: "
            "a table has no recursive types"
        )
    inside = (*around, name)
    return shred.struct([_member(field, inside) for field in message.fields])


def _member(field: Any, around: tuple[str, ...]) -> shred.RecordField:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        node = shred.mapping(_single(key, around), _single(value, around))
    else:
        node = _single(field, around)
        if field.is_repeated:
            node = shred.array(node)
    get = attrgetter(field.name)
    if field.has_presence:
        name = field.name
        return shred.RecordField(
            name,
            node,
            lambda found: [get(message) if message.HasField(name) else None for message in found],
        )
    return shred.RecordField(field.name, node, lambda found: list(map(get, found)))


def _is_map(field: Any) -> bool:
    message = field.message_type
    return bool(field.is_repeated and message is not None and message.GetOptions().map_entry)


def _single(field: Any, around: tuple[str, ...]) -> shred.SchemaNode:
    """Convert one value of the field."""
    if field.type in _MESSAGES:
        return columns_of(field.message_type, around)
    if field.type != _ENUM:
        return shred.leaf(_PLAIN[field.type])
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}

    def build(values: list[Any]) -> pa.Array:
        # A number unknown to this schema becomes its digits.
        found = [None if one is None else names.get(one) or str(one) for one in values]
        return pa.array(found, pa.string())

    return shred.SchemaNode(pa.string(), build)


def _timestamps(values: list[Any]) -> pa.Array:
    micros = [
        None if value is None else value.seconds * 1_000_000 + value.nanos // 1000
        for value in values
    ]
    return pa.array(micros, pa.int64()).cast(UTC)


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
    needed = registry.fetch_references(schema).items()
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
