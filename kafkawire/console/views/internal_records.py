"""Records of Kafka's internal topics as JSON: __consumer_offsets, __transaction_state,
__share_group_state. Pure.

A key begins with its record type as int16, a value with its version; a null value is a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafkawire.codec.compile import decode_versioned, version_of
from kafkawire.codec.types import DecodeError
from kafkawire.console.views.decoding import ShownBytes, decode, visible
from kafkawire.messages import stored

INTERNAL = "internal"
"""The decoder's name; "auto" takes it for these topics."""
_Types = Mapping[int, tuple[type[Any], type[Any] | None]]
_COMMIT = stored.OffsetCommitKey, stored.OffsetCommitValue
_GROUP, _NAMED = stored.ConsumerGroupKey, stored.ConsumerGroupNamedKey
_SHARE, _SHARE_MEMBER = stored.ShareGroupKey, stored.ShareGroupMemberKey
_STREAMS, _STREAMS_MEMBER = stored.StreamsGroupKey, stored.StreamsGroupMemberKey
TOPICS: Mapping[str, _Types] = {
    "__consumer_offsets": {
        0: _COMMIT,
        1: _COMMIT,
        2: (stored.GroupMetadataKey, stored.GroupMetadataValue),
        3: (_GROUP, stored.ConsumerGroupMetadataValue),
        4: (_GROUP, None),  # written until Kafka 4.0
        5: (_NAMED, stored.ConsumerGroupMemberMetadataValue),
        6: (_GROUP, stored.ConsumerGroupTargetAssignmentMetadataValue),
        7: (_NAMED, stored.ConsumerGroupTargetAssignmentMemberValue),
        8: (_NAMED, stored.ConsumerGroupCurrentMemberAssignmentValue),
        10: (_SHARE_MEMBER, stored.ShareGroupMemberMetadataValue),
        11: (_SHARE, stored.ShareGroupMetadataValue),
        12: (_SHARE, stored.ShareGroupTargetAssignmentMetadataValue),
        13: (_SHARE_MEMBER, stored.ShareGroupTargetAssignmentMemberValue),
        14: (_SHARE_MEMBER, stored.ShareGroupCurrentMemberAssignmentValue),
        15: (_SHARE, stored.ShareGroupStatePartitionMetadataValue),
        16: (_NAMED, stored.ConsumerGroupRegularExpressionValue),
        17: (_STREAMS, stored.StreamsGroupMetadataValue),
        19: (_STREAMS_MEMBER, stored.StreamsGroupMemberMetadataValue),
        20: (_STREAMS, stored.StreamsGroupTargetAssignmentMetadataValue),
        21: (_STREAMS_MEMBER, stored.StreamsGroupTargetAssignmentMemberValue),
        22: (_STREAMS_MEMBER, stored.StreamsGroupCurrentMemberAssignmentValue),
        23: (_STREAMS, stored.StreamsGroupTopologyValue),
    },
    "__transaction_state": {0: (stored.TransactionLogKey, stored.TransactionLogValue)},
    "__share_group_state": {
        0: (stored.ShareStateKey, stored.ShareSnapshotValue),
        1: (stored.ShareStateKey, stored.ShareUpdateValue),
    },
}
"""By topic and record type: the formats of key and value; None: not known."""
_TYPE_NAME = "type"


def decode_pair(
    topic: str, key: bytes | None, value: bytes | None, how: str = "auto"
) -> tuple[ShownBytes, ShownBytes]:
    """Return key and value of a record of a topic as text. What `how` cannot decode is shown as its
    bytes, with the reason."""
    types = TOPICS.get(topic)
    if how not in ("auto", INTERNAL) or (types is None and how == "auto"):
        return decode(key, how), decode(value, how)
    reason = "not a record of an internal topic of Kafka"
    if types is not None and key is not None:
        try:
            return _decode_pair(types, bytes(key), value)
        except DecodeError as error:
            reason = f"not Kafka's format: {error}"
    return tuple(  # type: ignore[return-value]  # two
        found._replace(note="; ".join(filter(None, (reason, found.note))))
        for found in (decode(key, "hex"), decode(value, "hex"))
    )


def _decode_pair(types: _Types, key: bytes, value: bytes | None) -> tuple[ShownBytes, ShownBytes]:
    """Decode both. DecodeError."""
    kind = version_of(key)
    if kind not in types:
        raise DecodeError(f"record type {kind}")
    key_format, value_format = types[kind]
    fields = {_TYPE_NAME: kind, **_plain(decode_versioned(key_format, key))}
    name = key_format.__name__ if value_format is None else value_format.__name__
    shown_key = _show(fields, name)
    if value is None or value_format is None:
        return shown_key, decode(value, "hex")._replace(note="" if value else "a tombstone")
    return shown_key, _show(_plain(decode_versioned(value_format, bytes(value))), "")


def _show(fields: Any, note: str) -> ShownBytes:
    return ShownBytes("json", visible(json.dumps(fields, indent=2, ensure_ascii=False)), note)


def _plain(message: Any) -> Any:
    """Return a message as values of JSON: bytes are in hexadecimal."""
    if isinstance(message, (bytes, bytearray, memoryview)):
        return bytes(message).hex()
    if isinstance(message, list):
        return [_plain(each) for each in message]
    names = getattr(type(message), "__slots__", ())
    if not names:
        return message
    fields = ((name, getattr(message, name)) for name in names if name != "unknown_tags")
    return {name: _plain(value) for name, value in fields}
