"""The records of `__consumer_offsets`: values, and their encoding in Kafka's format.

A key begins with its record type and a value with its version, int16 each; a null value is a
tombstone. Written: OffsetCommit (key type 1) and GroupMetadata (key type 2) in versions that Kafka
from 2.1 on and its formatters read, and the records of KIP-848 and KIP-932. Read: all versions.

Pure; used by the state machines, kafkawire.groups.coordinator and kafkawire.groups.load.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from kafkawire.codec.batches import CONTROL, HEAD_BYTES, read_head, records
from kafkawire.codec.compile import decoder, encode_versioned, version_of
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.messages.stored import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupNamedKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupKey,
    ShareGroupMemberKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataValue,
)

T = TypeVar("T")

OFFSET_COMMIT = 1  # key type; 0 is the same, from before Kafka 0.9
GROUP_METADATA = 2

GROUP_VERSION = 3
OFFSET_VERSION = 3
# Only version 1 can store the retention that a commit brings itself (OffsetCommit 2-4).
OFFSET_VERSION_WITH_EXPIRY = 1


STRING_BYTES = 32_767
"""Maximum length of a string in a record, an int16. Flexible requests can have longer ones, so
strings to be stored are checked when the request arrives."""


def fits(text: str, spare_bytes: int = 0) -> bool:
    """Return whether a record can store `text` and `spare_bytes` more in one string."""
    room = STRING_BYTES - spare_bytes
    # UTF-8 has at most four bytes for a character: few strings must be encoded to be measured.
    return len(text) * 4 <= room or len(text.encode()) <= room


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset. `leader_epoch` is -1 if the client gave none; `expires_at_ms` is -1
    unless the commit (OffsetCommit 2-4) has a retention time. Milliseconds since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int = -1


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A group's offset for one partition; None: deleted."""

    group_id: str
    topic: str
    partition: int
    value: Offset | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group at the end of a round; None: deleted. The value is shared and immutable."""

    group_id: str
    value: GroupMetadataValue | None


class ConsumerKind(IntEnum):
    """Key types of the records of a group with the consumer protocol (KIP-848)."""

    GROUP = 3
    TOPICS = 4
    """Written by Kafka until 4.0. Only its tombstone is read or written here."""
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT = 8
    PATTERN = 16


ConsumerValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record of a group with the consumer protocol. `name`: the member or the pattern, empty in
    records of the group itself. A value of None: deleted. The value is shared and immutable."""

    kind: ConsumerKind
    group_id: str
    name: str
    value: ConsumerValue | None


