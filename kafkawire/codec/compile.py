"""Encoders and decoders of declared messages, one of each per (message, version).

Each is flat Python source generated from the declaration on first use, compiled once and cached:
nothing is interpreted per field. Decoding raises `DecodeError` for invalid input and nothing else.
Called by the server, the handlers, the groups and the client; independent of any message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from kafkawire.codec import emit
from kafkawire.codec.compile_decode import DecodeWriter, allowed_elements
from kafkawire.codec.compile_encode import EncodeWriter
from kafkawire.codec.schema import fields_in, info_of
from kafkawire.codec.types import RECORDS, STRUCT, Buffer, DecodeError

__all__ = [
    "Buffer",
    "DecodeError",
    "decode",
    "decode_versioned",
    "decoder",
    "encode",
    "encode_versioned",
    "encoder",
    "part_encoder",
    "sliced_decoder",
    "sliced_encoder",
    "version_of",
]

T = TypeVar("T")

_VERSION = struct.Struct(">h")
_decoders: dict[tuple[type, int], Any] = {}
_encoders: dict[tuple[type, int], Any] = {}
_sliced_decoders: dict[tuple[type, int], Any] = {}
_sliced_encoders: dict[tuple[type, int], Any] = {}


def decoder(cls: type[T], version: int) -> Callable[[Buffer, int, int], tuple[T, int]]:
    """Return a decoder `(buffer, position, end) -> (message, position after it)`, which raises
    DecodeError.

    Strings and bytes are copied out of the buffer, `Records` fields are memoryviews onto it.
    ValueError here when the message has no such version.
    """
    made = _decoders.get((cls, version))
    if made is None:
        made = _decoders[cls, version] = _make_decoder(cls, version)
    return made  # type: ignore[no-any-return]


def encoder(cls: type[T], version: int) -> Callable[[T, list[Buffer]], None]:
    """Return an encoder `(message, parts)` that appends the encoded message; `Records` are not
    copied.

    Raises ValueError, TypeError, AttributeError or struct.error when a value cannot be written.
    ValueError here when the message has no such version.
    """
    made = _encoders.get((cls, version))
    if made is None:
        made = _encoders[cls, version] = _make_encoder(cls, cls, version)
    return made  # type: ignore[no-any-return]


def sliced_decoder(
    cls: type[T], version: int
) -> Callable[[Buffer, int, int, list[T]], Generator[None, None, int]]:
    """Return a decoder as a generator that yields after every `emit.STEP` array elements, appends
    the message to the given list and returns the position after it. The buffer must stay as it is
    until then. After a DecodeError the list has what was decoded, which may be long to free."""
    made = _sliced_decoders.get((cls, version))
    if made is None:
        made = _sliced_decoders[cls, version] = _make_sliced_decoder(cls, version)
    return made  # type: ignore[no-any-return]


def sliced_encoder(
    cls: type[T], version: int
) -> Callable[[T, list[Buffer]], Generator[None, None, None]]:
    """Return an encoder as a generator that yields after every `emit.STEP` array elements."""
    made = _sliced_encoders.get((cls, version))
    if made is None:
        made = _sliced_encoders[cls, version] = _make_encoder(cls, cls, version, sliced=True)
    return made  # type: ignore[no-any-return]


def part_encoder(message: type, part: type[T], version: int) -> Callable[[T, list[Buffer]], None]:
    """Return an encoder for a struct inside `message`: long responses are encoded piece by
    piece."""
    made = _encoders.get((part, version))
    if made is None:
        made = _encoders[part, version] = _make_encoder(message, part, version)
    return made  # type: ignore[no-any-return]


def encode(message: object, version: int) -> bytes:
    """Return the whole message as bytes."""
    parts: list[Buffer] = []
    encoder(type(message), version)(message, parts)
    return b"".join(parts)


def decode(cls: type[T], version: int, data: Buffer) -> T:
    """Decode the message that fills `data` exactly; DecodeError also for trailing bytes."""
    message, position = decoder(cls, version)(data, 0, len(data))
    if position != len(data):
        raise DecodeError(f"{len(data) - position} bytes after {cls.__name__} v{version}")
    return message


def encode_versioned(message: object, version: int) -> bytes:
    """Encode with a leading int16 version, as internal topics store keys and values."""
    parts: list[Buffer] = [_VERSION.pack(version)]
    encoder(type(message), version)(message, parts)
    return b"".join(parts)


def version_of(data: Buffer) -> int:
    """Return the leading int16 version of a stored key or value."""
    if len(data) < 2:
        raise DecodeError("no version")
    found: int = _VERSION.unpack_from(data)[0]
    return found


def decode_versioned(cls: type[T], data: Buffer) -> T:
    """Message decoded from what `encode_versioned` wrote; DecodeError for an undeclared version."""
    version = version_of(data)
    info = info_of(cls)
    if not info.min_version <= version <= info.max_version:
        raise DecodeError(f"{cls.__name__} version {version}")
    return decode(cls, version, memoryview(data)[2:])


def _check_version(cls: type, version: int) -> bool:
    """Return True if this version is flexible (KIP-482)."""
    info = info_of(cls)
    if not info.min_version <= version <= info.max_version:
        raise ValueError(f"{cls.__name__} has no version {version}")
    return info.flexible(version)


_GARBAGE = (struct.error, IndexError, UnicodeDecodeError)
"""Errors that generated code raises for bytes that are no message, in addition to DecodeError."""


def _decoder_body(cls: type, version: int, *, views: bool, sliced: bool) -> Any:
    flexible = _check_version(cls, version)
    bounded = info_of(cls).kind == "request"
    source = emit.FunctionSource()
    if bounded:
        source.space["allowed"] = allowed_elements
        source.line("left = allowed(e - p)")
    if sliced:
        source.line("k = 0")
        source.line("if False: yield")  # a message without arrays is a generator too
    writer = DecodeWriter(source, version, flexible, views=views, bounded=bounded, sliced=sliced)
    if sliced:
        made = source.constant(cls, cls.__name__)
        source.line(f"o = object.__new__({made})")
        source.line("made.append(o)")
    writer.message(cls, "o", "e", made=sliced)
    source.line("if p > e: raise DecodeError('message over its bytes')")
    source.line("return p" if sliced else "return o, p")
    head = "def _made(b, p, e, made):" if sliced else "def _made(b, p, e):"
    return source.function(head, f"<decode {cls.__name__} v{version}>")


def _make_decoder(cls: type, version: int) -> Any:
    views = _holds_records(cls, version)
    body = _decoder_body(cls, version, views=views, sliced=False)
    name = f"{cls.__name__} v{version}"

    def decode_view(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        try:
            found: tuple[Any, int] = body(memoryview(data), position, end)
        except _GARBAGE as error:
            raise DecodeError(f"{name}: {error}") from None
        return found

    def decode_bytes(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        # Slices of bytes decode faster than slices of views; one copy of the message pays for it.
        try:
            if type(data) is bytes:
                found: tuple[Any, int] = body(data, position, end)
                return found
            message, read = body(bytes(memoryview(data)[position:end]), 0, end - position)
        except _GARBAGE as error:
            raise DecodeError(f"{name}: {error}") from None
        return message, position + read

    made = decode_view if views else decode_bytes
    made.__wire_source__ = body.__wire_source__  # type: ignore[attr-defined]
    return made


def _make_sliced_decoder(cls: type, version: int) -> Any:
    body = _decoder_body(cls, version, views=True, sliced=True)
    name = f"{cls.__name__} v{version}"

    def decode_slices(
        data: Buffer, position: int, end: int, made: list[Any]
    ) -> Generator[None, None, int]:
        try:
            after: int = yield from body(memoryview(data), position, end, made)
        except _GARBAGE as error:
            raise DecodeError(f"{name}: {error}") from None
        return after

    return decode_slices


def _make_encoder(message: type, cls: type, version: int, *, sliced: bool = False) -> Any:
    flexible = _check_version(message, version)
    source = emit.FunctionSource()
    source.line("out = []")
    source.line("a = out.append")
    if sliced:
        source.line("k = 0")
        source.line("if False: yield")  # a message without arrays is a generator too
    checked = info_of(message).kind in ("request", "stored")
    EncodeWriter(source, version, flexible, checked, sliced=sliced).message(cls, "v")
    source.line("if out: parts.append(join(out))")
    return source.function("def _made(v, parts):", f"<encode {cls.__name__} v{version}>")


def _holds_records(cls: type, version: int) -> bool:
    for field in fields_in(cls, version):
        if field.kind is RECORDS:
            return True
        if field.kind is STRUCT and field.struct and _holds_records(field.struct, version):
            return True
    return False
