"""A slow, obvious codec that interprets declarations field by field; the compiled one must agree.

It shares the declarations (`codec.schema`) with the compiler and nothing else. Written to be read
next to Kafka's protocol guide. Used by tests only.
"""

from __future__ import annotations

import struct
from typing import Any

from kafkawire.codec.schema import Field, fields_of, info_of
from kafkawire.codec.types import DecodeError

_FIXED = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


def encode(message: Any, version: int) -> bytes:
    """The message as bytes."""
    writer = _Writer(version, info_of(type(message)).flexible(version))
    return writer.struct(message)


def decode(cls: type, version: int, data: bytes) -> Any:
    """The message that fills `data` exactly; DecodeError for anything else."""
    reader = _Reader(bytes(data), version, info_of(cls).flexible(version))
    message = reader.struct(cls)
    if reader.data:
        raise DecodeError("bytes left over")
    return message


def unsigned_varint(value: int) -> bytes:
    """Seven bits a byte, lowest first, the high bit set on all but the last."""
    if value < 128:
        return bytes([value])
    return bytes([value % 128 + 128]) + unsigned_varint(value // 128)


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def struct(self, message: Any) -> bytes:
        out = b""
        tags = dict(getattr(message, "unknown_tags", None) or {})
        for field in fields_of(type(message)):
            value = getattr(message, field.name)
            if not field.present(self.version):
                continue
            if field.tag is None:
                out += self.field(field, value)
            elif not _is_default(field, value):
                tags[field.tag] = self.field(field, value)
        if self.flexible:
            out += unsigned_varint(len(tags))
            for tag in sorted(tags):
                out += unsigned_varint(tag) + unsigned_varint(len(tags[tag])) + tags[tag]
        return out

    def field(self, field: Field, value: Any) -> bytes:
        if value is None and not field.nullable(self.version):
            raise ValueError(f"{field.name} is not nullable")
        if not field.is_array:
            return self.value(field, value)
        if value is None:
            return self.length(-1, ">i")
        out = self.length(len(value), ">i")
        for item in value:
            out += self.value(field, item, inside_array=True)
        return out

    def value(self, field: Field, value: Any, inside_array: bool = False) -> bytes:
        name = field.kind.name
        if name in _FIXED:
            return struct.pack(_FIXED[name], value)
        if name == "uuid":
            assert len(value) == 16
            return bytes(value)
        if name == "struct":
            if inside_array or not field.nullable(self.version):
                return self.struct(value)
            return b"\xff" if value is None else b"\x01" + self.struct(value)
        code = ">h" if name == "string" else ">i"
        if value is None:
            return self.length(-1, code, field.inflexible)
        if name == "string":
            value = value.encode("utf-8")
        elif isinstance(value, list):
            value = b"".join(value)
        return self.length(len(value), code, field.inflexible) + bytes(value)

    def length(self, count: int, code: str, inflexible: bool = False) -> bytes:
        if self.flexible and not inflexible:
            return unsigned_varint(count + 1)
        return struct.pack(code, count)


class _Reader:
    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        self.data = data
        self.version = version
        self.flexible = flexible

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise DecodeError("too short")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def varint(self) -> int:
        value = 0
        for position in range(5):
            byte = self.take(1)[0]
            value += (byte % 128) << (7 * position)
            if byte < 128:
                if value > 2**31 - 1:
                    raise DecodeError("varint over int32")
                return value
        raise DecodeError("varint over 5 bytes")

    def struct(self, cls: type) -> Any:
        message = cls()
        tagged = {}
        for field in fields_of(cls):
            if not field.present(self.version):
                continue
            if field.tag is None:
                setattr(message, field.name, self.field(field))
            else:
                tagged[field.tag] = field
        if not self.flexible:
            return message
        for _ in range(self.varint()):
            number = self.varint()
            content = self.take(self.varint())
            if number in tagged:
                inner = _Reader(content, self.version, self.flexible)
                setattr(message, tagged[number].name, inner.field(tagged[number]))
                if inner.data:
                    raise DecodeError("tagged field of another size")
            else:
                message.unknown_tags = {**(message.unknown_tags or {}), number: content}
        return message

    def field(self, field: Field) -> Any:
        if not field.is_array:
            return self.value(field)
        count = self.length(field, ">i")
        if count is None:
            return None
        if count > len(self.data):
            raise DecodeError("array over its bytes")
        return [self.value(field, inside_array=True) for _ in range(count)]

    def value(self, field: Field, inside_array: bool = False) -> Any:
        name = field.kind.name
        if name in _FIXED:
            code = _FIXED[name]
            return struct.unpack(code, self.take(struct.calcsize(code)))[0]
        if name == "uuid":
            return self.take(16)
        if name == "struct":
            assert field.struct is not None
            if not inside_array and field.nullable(self.version) and self.take(1)[0] > 127:
                return None
            return self.struct(field.struct)
        count = self.length(field, ">h" if name == "string" else ">i", inside_array)
        if count is None:
            return None
        content = self.take(count)
        if name != "string":
            return content
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError("not UTF-8") from error

    def length(self, field: Field, code: str, inside_array: bool = False) -> int | None:
        if self.flexible and not field.inflexible:
            count = self.varint() - 1
        else:
            count = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        if count >= 0:
            return int(count)
        if count == -1 and field.nullable(self.version) and not inside_array:
            return None
        raise DecodeError("negative length")


def _is_default(field: Field, value: Any) -> bool:
    if field.absent_is_none:
        assert field.struct is not None
        return value is None or value == field.struct()
    return bool(value == field.default)
