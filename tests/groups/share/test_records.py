"""Records of share groups have Kafka's bytes."""

from __future__ import annotations

import struct

import pytest

from kafkawire.codec.types import DecodeError
from kafkawire.groups.model.records import ShareGroupRecord, decode_record, encode_record
from kafkawire.groups.share.group import (
    NamedPartitions,
    epoch_record,
    states_record,
    target_epoch_record,
)
from kafkawire.groups.share.member import (
    ShareMember,
    current_record,
    member_tombstones,
    metadata_record,
    target_record,
)

T = b"T" * 16
MEMBER = ShareMember("m", "r", "c", "/h", frozenset({"b", "a"}), 7, 6, {T: frozenset({2, 0})})
PARTITIONS = b"\2" + T + b"\3" + struct.pack(">ii", 0, 2) + b"\0"
"""One topic with two partitions."""


def named(name: str, *partitions: int) -> bytes:
    text = name.encode()
    count = bytes([len(partitions) + 1]) + struct.pack(f">{len(partitions)}i", *partitions)
    return T + bytes([len(text) + 1]) + text + count + b"\0"


def key(kind: int, *texts: str) -> bytes:
    return struct.pack(">h", kind) + b"".join(
        struct.pack(">h", len(text)) + text.encode() for text in texts
    )


RECORDS: list[tuple[ShareGroupRecord, bytes, bytes]] = [
    (metadata_record("g", MEMBER), key(10, "g", "m"), b"\2r\2c\3/h\3\2a\2b\0"),
    (
        metadata_record("g", ShareMember("m")), key(10, "g", "m"),
        b"\0\1\1\1\0",  # without a rack
    ),
    (epoch_record("g", 5, -2), key(11, "g"), struct.pack(">iq", 5, -2) + b"\0"),
    (
        target_epoch_record("g", 5, 9), key(12, "g"),
        struct.pack(">i", 5) + b"\1\0\x08" + struct.pack(">q", 9),
    ),
    (target_epoch_record("g", 5, 0), key(12, "g"), struct.pack(">i", 5) + b"\0"),
    (target_record("g", "m", MEMBER.assigned), key(13, "g", "m"), PARTITIONS + b"\0"),
    (
        current_record("g", MEMBER), key(14, "g", "m"),
        struct.pack(">iib", 7, 6, 0) + PARTITIONS + b"\0",
    ),
    (
        states_record(
            "g", {T: NamedPartitions("t", frozenset({1}))},
            {T: NamedPartitions("t", frozenset({2, 0}))}, {T: "u"},
        ),
        key(15, "g"),
        b"\2" + named("t", 1) + b"\2" + named("t", 0, 2) + b"\2" + T + b"\2u\0" + b"\0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key_bytes", "value"), RECORDS, ids=lambda each: "")
def test_bytes(record: ShareGroupRecord, key_bytes: bytes, value: bytes) -> None:
    assert encode_record(record) == (key_bytes, b"\0\0" + value)
    assert decode_record(key_bytes, b"\0\0" + value) == record


def test_tombstones() -> None:
    for record, kind in zip(member_tombstones("g", "m"), (14, 13, 10), strict=True):
        assert encode_record(record) == (key(kind, "g", "m"), None)
        assert decode_record(key(kind, "g", "m"), None) == record


def test_what_is_not_such_a_record() -> None:
    assert decode_record(key(18, "g"), b"\0\0") is None
    with pytest.raises(DecodeError):
        decode_record(key(15, "g"), b"\0\0\2")
    with pytest.raises(DecodeError):
        decode_record(key(11, "g"), b"\0\1")
