"""ShareGroupHeartbeat: Kafka's checks and texts, epochs, states, assignments, records.

Covers: kafkawire.groups.share.views.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.decision import SetTimer, session
from kafkawire.groups.model.records import ConsumerKind, GroupRecord, ShareGroupRecord, ShareKind
from kafkawire.groups.share.group import NamedPartitions
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_commit import OffsetCommitRequest
from kafkawire.messages.offset_delete import OffsetDeleteRequest
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup
from kafkawire.messages.share_group_describe import ShareGroupDescribeRequest
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.messages.sync_group import SyncGroupRequest
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import InitializeState
from kafkawire.share.state.records import StateSnapshot
from tests.kit.groups.log import id_of
from tests.kit.groups.shares import ShareDesk, assigned, share_facts

T, U = id_of("t"), id_of("u")


def kinds(desk: ShareDesk) -> list[int]:
    return [step.kind for step in desk.decision.steps if isinstance(step, ShareGroupRecord)]


def started(*members: str) -> ShareDesk:
    """A group whose members have their partitions of `t`."""
    desk = ShareDesk()
    for member in members:
        desk.beat(member)
    desk.settle(*members)
    return desk


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ShareGroupHeartbeatRequest("", " ", -9), "MemberId can't be empty."),
        (ShareGroupHeartbeatRequest("", "a", -9), "GroupId can't be empty."),
        (ShareGroupHeartbeatRequest("g", "a", -9, ""), "RackId can't be empty."),
        (
            ShareGroupHeartbeatRequest("g", "a", 0),
            "SubscribedTopicNames must be set in first request.",
        ),
        (
            ShareGroupHeartbeatRequest("g", "a", 0, None, []),
            "SubscribedTopicNames must be set in first request.",
        ),
        (ShareGroupHeartbeatRequest("g", "a", -2), "MemberEpoch is invalid."),
        (ShareGroupHeartbeatRequest("g" * 40_000, "a", 1), "GroupId is too long."),
    ],
)
def test_requests_that_are_not_valid(request_: ShareGroupHeartbeatRequest, text: str) -> None:
    answer = ShareDesk().ask(request_)
    assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, text)


def test_a_new_group_gets_its_partitions_when_they_have_states() -> None:
    desk = ShareDesk()
    first = desk.beat()
    assert (first.member_id, first.member_epoch, first.heartbeat_interval_ms) == ("a", 1, 5000)
    assert assigned(first) == {}
    assert kinds(desk) == [10, 11, 13, 12, 14, 15]
    ((_, effect),) = desk.changing
    assert effect.requests == tuple(
        InitializeState(SharePartitionKey("g", T, at), 1, -1) for at in range(3)
    )
    assert desk.group.initializing == {T: NamedPartitions("t", frozenset(range(3)))}
    # Nothing more is requested meanwhile, and nothing changes.
    assert assigned(desk.beat(epoch=1)) is None
    assert len(desk.changing) == 1
    desk.change()
    assert desk.group.initialized == {T: NamedPartitions("t", frozenset(range(3)))}
    assert not desk.group.initializing
    second = desk.beat(epoch=1)
    assert second.member_epoch == 2
    assert assigned(second) == {"t": [0, 1, 2]}
    assert kinds(desk) == [11, 13, 12, 14]
    assert desk.beat(epoch=2).assignment is None


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    desk = started("a", "b")
    assert desk.group.settled
    before = share_facts(desk.group)
    desk.beat("a", desk.group.members["a"].epoch)
    assert desk.decision.steps == []
    assert desk.decision.effects[0] == SetTimer(session("a"), desk.now_ms + 45_000)
    assert share_facts(desk.group) == before


def test_members_share_partitions() -> None:
    desk = started("a", "b", "c", "d")
    found = desk.settle("a", "b", "c", "d")
    readers = [sum(at in each.get("t", []) for each in found.values()) for at in range(3)]
    assert all(each["t"] for each in found.values())
    assert min(readers) >= 1


def test_epochs() -> None:
    desk = started("a")
    epoch = desk.group.members["a"].epoch
    assert (epoch, desk.group.members["a"].previous_epoch) == (2, 1)
    for wrong, text in (
        (3, "The share group member has a greater member epoch (3) than the one known by the group "
            "coordinator (2). The member must abandon all its partitions and rejoin."),
    ):  # fmt: skip
        answer = desk.beat(epoch=wrong)
        assert (answer.error_code, answer.error_message) == (E.FENCED_MEMBER_EPOCH, text)
    # The last answer may have been lost.
    assert desk.beat(epoch=1).member_epoch == 2
    desk.beat(epoch=2, topics=["t", "u"])
    desk.settle("a")
    now = desk.group.members["a"].epoch
    assert now > 3
    old = desk.beat(epoch=1)
    assert old.error_code == E.FENCED_MEMBER_EPOCH
    assert old.error_message is not None
    assert f"and it does not match the previous member epoch ({now - 1})." in old.error_message
    # It may join again at any time, and the answer has all its tasks.
    again = desk.beat(epoch=0, topics=["t", "u"])
    assert again.member_epoch == now
    assert assigned(again) == {"t": [0, 1, 2], "u": [0, 1]}


def test_unknown_members_and_groups() -> None:
    desk = ShareDesk()
    for epoch in (1, -1):
        answer = desk.beat(epoch=epoch)
        assert (answer.error_code, answer.error_message) == (
            E.GROUP_ID_NOT_FOUND, "Share group g not found.",
        )  # fmt: skip
    desk.beat()
    for epoch in (1, -1):
        answer = desk.beat("b", epoch=epoch)
        assert (answer.error_code, answer.error_message) == (
            E.UNKNOWN_MEMBER_ID, "Member b is not a member of group g.",
        )  # fmt: skip


def test_a_full_group() -> None:
    desk = ShareDesk()
    desk.settings.group_share_max_size = 1
    desk.beat()
    answer = desk.beat("b")
    text = "The share group has reached its maximum capacity of 1 members."
    assert (answer.error_code, answer.error_message) == (E.GROUP_MAX_SIZE_REACHED, text)
    assert desk.beat("b", 7).error_code == E.GROUP_MAX_SIZE_REACHED
    assert not desk.beat().error_code


def test_a_change_of_the_subscription_takes_effect_at_once() -> None:
    desk = started("a")
    desk.beat(epoch=2, topics=["u"])
    assert kinds(desk) == [10, 11, 13, 12, 14, 15]
    # `u` has no states yet, `t` is not subscribed to any more.
    assert desk.settle("a") == {"a": {"u": [0, 1]}}
    assert set(desk.group.initialized) == {T, U}
    desk.beat(epoch=desk.group.members["a"].epoch, topics=["t"])
    # Its states are still there.
    assert assigned(desk.beat(epoch=desk.group.members["a"].epoch, topics=["t"])) == {
        "t": [0, 1, 2]
    }


def test_added_partitions_begin_at_the_first_record() -> None:
    desk = started("a")
    desk.topics["t"] = 5
    desk.beat(epoch=2)
    assert desk.requested() == [(3, 0), (4, 0)]
    assert desk.settle("a") == {"a": {"t": [0, 1, 2, 3, 4]}}


def test_states_are_requested_again_after_a_while() -> None:
    desk = ShareDesk()
    desk.beat()
    desk.changing.clear()  # lost
    desk.topics["t"] = 4
    desk.now_ms += 29_999
    desk.beat(epoch=1)
    # The partition that was added meanwhile, only.
    assert desk.requested() == [(3, 0)]
    desk.changing.clear()
    desk.now_ms += 30_000
    desk.beat(epoch=desk.group.members["a"].epoch)
    # None of them was ever initialized.
    assert desk.requested() == [
        (0, -1), (1, -1), (2, -1), (3, -1),
    ]  # fmt: skip
    assert desk.settle("a") == {"a": {"t": [0, 1, 2, 3]}}


def test_after_a_load_states_are_requested_at_once() -> None:
    desk = ShareDesk()
    desk.beat()
    desk.reload()
    desk.beat(epoch=1)
    assert len(desk.changing) == 1


def test_after_a_load_states_that_were_lost_are_requested_again() -> None:
    """Such as by a restore from a backup, which does not have them."""
    desk = started("a")
    desk.reload()
    epoch = desk.group.epoch
    assert desk.beat(epoch=epoch).error_code == 0
    ((_, effect),) = desk.changing
    assert [each.key.partition for each in effect.requests] == [0, 1, 2]
    desk.change()
    written = len(desk.log)
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}
    assert len(desk.log) == written  # all are there, which is not looked up again
    desk.reload()
    desk.beat(epoch=epoch)
    # A state that cannot be looked up is not lost.
    desk.change(E.COORDINATOR_NOT_AVAILABLE)
    assert len(desk.log) == written
    desk.reload()
    for partition in (0, 1, 2):
        desk.states.apply(StateSnapshot(SharePartitionKey("g", T, partition), None))
    desk.beat(epoch=epoch)
    assert desk.requested() == []
    desk.change()
    assert desk.group.initialized == {}
    desk.beat(epoch=epoch)
    assert desk.requested() == [(0, -1), (1, -1), (2, -1)]
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}
    assert len(desk.states.partitions) == 3


def test_states_that_could_not_be_initialized_are_requested_by_the_next_heartbeat() -> None:
    desk = ShareDesk()
    desk.beat()
    desk.change(E.NONE, E.COORDINATOR_NOT_AVAILABLE)
    assert desk.group.initialized == {T: NamedPartitions("t", frozenset({0, 2}))}
    assert not desk.group.initializing
    desk.beat(epoch=1)
    ((_, effect),) = desk.changing
    assert [each.key.partition for each in effect.requests] == [1]
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}


def test_topics_that_are_created_and_deleted() -> None:
    desk = ShareDesk()
    desk.beat(topics=["later"])
    assert desk.settle("a") == {"a": {}}
    desk.topics["later"] = 2
    assert desk.settle("a") == {"a": {"later": [0, 1]}}
    del desk.topics["later"]
    desk.do(desk.shard.decide_topic_deleted(["later"]))
    assert not desk.group.initialized
    assert desk.settle("a") == {"a": {}}


def test_a_topic_that_is_deleted_while_its_states_are_initialized() -> None:
    desk = ShareDesk()
    desk.beat()
    del desk.topics["t"]
    desk.do(desk.shard.decide_topic_deleted(["t"]))
    desk.change()
    assert not desk.group.initialized
    assert not desk.group.initializing


def test_leaving_and_expiring() -> None:
    desk = started("a", "b")
    epoch = desk.group.epoch
    left = desk.beat("a", -1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "a", -1)
    assert left.heartbeat_interval_ms == 0
    assert kinds(desk) == [14, 13, 10, 11]
    assert desk.group.epoch == epoch + 1
    assert desk.settle("b") == {"b": {"t": [0, 1, 2]}}
    desk.now_ms += 45_000
    desk.fire_due()
    assert kinds(desk) == [14, 13, 10, 11, 12]
    assert not desk.group.members
    assert (desk.group.target_epoch, desk.group.target_at_ms) == (desk.group.epoch, 0)
    desk.beat("a")
    assert desk.settle("a") == {"a": {"t": [0, 1, 2]}}


def test_the_assignment_interval() -> None:
    desk = ShareDesk()
    desk.settings.group_share_assignment_interval_ms = 1000
    desk.beat("a")
    desk.change()
    # The first target was computed a moment ago.
    assert desk.beat("a", 1).member_epoch == 1
    desk.now_ms += 1000
    assert assigned(desk.beat("a", 1)) == {"t": [0, 1, 2]}


@pytest.mark.parametrize("how", ["log", "compacted", "snapshot"])
def test_a_load_gives_the_same_group(how: str) -> None:
    desk = started("a", "b")
    desk.beat("c", topics=["u"])
    before = share_facts(desk.group)
    desk.reload(compacted=how == "compacted", snapshot=how == "snapshot")
    assert share_facts(desk.group) == before
    assert desk.timers == dict.fromkeys(
        [("g", session(member)) for member in "abc"], desk.now_ms + 45_000
    )


def test_other_groups_with_the_id_of_a_share_group() -> None:
    desk = started("a")
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", b"")],
    )  # fmt: skip
    answer = desk.ask(join, 9)
    assert (answer.error_code, answer.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, "")
    assert desk.ask(HeartbeatRequest("g", 1, "a"), 4).error_code == E.UNKNOWN_MEMBER_ID
    assert desk.ask(SyncGroupRequest("g", 1, "a"), 5).error_code == E.UNKNOWN_MEMBER_ID
    left = desk.ask(LeaveGroupRequest("g", members=[MemberIdentity("a")]), 5)
    assert left.members[0].error_code == E.UNKNOWN_MEMBER_ID
    consumer = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[]
    )
    refused = desk.ask(consumer)
    assert (refused.error_code, refused.error_message) == (
        E.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.",
    )  # fmt: skip
    assert desk.ask(OffsetFetchRequestGroup("g"), 9).error_code == E.GROUP_ID_NOT_FOUND
    assert desk.ask(OffsetDeleteRequest("g"), 0).error_code == E.GROUP_ID_NOT_FOUND
    assert desk.ask(DescribeGroupsRequest(["g"]), 6).groups[0].error_code == E.GROUP_ID_NOT_FOUND
    commit = OffsetCommitRequest("g")
    assert desk.ask(commit, 9) == desk.ask(commit, 9)
    assert list(desk.shard.share_groups) == ["g"]
    assert not desk.shard.groups


def test_the_id_of_another_group() -> None:
    desk = ShareDesk()
    desk.do(desk.shard.decide_expiry("g", 0))
    desk.shard._create("g")
    for epoch in (0, 1, -1):
        answer = desk.beat(epoch=epoch)
        assert (answer.error_code, answer.error_message) == (
            E.GROUP_ID_NOT_FOUND, "Group g is not a share group.",
        )  # fmt: skip
    described = desk.ask(ShareGroupDescribeRequest(["g", "none"])).groups
    assert [(each.error_code, each.error_message) for each in described] == [
        (E.GROUP_ID_NOT_FOUND, "Group g is not a share group."),
        (E.GROUP_ID_NOT_FOUND, "Group none not found."),
    ]


def test_groups_are_described_and_listed() -> None:
    desk = started("a")
    desk.beat("a", desk.group.members["a"].epoch, rack="r")
    (group,) = desk.ask(ShareGroupDescribeRequest(["g"])).groups
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.rack_id) == ("a", 2, "r")
    assert (member.client_id, member.client_host) == ("c", "/h")
    assert member.subscribed_topic_names == ["t"]
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])
    for states, types, count in (
        ([], [], 1), (["stable"], ["Share"], 1), (["Empty"], [], 0), ([], ["consumer"], 0),
    ):  # fmt: skip
        listed = desk.ask(ListGroupsRequest(states, types), 5).groups
        assert len(listed) == count
    (row,) = desk.ask(ListGroupsRequest(), 5).groups
    assert (row.group_id, row.protocol_type, row.group_state, row.group_type) == (
        "g", "share", "Stable", "share",
    )  # fmt: skip


def test_share_groups_do_not_expire() -> None:
    desk = started("a")
    desk.beat("a", -1)
    desk.now_ms += 10**12
    assert desk.shard.group_ids() == []
    assert desk.shard.decide_expiry("g", desk.now_ms).steps == []


def test_kinds_of_records_are_apart() -> None:
    assert not {int(kind) for kind in ConsumerKind} & {int(kind) for kind in ShareKind}
    desk = started("a")
    answer = desk.ask(DeleteGroupsRequest(["g"]), 2)
    assert answer.results[0].error_code == E.NON_EMPTY_GROUP
    assert not any(isinstance(record, GroupRecord) for record in desk.log)
