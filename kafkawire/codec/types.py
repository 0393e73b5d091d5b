"""The types of Kafka's wire protocol, as annotations for message declarations.

`int16`, `int32`, ... are plain `int` to a type checker and carry the width for the compiler; `str`,
`bool` and `bytes` mean themselves, `float` is Kafka's float64, and a uuid is 16 bytes. This module
only declares them: `codec.schema` reads the annotations, `codec.compile` generates code.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class NotInMemory(Protocol):
    """A part of a response that is not in memory (kafkawire.log.io.file_span)."""

    def __len__(self) -> int: ...


Part: TypeAlias = Buffer | NotInMemory
"""A part of a response: bytes, or what the connection sends by itself."""


class DecodeError(ValueError):
    """The bytes are not a valid message. The only error raised by decoding."""


class Kind:
    """Wire type of one value; `code` and `size_bytes` only if the size is fixed."""

    __slots__ = ("code", "name", "size_bytes")

    def __init__(self, name: str, code: str = "", size_bytes: int = 0) -> None:
        self.name = name
        self.code = code
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"Kind({self.name})"


BOOL = Kind("bool", "?", 1)
INT8 = Kind("int8", "b", 1)
INT16 = Kind("int16", "h", 2)
UINT16 = Kind("uint16", "H", 2)
INT32 = Kind("int32", "i", 4)
UINT32 = Kind("uint32", "I", 4)
INT64 = Kind("int64", "q", 8)
FLOAT64 = Kind("float64", "d", 8)
UUID = Kind("uuid", "16s", 16)
STRING = Kind("string")
BYTES = Kind("bytes")
RECORDS = Kind("records")
STRUCT = Kind("struct")
UNKNOWN_TAGS = Kind("unknown_tags")

int8 = Annotated[int, INT8]
int16 = Annotated[int, INT16]
uint16 = Annotated[int, UINT16]
int32 = Annotated[int, INT32]
uint32 = Annotated[int, UINT32]
int64 = Annotated[int, INT64]
uuid = Annotated[bytes, UUID]
# Decoded as a memoryview onto the input; encoded from one buffer or several, none of them copied.
Records = Annotated[Buffer | list[Buffer], RECORDS]
# Tagged fields this version of the declarations does not know: kept, and written again.
UnknownTags = Annotated[dict[int, bytes] | None, UNKNOWN_TAGS]

# What an annotation without a Kind means.
PLAIN_KINDS: dict[type, Kind] = {bool: BOOL, float: FLOAT64, str: STRING, bytes: BYTES}

ZERO_UUID = bytes(16)


def uuid_text(value: bytes) -> str:
    """Return the 22 characters Kafka prints for a uuid: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_parse(text: str) -> bytes:
    """Parse the text of `uuid_text` into 16 bytes. ValueError for anything else."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"not a uuid: {text!r}") from error
    if len(value) != 16 or len(text) != 22:
        raise ValueError(f"not a uuid: {text!r}")
    return value
