"""Parts of the flat codecs of Produce and Fetch: topics, lengths of arrays, tagged fields."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kafkawire.codec.compile import DecodeError
from kafkawire.codec.varint import put_uvarint, read_uvarint

Topic = str | bytes
"""A name up to v12, a 16-byte topic id from v13 (KIP-516)."""

PartitionTags = dict[tuple[Topic, int], bytes]
"""Sections of tagged fields of the partitions that have some (KIP-951)."""

Tags = tuple[PartitionTags, bytes]
"""The tagged fields of partitions, and those of the response."""

MAX_TAGS = 64
"""Tagged fields in one place of a request; all of Kafka's have numbers below this."""

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")


def skip_tags(buf: memoryview, pos: int, end: int) -> int:
    """Return the position after a tagged-field section (KIP-482) at `pos`; DecodeError if it is
    incomplete."""
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGS:
        raise DecodeError(f"a section of {count} tagged fields")
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > end:
            raise DecodeError("a tagged field does not fit its request")
    return pos


def put_count(head: bytearray, count: int, flexible: bool) -> None:
    """Append the length of an array."""
    if flexible:
        put_uvarint(head, count + 1)
    else:
        head += _INT.pack(count)


def put_topic(head: bytearray, topic: Topic, flexible: bool) -> None:
    """Append the name or id of a topic."""
    if isinstance(topic, bytes):
        head += topic
        return
    name = topic.encode()
    if flexible:
        put_uvarint(head, len(name) + 1)
    else:
        head += _SHORT.pack(len(name))
    head += name
