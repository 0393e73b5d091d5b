"""The sections [value] and [key] of a job, validated. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from urllib.parse import urlsplit, urlunsplit

from kafkawire.reading.model.source import InvalidInput

BYTES, TEXT, JSON, AVRO, PROTOBUF = "bytes", "text", "json", "avro", "protobuf"
FORMATS = (BYTES, TEXT, JSON, AVRO, PROTOBUF)

# The settings that each format uses, besides `format` itself.
_SETTINGS = {
    BYTES: (),
    TEXT: (),
    JSON: ("schema", "schema_file"),
    AVRO: ("schema", "schema_file", "registry", "subject", "version"),
    PROTOBUF: ("descriptor", "message", "registry", "subject", "version"),
}

RESERVED = frozenset(
    ("_topic", "_partition", "_offset", "_timestamp", "_timestamp_type", "_key", "_headers")
)
"""Columns that every table may have; a schema must not use these names."""


class ValueFormatError(InvalidInput):
    """The format of values or keys is invalid; one sentence."""


@dataclass(frozen=True, slots=True)
class Format:
    """Format of values: how bytes become columns. As written in the job, or `resolved` with the
    complete `schema`.

    `schema`: Avro as JSON; for json a Spark schema, DDL or JSON. `schema_file`: a file with it.
    `registry`: URL of a schema registry; then values begin with Confluent's five bytes. `subject`,
    `version`: the schema of the columns; by default TOPIC-value (or -key) and the latest.
    `descriptor`: a file of `protoc --descriptor_set_out --include_imports`; `message`: the full
    name of the message in it. Resolved, `schema` is for protobuf the descriptor set in base64.
    """

    format: str = BYTES
    schema: str = ""
    schema_file: str = ""
    registry: str = ""
    subject: str = ""
    version: str = ""
    message: str = ""
    descriptor: str = ""
    resolved: bool = False

    def validate(self, where: str = "value") -> Format:
        """Return itself if valid. Raises ValueFormatError that names the key as `where`.key."""
        if self.format not in _SETTINGS:
            raise ValueFormatError(
                f"{where}.format is {self.format!r}: it is one of {', '.join(FORMATS)}"
            )
        allowed = _SETTINGS[self.format]
        for name in (field.name for field in fields(self)):
            if name == "format" or not getattr(self, name) or name in allowed:
                continue
            takes = f"takes {', '.join(allowed)}" if allowed else "takes no other setting"
            raise ValueFormatError(f"{where}.{name} is set, but the format {self.format} {takes}")
        self._check_schema(where)
        return self

    def without_login(self) -> Format:
        """Return the format without user and password in the registry's URL, to be stored."""
        return replace(self, registry=_without_login(self.registry))

    def with_login_of(self, job: Format) -> Format:
        """Return a stored format with user and password of the job's URL of the same registry."""
        if _without_login(job.registry) != _without_login(self.registry):
            return self
        return replace(self, registry=job.registry)

    def _check_schema(self, where: str) -> None:
        if self.schema and self.schema_file:
            raise ValueFormatError(
                f"{where}.schema and {where}.schema_file are both set: one is enough"
            )
        if self.version and self.version != "latest" and not self.version.isdecimal():
            raise ValueFormatError(
                f"{where}.version is {self.version!r}: it is a number, or latest"
            )
        if self.format == JSON and not (self.schema or self.schema_file):
            raise ValueFormatError(
                f"{where}.schema is missing: json needs one, as Spark DDL or JSON"
            )
        if self.format == AVRO and not (self.schema or self.schema_file or self.registry):
            raise ValueFormatError(f"{where}.registry is missing: avro needs it, or schema(_file)")
        if self.format == PROTOBUF and not (self.descriptor or self.registry):
            raise ValueFormatError(f"{where}.registry is missing: protobuf needs it, or descriptor")
        if self.format == PROTOBUF and not (self.registry or self.message):
            raise ValueFormatError(
                f"{where}.message is missing: which one of the descriptor's is it"
            )


def _without_login(url: str) -> str:
    """Return the URL without USER:PASSWORD@."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def checked_columns(names: list[str], where: str) -> None:
    """Check that a table can have these columns: none reserved, and none twice except for case,
    which Spark ignores. Raises ValueFormatError."""
    seen: dict[str, str] = {}
    for name in names:
        low = name.lower()
        if low in RESERVED:
            raise ValueFormatError(
                f"the schema of the {where} has a field {name!r}: that is reserved"
            )
        if low in seen:
            raise ValueFormatError(
                f"the schema of the {where} has fields {seen[low]!r} and {name!r}: "
                "names must differ in more than case"
            )
        seen[low] = name
