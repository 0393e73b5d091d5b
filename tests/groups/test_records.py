"""The bytes of `__consumer_offsets` records, compared with Kafka's formats field by field."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.compile import encode_versioned
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import DecodeError
from kafkawire.coordination.batches import batches_of
from kafkawire.groups.model.records import (
    ConsumerKind,
    ConsumerRecord,
    ConsumerValue,
    GroupRecord,
    Offset,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kafkawire.messages.stored import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TargetTopicPartitions,
)
from tests.kit.codec.messages import Messages, few


def text(value: str | None) -> bytes:
    """A Kafka string: int16 length, -1 for null."""
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def test_offset_commit_has_key_v1_and_value_v3() -> None:
    record = OffsetRecord("grüp", "t", 7, Offset(42, 5, "méta", 1_700_000_000_000))
    key, value = encode_record(record)
    assert key == struct.pack(">h", 1) + text("grüp") + text("t") + struct.pack(">i", 7)
    assert value == (
        struct.pack(">hqi", 3, 42, 5) + text("méta") + struct.pack(">q", 1_700_000_000_000)
    )


def test_offset_commit_with_expiry_has_value_v1() -> None:
    key, value = encode_record(OffsetRecord("g", "t", 0, Offset(42, 5, "m", 100, 900)))
    assert key[:2] == b"\0\1"
    assert value == struct.pack(">hq", 1, 42) + text("m") + struct.pack(">qq", 100, 900)
    back = decode_record(key, value)
    assert back == OffsetRecord("g", "t", 0, Offset(42, -1, "m", 100, 900))  # v1 has no epoch


def test_group_has_key_v2_and_value_v3() -> None:
    members = [
        MemberMetadata(
            member_id="m-1",
            group_instance_id=None,
            client_id="c",
            client_host="/1.2.3.4",
            rebalance_timeout=300_000,
            session_timeout=45_000,
            subscription=b"sub",
            assignment=b"part",
        ),
        MemberMetadata(member_id="m-2", group_instance_id="i"),
    ]
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m-1",
        current_state_timestamp=99,
        members=members,
    )
    key, value = encode_record(GroupRecord("g", group))
    assert key == struct.pack(">h", 2) + text("g")
    assert value == (
        struct.pack(">h", 3)
        + text("consumer")
        + struct.pack(">i", 3)
        + text("range")
        + text("m-1")
        + struct.pack(">qi", 99, 2)
        + text("m-1")
        + text(None)
        + text("c")
        + text("/1.2.3.4")
        + struct.pack(">ii", 300_000, 45_000)
        + blob(b"sub")
        + blob(b"part")
        + text("m-2")
        + text("i")
        + text("")
        + text("")
        + struct.pack(">ii", -1, 0)
        + blob(b"")
        + blob(b"")
    )


def test_empty_group_record_has_null_fields() -> None:
    group = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=5)
    _, value = encode_record(GroupRecord("g", group))
    assert value == (
        struct.pack(">h", 3)
        + text("")
        + struct.pack(">i", 0)
        + text(None)
        + text(None)
        + struct.pack(">qi", 5, 0)
    )


def test_tombstone_has_key_without_value() -> None:
    assert encode_record(OffsetRecord("g", "t", 1, None))[1] is None
    assert encode_record(GroupRecord("g", None))[1] is None
    key, _ = encode_record(GroupRecord("g", None))
    assert decode_record(key, None) == GroupRecord("g", None)


@given(
    st.text(max_size=9),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.integers(-1, 9),
    st.text(max_size=9),
)
def test_offset_commit_round_trips(
    name: str, partition: int, offset: int, epoch: int, metadata: str
) -> None:
    record = OffsetRecord(name, name + "t", partition, Offset(offset, epoch, metadata, offset))
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("version", range(5))
def test_all_value_versions_are_read(version: int) -> None:
    key = encode_versioned(OffsetCommitKey(group="g", topic="t", partition=1), version % 2)
    value = encode_versioned(OffsetCommitValue(offset=9, metadata="m", commit_timestamp=8), version)
    assert decode_record(key, value) == OffsetRecord("g", "t", 1, Offset(9, -1, "m", 8))
    group = GroupMetadataValue(protocol_type="x", members=[MemberMetadata(member_id="m")])
    found = decode_record(b"\0\2\0\1g", encode_versioned(group, version))
    assert found == GroupRecord("g", group)


def test_unknown_record_types_are_ignored() -> None:
    assert decode_record(b"\0\x12\0\1g", b"\0\0whatever") is None
    for key, value in [
        (None, b""),
        (b"\0", b""),
        (b"\0\1\0", b""),
        (b"\0\2\0\1g", b"\0\5"),
        (b"\0\2\0\1g", b""),
        (b"\0\2\0\1gx", None),
        (b"\xff\xff\0\1g", b""),
    ][:-1]:
        with pytest.raises(DecodeError):
            decode_record(key, value)


def test_records_are_split_into_full_batches() -> None:
    items = [OffsetRecord("g", "t", n, Offset(n, -1, "x" * 50, 0)) for n in range(100)]
    batches = batches_of(list(map(encode_record, items)), 2000, 77)
    assert len(batches) > 4
    assert all(len(batch) <= 2000 for batch in batches)
    found = [
        decode_record(record.key, record.value)
        for batch in batches
        for position, _ in iter_batches(batch)
        for record in records(batch, position)
    ]
    assert found == items
    with pytest.raises(KafkaError) as error:
        batches_of(list(map(encode_record, items)), 100, 77)
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE


TOPIC_ID = bytes(range(16))
CURRENT = ConsumerGroupCurrentMemberAssignmentValue(
    member_epoch=3,
    previous_member_epoch=2,
    state=1,
    assigned_partitions=[
        CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2], assignment_epochs=[3, 1])
    ],
    partitions_pending_revocation=[CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[9])],
)
MEMBER = ConsumerGroupMemberMetadataValue(
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    subscribed_topic_names=["t"],
    subscribed_topic_regex="",
    rebalance_timeout_ms=7,
    server_assignor="range",
)
GOLDEN = [
    # The value: int16 version, then compact fields, then the number of tags and each of them.
    (
        ConsumerKind.GROUP,
        "",
        ConsumerGroupMetadataValue(epoch=3, metadata_hash=-2),
        struct.pack(">hi", 0, 3) + b"\1\0\x08" + struct.pack(">q", -2),
    ),
    (ConsumerKind.GROUP, "", ConsumerGroupMetadataValue(epoch=3), struct.pack(">hi", 0, 3) + b"\0"),
    (
        ConsumerKind.MEMBER,
        "m",
        MEMBER,
        b"\0\0\x02i\0\x02c\x03/h\x02\x02t\x01" + struct.pack(">i", 7) + b"\x06range\0",
    ),
    (
        ConsumerKind.TARGET,
        "",
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4, assignment_timestamp=99),
        struct.pack(">hi", 0, 4) + b"\1\0\x08" + struct.pack(">q", 99),
    ),
    (
        ConsumerKind.TARGET_MEMBER,
        "m",
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[5])]
        ),
        b"\0\0\x02" + TOPIC_ID + b"\x02" + struct.pack(">i", 5) + b"\0\0",
    ),
    (
        ConsumerKind.CURRENT,
        "m",
        CURRENT,
        struct.pack(">hiib", 0, 3, 2, 1)
        + b"\x02" + TOPIC_ID + b"\x03" + struct.pack(">ii", 1, 2)
        + b"\1\0\x09\x03" + struct.pack(">ii", 3, 1)
        + b"\x02" + TOPIC_ID + b"\x02" + struct.pack(">i", 9) + b"\0\0",
    ),
    (
        ConsumerKind.PATTERN,
        "t.*",
        ConsumerGroupRegularExpressionValue(topics=["t"], version=1, timestamp=2),
        b"\0\0\x02\x02t" + struct.pack(">qq", 1, 2) + b"\0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "value", "stored"), GOLDEN)
def test_records_of_consumer_groups_are_kafkas(
    kind: ConsumerKind, name: str, value: ConsumerValue, stored: bytes
) -> None:
    record = ConsumerRecord(kind, "g", name, value)
    key = struct.pack(">h", kind) + text("g") + (text(name) if name else b"")
    assert encode_record(record) == (key, stored)
    assert decode_record(key, stored) == record
    gone = ConsumerRecord(kind, "g", name, None)
    assert encode_record(gone) == (key, None)
    assert decode_record(key, None) == gone


def test_subscription_metadata_of_kafka_4_0_is_read_as_a_tombstone() -> None:
    gone = ConsumerRecord(ConsumerKind.TOPICS, "g", "", None)
    assert decode_record(b"\0\4\0\1g", b"\0\0anything") == gone
    assert encode_record(gone) == (b"\0\4\0\1g", None)


def test_the_classic_part_of_a_member_is_kept_as_an_unknown_tag() -> None:
    value = GOLDEN[2][3][:-1] + b"\1\0\x02\1\7"
    found = decode_record(b"\0\5\0\1g\0\1m", value)
    assert isinstance(found, ConsumerRecord)
    assert encode_record(found)[1] == value


@pytest.mark.parametrize("kind", [kind for kind in ConsumerKind if kind is not ConsumerKind.TOPICS])
def test_records_of_consumer_groups_round_trip(kind: ConsumerKind) -> None:
    cls = next(type(value) for found, _, value, _ in GOLDEN if found is kind)
    few(Messages().of(cls), round_trips, kind)


def round_trips(value: ConsumerValue, kind: ConsumerKind) -> None:
    named = "" if kind in (ConsumerKind.GROUP, ConsumerKind.TARGET) else "m"
    record = ConsumerRecord(kind, "g", named, value)
    assert decode_record(*encode_record(record)) == record
