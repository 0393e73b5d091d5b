"""Header of a value written with a schema registry: Confluent's wire format. Pure.

A zero byte, the id of the schema (four bytes, big-endian), the value. In Protobuf the path of the
message in the schema is in between: the number of indexes, then each index, all as zigzag varints:
the message's index in the file, the index of a nested message in it, and so on. A single zero byte
is the file's first message.
"""

from __future__ import annotations

from kafkawire.codec.varint import read_varint

NUMBER_END = 5
INDEXES_MAX = 64  # maximum nesting of messages; generated code has fewer levels


class BadValue(Exception):
    """This value cannot be decoded; the text is the reason."""


def number_of(payload: bytes) -> int:
    """Return the id of the schema. Raises BadValue."""
    if len(payload) < NUMBER_END:
        raise BadValue(f"{len(payload)} bytes, a value with a schema has at least {NUMBER_END}")
    if payload[0]:
        raise BadValue(f"begins with byte {payload[0]}, not with 0 and the number of a schema")
    return int.from_bytes(payload[1:NUMBER_END], "big")


def message_path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message's path and the position of the value. Raises BadValue."""
    count, at = _varint(payload, NUMBER_END)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise BadValue(f"{count} message indexes, at most {INDEXES_MAX} can be")
    path = []
    for _ in range(count):
        index, at = _varint(payload, at)
        path.append(index)
    return tuple(path), at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(payload, at)
    except IndexError:
        raise BadValue("ends in its message indexes") from None
