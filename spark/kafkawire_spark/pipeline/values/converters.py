"""Create a Converter from a job's format: the driver resolves the format once, tasks convert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from kafkawire_spark.pipeline.values import spec
from kafkawire_spark.pipeline.values.registry import Registry, registry
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError, checked_columns

if TYPE_CHECKING:
    from kafkawire_spark.pipeline.values.avro import AvroDecoder
    from kafkawire_spark.pipeline.values.protobuf import ProtobufDecoder


class Converter(Protocol):
    """Converts keys or values of whole batches to columns."""

    def fields(self) -> list[pa.Field]:
        """The columns, all nullable: a record without a value has nulls."""

    def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert the batch's `_key` or `_value`; return the columns and the errors by row, whose
        columns are null. Raises SourceError if the record is not the cause (e.g. the registry is
        unavailable)."""


def resolve(form: Format, topics: Sequence[str], *, key: bool = False) -> Format:
    """Return the format with its schema, read from its file or the registry, so that every task of
    a run, and of its retries, makes the same columns. Raises SourceError."""
    if form.resolved or form.format in (spec.BYTES, spec.TEXT):
        return form
    if form.format == spec.PROTOBUF:
        return _resolved_protobuf(form, topics, key)
    text = form.schema
    if form.schema_file:
        text = _file(form.schema_file).decode("utf-8", "replace")
    if form.format == spec.AVRO:
        from kafkawire_spark.pipeline.values import avro

        if text:
            text = avro.self_contained(text)
        else:
            client = registry(form.registry)
            found = [
                avro.registered_text(client, client.version(subject, form.version or "latest"))
                for subject in _subjects(form, topics, key)
            ]
            text = _one(found, topics)
    return replace(form, schema=text, schema_file="", resolved=True)


def _resolved_protobuf(form: Format, topics: Sequence[str], key: bool) -> Format:
    from kafkawire_spark.pipeline.values import protobuf

    if form.descriptor:
        files = protobuf.set_of(_file(form.descriptor), form.descriptor)
        text = protobuf.complete(files)
        first = files[-1]
    else:
        client = registry(form.registry)
        found = [
            client.version(subject, form.version or "latest")
            for subject in _subjects(form, topics, key)
        ]
        text = _one([protobuf.registered_set(client, schema) for schema in found], topics)
        first = protobuf.registered_file(found[0], protobuf.MAIN)
    try:
        message = form.message or protobuf.name_at(first, (0,))
    except IndexError:
        raise ValueFormatError(
            f"{form.descriptor or 'the registered schema'} has no message"
        ) from None
    protobuf.message_of(text, message)
    return replace(form, schema=text, message=message, descriptor="", resolved=True)


def _subjects(form: Format, topics: Sequence[str], key: bool) -> list[str]:
    """Return the subjects of schemas (Kafka's default, TopicNameStrategy)."""
    return [form.subject] if form.subject else [f"{t}-{'key' if key else 'value'}" for t in topics]


def _one(texts: list[str], topics: Sequence[str]) -> str:
    if len(set(texts)) != 1:
        raise ValueFormatError(
            f"the topics {', '.join(topics) or '(none)'} have {len(set(texts))} different schemas "
            "in the registry: name one by subject, or write a table for each"
        )
    return texts[0]


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueFormatError(f"the schema file {path} cannot be read: {error.strerror}") from None


def converter(form: Format, *, key: bool = False) -> Converter:
    """Create the converter of values, or keys, of a resolved format other than JSON. Raises
    ValueFormatError."""
    name = "_key" if key else "_value"
    if form.format == spec.BYTES:
        return Bytes(name)
    if form.format == spec.TEXT:
        return Text(name)
    client: Registry | None = registry(form.registry) if form.registry else None
    if form.format == spec.AVRO:
        from kafkawire_spark.pipeline.values import avro

        decoder = avro.AvroDecoder(form.schema, client)
        return Decoded(form, name, decoder, decoder.columns.root.type, avro.build)
    if form.format == spec.PROTOBUF:
        from kafkawire_spark.pipeline.values import protobuf

        parser = protobuf.ProtobufDecoder(form.schema, form.message, client)
        return Decoded(form, name, parser, parser.root.type, protobuf.build)
    raise ValueFormatError(f"{form.format} values are not converted in a task")


class Bytes:
    """Return the bytes unchanged."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.binary())]

    def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        return [batch.column(self._name)], {}


class Text:
    """UTF-8, which Arrow checks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.string())]

    def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        payloads = batch.column(self._name)
        try:
            return [payloads.cast(pa.string())], {}
        except pa.ArrowInvalid:
            texts, bad = _texts(payloads.to_pylist())
            return [pa.array(texts, pa.string())], bad


def _texts(payloads: list[bytes | None]) -> tuple[list[str | None], dict[int, str]]:
    texts: list[str | None] = []
    bad: dict[int, str] = {}
    for row, payload in enumerate(payloads):
        try:
            texts.append(None if payload is None else payload.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            bad[row] = f"not UTF-8: {error.reason} at byte {error.start}"
    return texts, bad


class Decoded:
    """Converts Avro or Protobuf. A record as value becomes its columns; any other value, and every
    key, one column."""

    def __init__(
        self,
        form: Format,
        name: str,
        decoder: AvroDecoder | ProtobufDecoder,
        type: pa.DataType,
        build: Any,
    ) -> None:
        self._form, self._name, self._decoder, self._build = form, name, decoder, build
        self._flat = name == "_value" and pa.types.is_struct(type)
        self._fields = list(type) if self._flat else [pa.field(name, type)]
        if self._flat:
            checked_columns([field.name for field in self._fields], "value")

    def fields(self) -> list[pa.Field]:
        return self._fields

    def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        column, bad = self._build(self._decoder, batch.column(self._name))
        return (column.flatten() if self._flat else [column]), bad

    def __reduce__(self) -> tuple[Any, tuple[Format, bool]]:
        """Pickle as its format: the decoder is built again in each process."""
        return _rebuild_converter, (self._form, self._name == "_key")


def _rebuild_converter(form: Format, key: bool) -> Converter:
    return converter(form, key=key)
