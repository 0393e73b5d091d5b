"""Values of the reading API. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kafkawire.codec.batches import Record
from kafkawire.reading.model.source import SourceError


class UnknownName(SourceError):
    """The source has no such topic or partition."""


class TopicRecord(NamedTuple):
    """A record with its place. `timestamp`: ms since 1970; `headers` keep order and repeated
    names; a `value` of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def topic_record(topic: str, partition: int, record: Record) -> TopicRecord:
    """Return a record of a batch with its place."""
    return TopicRecord(
        topic,
        partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple(record.headers),
    )


class PartitionBounds(NamedTuple):
    """The offsets [start, end) that a partition has in this source."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RecordConditions:
    """Conditions on records. `keys`: one of these (None: a record without a key); None: any.
    `since_ms`, `until_ms`: its timestamp is in [since, until)."""

    keys: frozenset[bytes | None] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