class ShareKind(IntEnum):
    """Key types of the records of a share group (KIP-932)."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    TARGET_MEMBER = 13
    CURRENT = 14
    STATES = 15
    """The partitions whose states are initialized, or will be."""


ShareValue = (
    ShareGroupMetadataValue
    | ShareGroupMemberMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)


@dataclass(frozen=True, slots=True)
class ShareGroupRecord:
    """A record of a share group. `name`: the member, empty in records of the group itself. A value
    of None: deleted. The value is shared and immutable."""

    kind: ShareKind
    group_id: str
    name: str
    value: ShareValue | None


_VALUES: dict[ConsumerKind, type[Any]] = {
    ConsumerKind.GROUP: ConsumerGroupMetadataValue,
    ConsumerKind.MEMBER: ConsumerGroupMemberMetadataValue,
    ConsumerKind.TARGET: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerKind.TARGET_MEMBER: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerKind.CURRENT: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerKind.PATTERN: ConsumerGroupRegularExpressionValue,
}
_UNNAMED = frozenset({ConsumerKind.GROUP, ConsumerKind.TOPICS, ConsumerKind.TARGET})
_KINDS = {int(kind): kind for kind in ConsumerKind}
_SHARE_VALUES: dict[ShareKind, type[Any]] = {
    ShareKind.MEMBER: ShareGroupMemberMetadataValue,
    ShareKind.GROUP: ShareGroupMetadataValue,
    ShareKind.TARGET: ShareGroupTargetAssignmentMetadataValue,
    ShareKind.TARGET_MEMBER: ShareGroupTargetAssignmentMemberValue,
    ShareKind.CURRENT: ShareGroupCurrentMemberAssignmentValue,
    ShareKind.STATES: ShareGroupStatePartitionMetadataValue,
}
_OF_SHARE_GROUP = frozenset({ShareKind.GROUP, ShareKind.TARGET, ShareKind.STATES})
_SHARE_KINDS = {int(kind): kind for kind in ShareKind}

Record = GroupRecord | OffsetRecord | ConsumerRecord | ShareGroupRecord
OffsetKey = tuple[str, str, int]
"""Group, topic and partition of a committed offset."""


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    if isinstance(record, GroupRecord):
        key = encode_versioned(GroupMetadataKey(group=record.group_id), GROUP_METADATA)
        group = record.value
        return key, None if group is None else encode_versioned(group, GROUP_VERSION)
    if isinstance(record, ConsumerRecord):
        return _encode_consumer(record)
    if isinstance(record, ShareGroupRecord):
        return _encode_share(record)
    at = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
    key = encode_versioned(at, OFFSET_COMMIT)
    offset = record.value
    if offset is None:
        return key, None
    stored = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.committed_at_ms,
        expire_timestamp=offset.expires_at_ms,
    )
    expires = offset.expires_at_ms != -1
    version = OFFSET_VERSION_WITH_EXPIRY if expires else OFFSET_VERSION
    return key, encode_versioned(stored, version)


def decode_record(key: Buffer | None, value: Buffer | None) -> Record | None:
    """Decode a record; None if its type is not supported.

    Raises DecodeError if a record of a known type is malformed.
    """
    if key is None:
        raise DecodeError("a record of __consumer_offsets has no key")
    kind = version_of(key)
    if kind in (0, OFFSET_COMMIT):
        at = _decode(OffsetCommitKey, key)
        return OffsetRecord(at.group, at.topic, at.partition, _offset(value))
    if kind == GROUP_METADATA:
        group_id = _decode(GroupMetadataKey, key).group
        group = None if value is None else _decode(GroupMetadataValue, value)
        return GroupRecord(group_id, group)
    consumer = _KINDS.get(kind)
    if consumer is not None:
        return _decode_consumer(consumer, key, value)
    share = _SHARE_KINDS.get(kind)
    if share is not None:
        return _decode_share(share, key, value)
    # Of streams groups. It stays in the log, for a broker that supports them.
    return None


def _encode_consumer(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    if record.kind in _UNNAMED:
        key = encode_versioned(ConsumerGroupKey(group=record.group_id), record.kind)
    else:
        named = ConsumerGroupNamedKey(group=record.group_id, name=record.name)
        key = encode_versioned(named, record.kind)
    return key, None if record.value is None else encode_versioned(record.value, 0)


def _decode_consumer(kind: ConsumerKind, key: Buffer, value: Buffer | None) -> ConsumerRecord:
    if kind in _UNNAMED:
        group_id, name = _decode(ConsumerGroupKey, key).group, ""
    else:
        named = _decode(ConsumerGroupNamedKey, key)
        group_id, name = named.group, named.name
    # The hash in the group's own record has replaced what a record of type 4 has.
    if value is None or kind is ConsumerKind.TOPICS:
        return ConsumerRecord(kind, group_id, name, None)
    return ConsumerRecord(kind, group_id, name, _decode(_VALUES[kind], value))


def _encode_share(record: ShareGroupRecord) -> tuple[bytes, bytes | None]:
    if record.kind in _OF_SHARE_GROUP:
        key = encode_versioned(ShareGroupKey(group=record.group_id), record.kind)
    else:
        named = ShareGroupMemberKey(group=record.group_id, member=record.name)
        key = encode_versioned(named, record.kind)
    return key, None if record.value is None else encode_versioned(record.value, 0)


def _decode_share(kind: ShareKind, key: Buffer, value: Buffer | None) -> ShareGroupRecord:
    if kind in _OF_SHARE_GROUP:
        group_id, name = _decode(ShareGroupKey, key).group, ""
    else:
        named = _decode(ShareGroupMemberKey, key)
        group_id, name = named.group, named.member
    stored = None if value is None else _decode(_SHARE_VALUES[kind], value)
    return ShareGroupRecord(kind, group_id, name, stored)


def compile_share_records() -> None:
    """Compile the codecs of the records of share groups, which takes ten milliseconds; in any
    thread."""
    for kind, value in _SHARE_VALUES.items():
        record = ShareGroupRecord(kind, "", "", value())
        decode_record(*encode_record(record))


def committed_keys(payload: Buffer) -> set[OffsetKey]:
    """Return the keys of the committed offsets in a damaged frame, as far as they can be read."""
    found: set[OffsetKey] = set()
    at = 0
    while at + HEAD_BYTES <= len(payload):
        size = read_head(payload, at).size_bytes
        # The records before the damage are read.
        with suppress(KafkaError, DecodeError):
            for record in records(payload, at):
                # Only keys: which bytes are damaged is unknown, a wrong offset is worse than none.
                if record.key is not None and version_of(record.key) in (0, OFFSET_COMMIT):
                    key = _decode(OffsetCommitKey, record.key)
                    found.add((key.group, key.topic, key.partition))
        # A damaged length: where the next batch begins is unknown, and 0 would never end.
        if size < HEAD_BYTES:
            break
        at += size
    return found


def ended_producers(payload: Buffer) -> set[int]:
    """Return the producer IDs of a damaged frame's control batches, as far as heads can be read."""
    found: set[int] = set()
    at = 0
    while at + HEAD_BYTES <= len(payload):
        head = read_head(payload, at)
        if head.attributes & CONTROL:
            found.add(head.producer_id)
        if head.size_bytes < HEAD_BYTES:
            break
        at += head.size_bytes
    return found


def _offset(value: Buffer | None) -> Offset | None:
    if value is None:
        return None
    stored = _decode(OffsetCommitValue, value)
    return Offset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        stored.expire_timestamp,
    )


def _decode(cls: type[T], data: Buffer) -> T:
    # Like codec.compile.decode_versioned, without copying the bytes after the version: a start may
    # read a hundred thousand records.
    try:
        decode = decoder(cls, version_of(data))
    except ValueError as unknown:
        raise DecodeError(str(unknown)) from None
    message, end = decode(data, 2, len(data))
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes after {cls.__name__}")
    return message
