"""Parse records of `__consumer_offsets`: commits, groups and their tombstones. Pure.

Keys begin with the record type as int16, values with their version; a null value is a tombstone
(kafkawire.messages.stored has Kafka's formats). Runs in Spark tasks, once per record: the topic is
comparatively small. Not supported: share groups and streams groups, whose records are `OTHER`.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkawire.codec.compile import decode_versioned, version_of
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.messages.stored import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue

COMMIT, REMOVED, GROUP, DELETED = "commit", "removed", "group", "deleted"
OTHER, UNREADABLE = "other", "unreadable"
"""Kinds of events. commit: an offset; removed: its tombstone; group: metadata of a group; deleted:
its tombstone; other: a record type that is not of a classic group; unreadable: malformed."""

OFFSET_KEYS, GROUP_KEY = (0, 1), 2


class Event(NamedTuple):
    """`committed`: only of a commit; `topic` and `partition`: of commits and their removal."""

    kind: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    committed: int | None = None


def decode_event(key: Buffer | None, value: Buffer | None) -> Event:
    """Parse one record. Never raises: a malformed record is an event, too, and counted."""
    if key is None:
        return Event(UNREADABLE)
    try:
        kind = version_of(key)
        if kind in OFFSET_KEYS:
            return _offset(key, value)
        if kind == GROUP_KEY:
            group = decode_versioned(GroupMetadataKey, key).group
            return Event(DELETED if value is None else GROUP, group)
        return Event(OTHER)
    except DecodeError:
        return Event(UNREADABLE)


def _offset(key: Buffer, value: Buffer | None) -> Event:
    of = decode_versioned(OffsetCommitKey, key)
    if value is None:
        return Event(REMOVED, of.group, of.topic, of.partition)
    committed = decode_versioned(OffsetCommitValue, value).offset
    return Event(COMMIT, of.group, of.topic, of.partition, committed)
