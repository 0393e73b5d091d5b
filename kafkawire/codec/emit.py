"""Shared parts of both code generators: source lines, names, and helpers for generated code.

Generated functions are flat: nested structs are inlined, adjacent fixed-size fields share one
`struct.Struct`. They are made by `compile_decode` and `compile_encode`, called by `compile` only.
"""

from __future__ import annotations

import struct
from typing import Any

from kafkawire.codec.types import DecodeError, Kind
from kafkawire.codec.varint import put_uvarint, read_uvarint

# Arrays of numbers up to this length use a prepared Struct; longer ones format their own. Replica
# lists and partition lists are nearly always this short.
SHORT_ARRAY = 16

_MAX_UVARINT_BYTES, _MAX_INT32 = 5, (1 << 31) - 1

STEP = 32
"""Array elements that a sliced decoder or encoder takes before it stops: some 50 microseconds. A
power of two."""

ONE_BYTE = [bytes([value]) for value in range(256)]


class FunctionSource:
    """Lines of one function, the globals they need, and fresh local names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.space: dict[str, Any] = {}
        self._depth = 1
        self._counter = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def indent(self) -> None:
        self._depth += 1

    def dedent(self) -> None:
        self._depth -= 1

    def local(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def constant(self, value: Any, prefix: str) -> str:
        """Return the global name of `value` in generated code."""
        for name, known in self.space.items():
            if known is value:
                return name
        name = f"{prefix}_{len(self.space)}"
        self.space[name] = value
        return name

    def method(self, codes: str, name: str) -> str:
        """Return the global name of `pack` or `unpack_from` of the Struct for these format
        codes."""
        known = f"{name}_{codes.replace('?', 'z')}"
        if known not in self.space:
            self.space[known] = getattr(struct_of(codes), name)
        return known

    def function(self, head: str, filename: str) -> Any:
        text = "\n".join([head, *self.lines, ""])
        exec(compile(text, filename, "exec"), self.space)
        made = self.space["_made"]
        made.__wire_source__ = text
        return made


_structs: dict[str, struct.Struct] = {}


def struct_of(codes: str) -> struct.Struct:
    """Return the shared Struct for a run of format codes."""
    made = _structs.get(codes)
    if made is None:
        made = _structs[codes] = struct.Struct(">" + codes)
    return made


_unpackers: dict[str, tuple[Any, ...]] = {}
_packers: dict[str, tuple[Any, ...]] = {}


def array_unpackers(kind: Kind) -> tuple[Any, ...]:
    """Return functions: `[n](buffer, position)` unpacks n numbers, for n below SHORT_ARRAY."""
    made = _unpackers.get(kind.name)
    if made is None:
        made = tuple(struct.Struct(f">{n}{kind.code}").unpack_from for n in range(SHORT_ARRAY))
        _unpackers[kind.name] = made
    return made


def array_packers(kind: Kind, length_code: str) -> tuple[Any, ...]:
    """Return functions: `[n](length, *numbers)` packs a length and n numbers, for n below
    SHORT_ARRAY."""
    made = _packers.get(length_code + kind.name)
    if made is None:
        formats = [f">{length_code}{n}{kind.code}" for n in range(SHORT_ARRAY)]
        made = tuple(struct.Struct(text).pack for text in formats)
        _packers[length_code + kind.name] = made
    return made


def read_length(data: Any, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes, the first one of which is before `position`.

    Values beyond int32 are refused: every length and tag in Kafka is an int32.
    """
    try:
        value, position = read_uvarint(data, position - 1)
    except IndexError:
        if len(data) - position < _MAX_UVARINT_BYTES - 1:
            raise  # it is cut off
        value = _MAX_INT32 + 1
    if value > _MAX_INT32:
        raise DecodeError("varint over 5 bytes or 31 bits")
    return value, position


def read_numbers(
    data: Any, position: int, end: int, first: int, code: str, size_bytes: int
) -> tuple[list[Any], int]:
    """Read the rest of a compact array of numbers whose length begins with the byte `first`."""
    count = first
    if first > 127:
        count, position = read_length(data, position)
    count -= 1
    stop = position + count * size_bytes
    if count < 0 or stop > end:
        raise DecodeError("array over its bytes")
    return list(struct.unpack_from(f">{count}{code}", data, position)), stop


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    made = bytearray()
    put_uvarint(made, value)
    return bytes(made)


def read_unknown_tag(tags: dict[int, bytes] | None, number: int, value: Any) -> dict[int, bytes]:
    """Add one unknown tagged field."""
    if tags is None:
        tags = {}
    tags[number] = bytes(value)
    return tags


def write_tags(known: dict[int, bytes] | None, unknown: dict[int, bytes] | None) -> bytes:
    """The tag section, sorted by tag: Kafka refuses any other order."""
    fields = {**(unknown or {}), **(known or {})}
    pieces = [uvarint(len(fields))]
    for number, value in sorted(fields.items()):
        pieces += (uvarint(number), uvarint(len(value)), value)
    return b"".join(pieces)
