"""Records of streams groups have Kafka's bytes (its StreamsGroup*Value.json)."""

from __future__ import annotations

import struct

import pytest

from kafkawire.codec.types import DecodeError
from kafkawire.groups.model.records import StreamsGroupRecord, decode_record, encode_record
from kafkawire.groups.streams.group import (
    StreamsGroup,
    epoch_record,
    target_epoch_record,
    topology_record,
)
from kafkawire.groups.streams.member import (
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    TargetTasks,
    current_record,
    member_tombstones,
    metadata_record,
    target_record,
)
from kafkawire.messages.stored import StreamsGroupTopologyValue
from kafkawire.messages.streams_group_heartbeat import CopartitionGroup, Subtopology
from tests.kit.groups.streams import topic

MEMBER = StreamsMember(
    "m", "i", "r", "c", "/h", 9, 3, "p", ("host", 0xFFFF), (("k", "v"),), 7, 6,
    StreamsMemberState.UNREVOKED,
    HeldTasks({("0", 2): 5, ("0", 1): 4}, frozenset({("1", 0)}), frozenset()),
    HeldTasks({}, frozenset(), frozenset({("2", 3)})),
)  # fmt: skip
TOPOLOGY = StreamsGroupTopologyValue(
    4,
    [
        Subtopology(
            "0", ["t"], [], [topic("c")], ["s"], [topic("r", 8)], [CopartitionGroup([0], [], [0])]
        )
    ],
)


def key(kind: int, *texts: str) -> bytes:
    return struct.pack(">h", kind) + b"".join(
        struct.pack(">h", len(text)) + text.encode() for text in texts
    )


def ints(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def tasks(name: str, *partitions: int, epochs: tuple[int, ...] = ()) -> bytes:
    """A list of one entry; of active tasks with a tag."""
    count = bytes([len(partitions) + 1])
    tags = b"\0"
    if epochs:
        packed = count + ints(*epochs)
        tags = b"\1\0" + bytes([len(packed)]) + packed
    return b"\2" + bytes([len(name) + 1]) + name.encode() + count + ints(*partitions) + tags


def validated() -> StreamsGroup:
    group = StreamsGroup("g")
    group.metadata_hash = -2
    return group


RECORDS: list[tuple[StreamsGroupRecord, bytes, bytes]] = [
    (
        epoch_record(validated(), 5, validated=3, configs={"a": "b"}), key(17, "g"),
        struct.pack(">iq", 5, -2) + b"\2\0\4" + ints(3) + b"\1\6\2\2a\2b\0",
    ),
    (
        metadata_record("g", MEMBER), key(19, "g", "m"),
        b"\2i\2r\2c\3/h" + ints(9, 3) + b"\2p\1\5host\xff\xff\0\2\2k\2v\0\0",
    ),
    (
        metadata_record("g", StreamsMember("m")), key(19, "g", "m"),
        b"\0\0\1\1" + ints(-1, -1) + b"\1\xff\1\0",
    ),
    (
        target_epoch_record("g", 5, 9), key(20, "g"),
        ints(5) + b"\1\0\x08" + struct.pack(">q", 9),
    ),
    (
        target_record("g", "m", TargetTasks(frozenset({("0", 1)}), frozenset({("1", 0)}))),
        key(21, "g", "m"),
        tasks("0", 1) + tasks("1", 0) + b"\1\0",
    ),
    (
        current_record("g", MEMBER), key(22, "g", "m"),
        ints(7, 6) + b"\2" + tasks("0", 1, 2, epochs=(4, 5)) + tasks("1", 0) + b"\1\1\1"
        + tasks("2", 3) + b"\0",
    ),
    (
        topology_record("g", TOPOLOGY), key(23, "g"),
        ints(4) + b"\2" + b"\0020" + b"\2\2t" + b"\1"
        + b"\2\2c" + ints(0) + b"\0\0" + b"\2\x0fcleanup.policy\x08compact\0" + b"\0"
        + b"\2\2s" + b"\2\2r" + ints(8) + b"\0\0\1\0"
        + b"\2\2\0\0\1\2\0\0\0" + b"\0" + b"\0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "at", "value"), RECORDS)
def test_records_have_kafkas_bytes(record: StreamsGroupRecord, at: bytes, value: bytes) -> None:
    assert encode_record(record) == (at, b"\0\0" + value)
    assert decode_record(at, b"\0\0" + value) == record


def test_tombstones() -> None:
    found = [encode_record(record) for record in member_tombstones("g", "m")]
    assert found == [(key(kind, "g", "m"), None) for kind in (22, 21, 19)]
    for at, value in found:
        decoded = decode_record(at, value)
        assert isinstance(decoded, StreamsGroupRecord)
        assert decoded.value is None


def test_tasks_without_epochs_count_as_got_in_the_last_one() -> None:
    """As Kafka wrote them until 4.2."""
    value = b"\0\0" + ints(7, 6) + b"\1" + tasks("0", 1, 2) + b"\1\1\1\1\1\0"
    record = decode_record(key(22, "g", "m"), value)
    assert isinstance(record, StreamsGroupRecord)
    group = StreamsGroup("g")
    group.apply(record)
    assert group.members["m"].assigned.active == {("0", 1): 7, ("0", 2): 7}


def test_what_is_not_such_a_record() -> None:
    assert decode_record(key(18, "g"), b"\0\0") is None
    with pytest.raises(DecodeError):
        decode_record(key(17, "g"), b"\0\0\2")
    with pytest.raises(DecodeError):
        decode_record(key(23, "g"), b"\0\1")
