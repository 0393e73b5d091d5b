"""Headers, stored records and the newest versions: compared with bytes written by hand or by
kio."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from kafkawire.codec.compile import decode, decode_versioned, encode, encode_versioned
from kafkawire.codec.schema import info_of
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kafkawire.messages.headers import RequestHeader, ResponseHeader
from kafkawire.messages.registry import APIS
from kafkawire.messages.stored import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkawire.messages.streams_group_describe import StreamsGroupDescribeRequest
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kit.codec import kio_bridge
from tests.kit.codec import reference_codec as refcodec
from tests.kit.codec.messages import Messages, few, project

TOPIC_ID = bytes(range(1, 17))


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (RequestHeader, "header"),
        (ResponseHeader, "header"),
        (ConsumerProtocolSubscription, "data"),
        (ConsumerProtocolAssignment, "data"),
    ],
)
def test_header_encoding_matches_kio(cls: Any, kind: str) -> None:
    info = info_of(cls)
    name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", cls.__name__).lower()
    for version in range(info.min_version, info.max_version + 1):
        kio = getattr(importlib.import_module(f"kio.schema.{name}.v{version}.{kind}"), cls.__name__)

        few(Messages().of(cls), equals_kio, version, kio)


def equals_kio(message: Any, version: int, kio: Any) -> None:
    message = project(message, version, info_of(type(message)).flexible(version))
    data = kio_bridge.encode(kio_bridge.to_kio(message, kio, version))
    assert encode(message, version) == data == refcodec.encode(message, version)
    assert decode(type(message), version, data) == message


def test_header_versions() -> None:
    produce, versions, offset_delete = APIS[0], APIS[18], APIS[47]
    assert [produce.request_header_version(v) for v in (8, 9)] == [1, 2]
    assert [produce.response_header_version(v) for v in (8, 9)] == [0, 1]
    assert [versions.request_header_version(v) for v in (2, 3)] == [1, 2]
    assert [versions.response_header_version(v) for v in (2, 3, 5)] == [0, 0, 0]
    assert (offset_delete.request_header_version(0), offset_delete.response_header_version(0)) == (
        1,
        0,
    )


def test_client_id_is_never_compact() -> None:
    header = RequestHeader(18, 5, 7, "kcat")
    expected = b"\x00\x12\x00\x05\x00\x00\x00\x07\x00\x04kcat"
    assert encode(header, 1) == expected
    assert encode(header, 2) == expected + b"\x00"
    assert encode(RequestHeader(client_id=None), 2).endswith(b"\xff\xff\x00")


@pytest.mark.parametrize(
    ("message", "version", "expected"),
    [
        (OffsetCommitKey("g", "t", 2), 1, b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x02"),
        (
            OffsetCommitValue(5, 1, "m", 9),
            3,
            b"\x00\x03" + bytes(7) + b"\x05\x00\x00\x00\x01\x00\x01m" + bytes(7) + b"\x09",
        ),
        (
            OffsetCommitValue(5, metadata="m", commit_timestamp=9, expire_timestamp=10),
            1,
            b"\x00\x01" + bytes(7) + b"\x05\x00\x01m" + bytes(7) + b"\x09" + bytes(7) + b"\x0a",
        ),
        (
            OffsetCommitValue(5, 1, "m", 9, topic_id=TOPIC_ID),
            4,
            b"\x00\x04" + bytes(7) + b"\x05\x00\x00\x00\x01\x02m" + bytes(7) + b"\x09"
            b"\x01\x00\x10" + TOPIC_ID,
        ),
        (GroupMetadataKey("g"), 2, b"\x00\x02\x00\x01g"),
        (
            GroupMetadataValue(
                "consumer",
                3,
                "range",
                "a",
                1,
                [MemberMetadata("a", None, "c", "/h", 60, 10, b"s", b"x")],
            ),
            3,
            b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x01a" + bytes(7) + b"\x01"
            b"\x00\x00\x00\x01\x00\x01a\xff\xff\x00\x01c\x00\x02/h\x00\x00\x00\x3c\x00\x00\x00\x0a"
            b"\x00\x00\x00\x01s\x00\x00\x00\x01x",
        ),
    ],
)
def test_stored_records_match_kafkas(message: Any, version: int, expected: bytes) -> None:
    assert encode_versioned(message, version) == expected
    assert decode_versioned(type(message), expected) == message


@pytest.mark.parametrize(
    ("message", "version", "expected"),
    [
        # KIP-1242: the cluster and node the client believes to talk to
        (ApiVersionsRequest("a", "b", "c", 3), 5, b"\x02a\x02b\x02c\x00\x00\x00\x03\x00"),
        (ApiVersionsRequest("a", "b"), 5, b"\x02a\x02b\x00\xff\xff\xff\xff\x00"),
        (
            DeleteGroupsResponse(0, [DeletableGroupResult("g", 3, "why")]),
            3,
            bytes(4) + b"\x02\x02g\x00\x03\x04why\x00\x00",
        ),
        # KIP-1319: topic ids instead of names
        (
            TxnOffsetCommitRequest(
                "t",
                "g",
                1,
                2,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        topic_id=TOPIC_ID, partitions=[TxnOffsetCommitRequestPartition(0, 5)]
                    )
                ],
            ),
            6,
            b"\x02t\x02g" + bytes(7) + b"\x01\x00\x02\xff\xff\xff\xff\x01\x00\x02"
            + TOPIC_ID + b"\x02\x00\x00\x00\x00" + bytes(7)
            + b"\x05\xff\xff\xff\xff\x01\x00\x00\x00",
        ),
        # KIP-1331: a wider lag, and whether the broker wants the topology
        (
            StreamsGroupHeartbeatResponse(
                member_id="m",
                acceptable_recovery_lag=1000,
                status=None,
                topology_description_required=True,
            ),
            1,
            bytes(7) + b"\x02m" + bytes(12) + b"\x00\x00\x00\x00\x00\x00\x03\xe8" + bytes(4)
            + b"\x01" + bytes(4) + b"\x00\x00",
        ),
        (
            StreamsGroupDescribeRequest(["g"], True, True),
            1,
            b"\x02\x02g\x01\x01\x00",
        ),
    ],
)  # fmt: skip
def test_messages_new_in_kafka_44(message: Any, version: int, expected: bytes) -> None:
    """Newer than kio and kafka-python, so written out by hand."""
    assert encode(message, version) == expected
    assert decode(type(message), version, expected) == message
