"""Responses of one coordinator partition other than offsets: to joins, for missing groups, about
groups."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.records import GroupRecord, decode_record, encode_record
from kafkawire.groups.model.request import Client
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.groups.desk import Desk, join, subscription
from tests.kit.groups.requests import group_request, records_of

# -- other requests to one partition ----------------------------------------------------------


def test_new_group_is_written_before_it_has_members() -> None:
    desk = Desk()
    desk.ask(join(""))
    (record,) = records_of(desk.decision)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert (record.value.generation, record.value.members, record.value.protocol_type) == (
        0,
        [],
        "",
    )
    assert (record.value.protocol, record.value.leader) == (None, None)
    assert record.value.current_state_timestamp == desk.now_ms
    assert desk.group.pending == {"c-fresh"}


def test_invalid_join_creates_no_group() -> None:
    desk = Desk()
    assert desk.ask(join("", group="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert desk.ask(join("", 5999)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert desk.ask(join("", 1_800_001)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert desk.ask(join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    wrong = join("")
    wrong.protocols = []
    assert desk.ask(wrong).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not desk.shard.groups


@pytest.mark.parametrize("request_class", [SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest])
def test_requests_to_unknown_group(request_class: Any) -> None:
    desk = Desk()
    assert desk.ask(request_class(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert desk.commit({("t", 0): 1}, group="") == [ErrorCode.NONE]  # offsets may have no name
    assert desk.ask(request_class(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    if request_class is LeaveGroupRequest:
        gone = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
        assert desk.ask(gone).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert desk.ask(request_class(group_id="g")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_describe_has_protocol_and_metadata_only_while_stable() -> None:
    desk = Desk()
    desk.members("t")
    (group,) = desk.ask(DescribeGroupsRequest(groups=["g"])).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert group.members[0].member_metadata == subscription("t")
    assert group.authorized_operations == -(2**31)
    desk.ask(join(""), 3)
    (group,) = desk.ask(DescribeGroupsRequest(groups=["g"])).groups
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert group.members[0].member_metadata == b""


def test_unknown_group_is_dead_or_not_found() -> None:
    desk = Desk()
    (group,) = desk.ask(DescribeGroupsRequest(groups=["x"]), 5).groups
    assert (group.error_code, group.group_state) == (0, "Dead")
    (group,) = desk.ask(DescribeGroupsRequest(groups=["x"]), 6).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert group.error_message == "Group x not found."


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["g", "s"]),
        (["Stable"], [], ["g"]),
        (["stable", "EMPTY"], [], ["g", "s"]),
        (["Dead"], [], []),
        ([], ["Classic"], ["g", "s"]),
        ([], ["consumer"], []),
        (["Empty"], ["consumer", "classic"], ["s"]),
        (["nonsense"], ["nonsense"], []),
    ],
)
def test_groups_are_listed_by_state_and_type(
    states: list[str], types: list[str], found: list[str]
) -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1}, group="s")
    answer = desk.ask(ListGroupsRequest(states_filter=states, types_filter=types))
    assert [group.group_id for group in answer.groups] == found
    for group in answer.groups:
        assert group.group_type == "classic"
        assert group.protocol_type == ("consumer" if group.group_id == "g" else "")


# -- what a record cannot hold ----------------------------------------------------------------


LONG = "ü" * 16_384  # 32,768 bytes: one more than an int16 counts


def test_strings_too_long_for_a_record_are_refused_on_request() -> None:
    desk = Desk()
    assert desk.ask(join("", group=LONG)).error_code == ErrorCode.INVALID_GROUP_ID
    named = join("")
    named.group_instance_id = "i" * 32_740
    assert desk.ask(named).error_code == ErrorCode.INVALID_REQUEST
    spoken = join("")
    spoken.protocols[0].name = LONG
    assert desk.ask(spoken).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.commit({("t", 0): 1}, group=LONG) == [ErrorCode.INVALID_GROUP_ID]
    desk.shard.settings.offset_metadata_max_bytes = 1 << 20  # type: ignore[misc]
    assert desk.commit({("t", 0): 1}, metadata=LONG) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert not desk.shard.groups


def test_longest_allowed_strings_are_stored() -> None:
    desk = Desk()
    longest = "g" * 32_767
    assert desk.commit({("t", 0): 1}, group=longest) == [0]
    client = Client("é" * 16_000, "/h")
    ask = group_request(1, 3, join(""), client, "0" * 36)
    desk.do(desk.shard.decide(ask, desk.now_ms))
    desk.do(desk.shard.decide_timer("g", "join", desk.now_ms))
    (member_id,) = desk.group.members
    desk.ask(SyncGroupRequest(group_id="g", member_id=member_id, generation_id=1))
    for record in desk.shard.records():
        key, value = encode_record(record)
        assert decode_record(key, value) == record
