"""The records of `__consumer_offsets`: values, and their encoding in Kafka's format.

A key begins with its record type and a value with its version, int16 each; a null value is a
tombstone. Written: OffsetCommit (key type 1) and GroupMetadata (key type 2) in versions that Kafka
from 2.1 on and its formatters read, and the records of KIP-848, KIP-932 and KIP-1071. Read: all
versions.

Pure; used by the state machines, kafkawire.groups.coordinator and kafkawire.groups.load.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

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
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupKey,
    StreamsGroupMemberKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyValue,
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


class StreamsKind(IntEnum):
    """Key types of the records of a streams group (KIP-1071)."""

    GROUP = 17
    MEMBER = 19
    TARGET = 20
    TARGET_MEMBER = 21
    CURRENT = 22
    TOPOLOGY = 23


StreamsValue = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)


@dataclass(frozen=True, slots=True)
class StreamsGroupRecord:
    """A record of a streams group. `name`: the member, empty in records of the group itself. A
    value of None: deleted. The value is shared and immutable."""

    kind: StreamsKind
    group_id: str
    name: str
    value: StreamsValue | None


KindRecord = ConsumerRecord | ShareGroupRecord | StreamsGroupRecord
"""A record of a group with a protocol of Kafka 4."""
Record = GroupRecord | OffsetRecord | KindRecord


class _Type(NamedTuple):
    """A record type: its record, kind and value. `value` None: only its tombstone is read; `key`:
    has the group, and the name unless `unnamed`."""

    record: type[Any]
    kind: IntEnum
    key: type[Any]
    value: type[Any] | None
    unnamed: bool


def _list_types() -> dict[int, _Type]:
    consumer, share, streams = ConsumerKind, ShareKind, StreamsKind
    of_groups: dict[IntEnum, type[Any] | None] = {
        consumer.GROUP: ConsumerGroupMetadataValue,
        consumer.TOPICS: None,  # the hash in the group's own record has replaced it
        consumer.TARGET: ConsumerGroupTargetAssignmentMetadataValue,
        share.GROUP: ShareGroupMetadataValue,
        share.TARGET: ShareGroupTargetAssignmentMetadataValue,
        share.STATES: ShareGroupStatePartitionMetadataValue,
        streams.GROUP: StreamsGroupMetadataValue,
        streams.TARGET: StreamsGroupTargetAssignmentMetadataValue,
        streams.TOPOLOGY: StreamsGroupTopologyValue,
    }
    named: dict[IntEnum, type[Any] | None] = {
        consumer.MEMBER: ConsumerGroupMemberMetadataValue,
        consumer.TARGET_MEMBER: ConsumerGroupTargetAssignmentMemberValue,
        consumer.CURRENT: ConsumerGroupCurrentMemberAssignmentValue,
        consumer.PATTERN: ConsumerGroupRegularExpressionValue,
        share.MEMBER: ShareGroupMemberMetadataValue,
        share.TARGET_MEMBER: ShareGroupTargetAssignmentMemberValue,
        share.CURRENT: ShareGroupCurrentMemberAssignmentValue,
        streams.MEMBER: StreamsGroupMemberMetadataValue,
        streams.TARGET_MEMBER: StreamsGroupTargetAssignmentMemberValue,
        streams.CURRENT: StreamsGroupCurrentMemberAssignmentValue,
    }
    keys: dict[type[IntEnum], tuple[type[Any], type[Any], type[Any]]] = {
        consumer: (ConsumerRecord, ConsumerGroupKey, ConsumerGroupNamedKey),
        share: (ShareGroupRecord, ShareGroupKey, ShareGroupMemberKey),
        streams: (StreamsGroupRecord, StreamsGroupKey, StreamsGroupMemberKey),
    }
    types: dict[int, _Type] = {}
    for kind, value in of_groups.items():
        record, key, _ = keys[type(kind)]
        types[int(kind)] = _Type(record, kind, key, value, True)
    for kind, value in named.items():
        record, _, key = keys[type(kind)]
        types[int(kind)] = _Type(record, kind, key, value, False)
    return types


_TYPES = _list_types()
OffsetKey = tuple[str, str, int]
"""Group, topic and partition of a committed offset."""


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    if isinstance(record, GroupRecord):
        key = encode_versioned(GroupMetadataKey(group=record.group_id), GROUP_METADATA)
        group = record.value
        return key, None if group is None else encode_versioned(group, GROUP_VERSION)
    if not isinstance(record, OffsetRecord):
        return _encode_kind(record)
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
    found = _TYPES.get(kind)
    # Of a later version. It stays in the log, for a broker that supports it.
    return None if found is None else _decode_kind(found, key, value)


def _encode_kind(record: KindRecord) -> tuple[bytes, bytes | None]:
    declared = _TYPES[record.kind]
    names = (record.group_id,) if declared.unnamed else (record.group_id, record.name)
    key = encode_versioned(declared.key(*names), record.kind)
    return key, None if record.value is None else encode_versioned(record.value, 0)


def _decode_kind(declared: _Type, key: Buffer, value: Buffer | None) -> KindRecord:
    at = _decode(declared.key, key)
    name = "" if declared.unnamed else at.name
    stored = None
    if value is not None and declared.value is not None:
        stored = _decode(declared.value, value)
    found: KindRecord = declared.record(declared.kind, at.group, name, stored)
    return found


def compile_group_records(kinds: type[IntEnum]) -> None:
    """Compile the codecs of the records of ShareKind or StreamsKind, which takes ten milliseconds;
    in any thread."""
    for kind in kinds:
        declared = _TYPES[kind]
        assert declared.value is not None
        decode_record(*_encode_kind(declared.record(kind, "", "", declared.value())))


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
