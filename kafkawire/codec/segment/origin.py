"""Origin section of a segment, laid out in kafkawire.codec.segment.format.

It names the cluster and topics of the records, so that they can be restored from the file alone.
Every length that is read is checked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import Buffer

_HEAD = Struct("<IIHH")
_TOPIC = Struct("<16sIIqI")
_CONFIG = Struct("<HI")
INTERNAL = 1
"""Bit 0 of a topic's flags."""


@dataclass(slots=True)
class TopicOrigin:
    """A topic as it was when the segment was written; its name is in the directory.
    `configs`: its own settings as texts."""

    id: bytes
    partitions: int
    created_ms: int
    internal: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Origin:
    """Origin of a segment. `generation` 0: cut from journals; a rewrite has 1 + that of its newest
    input, and takes precedence over its inputs. `topics`: those of the directory that existed when
    it was written."""

    cluster_id: str
    generation: int = 0
    retention_class: str = ""
    topics: Sequence[TopicOrigin] = ()


def write_origin(origin: Origin) -> bytes:
    cluster_id, kind = origin.cluster_id.encode(), origin.retention_class.encode()
    parts = [
        _HEAD.pack(len(origin.topics), origin.generation, len(cluster_id), len(kind)),
        cluster_id,
        kind,
    ]
    for topic in origin.topics:
        flags = INTERNAL if topic.internal else 0
        count = len(topic.configs)
        parts.append(_TOPIC.pack(topic.id, flags, topic.partitions, topic.created_ms, count))
        for key, value in topic.configs.items():
            name, text = key.encode(), value.encode()
            parts += [_CONFIG.pack(len(name), len(text)), name, text]
    return b"".join(parts)


def read_origin(body: Buffer) -> Origin:
    """Decode an origin section. FormatError for anything `write_origin` did not write."""
    reader = _Reader(memoryview(body))
    count, generation, cluster, kind = reader.unpack(_HEAD)
    origin = Origin(reader.unpack_text(cluster), generation, reader.unpack_text(kind))
    topics = []
    for _ in range(count):  # each takes bytes, so a count too large ends at the body's end
        topic_id, flags, partitions, created_ms, settings = reader.unpack(_TOPIC)
        configs = {}
        for _ in range(settings):
            name, value = reader.unpack(_CONFIG)
            key = reader.unpack_text(name)
            configs[key] = reader.unpack_text(value)
        topics.append(
            TopicOrigin(topic_id, partitions, created_ms, bool(flags & INTERNAL), configs)
        )
    if reader.at != len(body):
        raise FormatError("its origin does not end where its last topic does")
    origin.topics = topics
    return origin


class _Reader:
    """Reader of the fields of the body, in order. FormatError if it ends too early."""

    __slots__ = ("_view", "at")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.at = 0

    def _go(self, size: int) -> int:
        start = self.at
        # The only check of lengths: every field passes here.
        if start + size > len(self._view):
            raise FormatError("its origin is cut short")
        self.at += size
        return start

    def unpack(self, fields: Struct) -> tuple[Any, ...]:
        return fields.unpack_from(self._view, self._go(fields.size))

    def unpack_text(self, size: int) -> str:
        start = self._go(size)
        try:
            return str(self._view[start : start + size], "utf-8")
        except UnicodeDecodeError:
            raise FormatError("its origin has a text that is none") from None
