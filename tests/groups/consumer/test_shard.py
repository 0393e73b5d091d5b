"""Consumer groups in a coordinator partition: offsets, deletion, expiry, lists, other protocols.

Covers: kafkawire.groups.shard, kafkawire.groups.commit_checks, kafkawire.groups.consumer.views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord, GroupRecord, OffsetRecord
from kafkawire.groups.model.request import VerifiedCommit
from kafkawire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kafkawire.messages.sync_group import SyncGroupRequest
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kit.groups.consumers import ConsumerDesk, assigned
from tests.kit.groups.desk import commit_of, join, offset_delete
from tests.kit.groups.requests import records_of

UNKNOWN, STALE = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH


class ShardDesk(ConsumerDesk):
    """A desk with requests about offsets."""

    def commit(self, member: str, epoch: int, *partitions: int, version: int = 9) -> int:
        offsets = {("t", partition): 5 for partition in partitions}
        request = commit_of(offsets, member=member, generation=epoch)
        answer = self.ask(request, version)
        (code,) = {entry.error_code for topic in answer.topics for entry in topic.partitions}
        return int(code)

    def fetch(self, member: str | None, epoch: int) -> Any:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        return self.ask(
            OffsetFetchRequestGroup(
                group_id="g", member_id=member, member_epoch=epoch, topics=topics
            )
        )


@pytest.fixture(name="desk")
def make_desk() -> ShardDesk:
    return ShardDesk()


def handing_over(desk: ShardDesk) -> None:
    """Member a (epoch 1) is to release partitions 3 to 5, which b (epoch 2) waits for."""
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 1)


def test_members_commit_with_their_epoch(desk: ShardDesk) -> None:
    handing_over(desk)
    # Of those to be revoked, too.
    assert desk.commit("a", 1, 0, 5) == 0
    assert desk.commit("b", 2, 0) == 0
    assert desk.commit("a", 2, 0) == STALE
    assert desk.commit("x", 2, 0) == UNKNOWN
    assert desk.commit("", -1, 0) == UNKNOWN  # a simple consumer
    assert desk.commit("a", 1, 0, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert not records_of(desk.decision)


def test_an_old_epoch_may_commit_what_the_member_still_owns(desk: ShardDesk) -> None:
    handing_over(desk)
    desk.beat("a", 1, owned={"t": [0, 1, 2]})
    assert desk.group.members["a"].epoch == 2
    # It has not seen its answer with epoch 2 (KIP-1251).
    assert desk.commit("a", 1, 0, 1, 2) == 0
    assert desk.commit("a", 0, 0) == STALE
    assert desk.commit("a", 1, 2, 3) == STALE
    desk.beat("b", 2)
    # b got 3 to 5 at epoch 2.
    assert desk.commit("b", 1, 3) == STALE
    del desk.topics["t"]
    assert desk.commit("a", 1, 0) == STALE


def test_a_tool_commits_to_a_group_without_members(desk: ShardDesk) -> None:
    desk.beat("a")
    desk.beat("a", -1)
    assert desk.commit("", -1, 0) == 0
    assert desk.commit("a", 1, 0) == UNKNOWN
    assert not desk.shard.groups


@pytest.mark.parametrize(
    ("member", "epoch", "code"),
    [("a", 1, 0), ("a", 2, STALE), ("x", 1, UNKNOWN), ("", -1, 0), ("a", -1, STALE)],
)
def test_transactional_commits_are_checked(
    desk: ShardDesk, member: str, epoch: int, code: int
) -> None:
    desk.beat("a")
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        member_id=member,
        generation_id=epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
        ],
    )
    answer = desk.ask(VerifiedCommit(request, None), 5)
    assert answer.topics[0].partitions[0].error_code == code
    assert bool(desk.decision.steps) == (not code)
    assert desk.shard.groups.keys() == set()


def test_offsets_are_fetched_with_the_epoch(desk: ShardDesk) -> None:
    desk.beat("a")
    assert desk.fetch(None, -1).error_code == 0
    assert desk.fetch("a", 1).error_code == 0
    assert desk.fetch("a", 2).error_code == STALE
    assert desk.fetch("a", 0).error_code == STALE
    assert desk.fetch("b", 1).error_code == UNKNOWN


def test_offsets_of_subscribed_topics_are_not_deleted(desk: ShardDesk) -> None:
    desk.beat("a")
    desk.commit("a", 1, 0)
    answer = desk.ask(offset_delete(("t", 0)), 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    desk.beat("a", -1)
    answer = desk.ask(offset_delete(("t", 0)), 0)
    assert answer.topics[0].partitions[0].error_code == 0
    assert not desk.shard.offsets.by_group


def test_groups_are_listed_by_type_and_state(desk: ShardDesk) -> None:
    desk.beat("a")
    desk.ask(join("", group="classic"), 3)

    def found(
        types_filter: Sequence[str] = (), states_filter: Sequence[str] = ()
    ) -> set[tuple[str, str, str, str]]:
        request = ListGroupsRequest(
            types_filter=list(types_filter), states_filter=list(states_filter)
        )
        listed = desk.ask(request, 5).groups
        return {(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in listed}

    new = ("g", "consumer", "Stable", "consumer")
    old = ("classic", "consumer", "PreparingRebalance", "classic")
    assert found() == {new, old}
    assert found(types_filter=["Consumer"]) == {new}
    assert found(types_filter=["classic"]) == {old}
    assert found(types_filter=["share"]) == set()
    assert found(states_filter=["stable"]) == {new}
    desk.beat("b")
    desk.beat("a", 1)
    assert found(states_filter=["Reconciling"]) == {(*new[:2], "Reconciling", new[3])}


def test_a_group_is_described(desk: ShardDesk) -> None:
    desk.beat("a", instance_id="i", rack_id="r", topics=["t", "u"])
    desk.beat("b", subscribed_topic_regex="u")
    desk.match()
    desk.beat("a", 1, instance_id="i")
    del desk.topics["u"]
    (group,) = desk.ask(ConsumerGroupDescribeRequest(group_ids=["g"])).groups
    assert (group.error_code, group.group_state, group.assignor_name) == (
        0,
        "Reconciling",
        "uniform",
    )
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id) == ("a", "i", "r")
    assert (first.client_id, first.client_host, first.member_type) == ("c", "/h", 1)
    assert first.subscribed_topic_names == ["t", "u"]
    assert second.subscribed_topic_regex == "u"
    assert [topic.topic_name for topic in first.target_assignment.topic_partitions] == ["t"]
    assert [topic.topic_name for topic in first.assignment.topic_partitions] == ["t"]


def test_other_groups_are_not_described(desk: ShardDesk) -> None:
    desk.ask(join("", group="classic"), 3)
    desk.beat("a")
    unknown, classic = desk.ask(
        ConsumerGroupDescribeRequest(group_ids=["nothing", "classic"])
    ).groups
    assert (unknown.error_code, unknown.error_message) == (69, "Group nothing not found.")
    assert (classic.error_code, classic.error_message) == (
        69,
        "Group classic is not a consumer group.",
    )
    (found,) = desk.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (found,) = desk.ask(DescribeGroupsRequest(groups=["g"]), 5).groups
    assert (found.error_code, found.group_state) == (0, "Dead")


def test_an_empty_group_is_deleted_in_kafkas_order(desk: ShardDesk) -> None:
    desk.beat("a", subscribed_topic_regex="t")
    desk.match()
    desk.beat("a", 1)
    desk.commit("a", 2, 0)
    request = DeleteGroupsRequest(groups_names=["g"])
    assert desk.ask(request, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    tombstones = desk.group.tombstones()
    kinds = [
        ConsumerKind.CURRENT, ConsumerKind.TARGET_MEMBER, ConsumerKind.TARGET, ConsumerKind.MEMBER,
        ConsumerKind.PATTERN, ConsumerKind.TOPICS, ConsumerKind.GROUP,
    ]  # fmt: skip
    assert [(record.kind, record.value) for record in tombstones] == [(k, None) for k in kinds]
    desk.beat("a", -1)
    assert desk.ask(request, 2).results[0].error_code == 0
    assert isinstance(records_of(desk.decision)[0], OffsetRecord)
    assert not desk.shard.consumer_groups
    assert not desk.shard.offsets.by_group
    desk.reload()
    assert not desk.shard.group_ids()
    assert desk.ask(request, 2).results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_and_the_empty_group_expire(desk: ShardDesk) -> None:
    desk.beat("a")
    desk.commit("a", 1, 0)
    retention_ms = desk.settings.offsets_retention_minutes * 60_000

    def expire() -> None:
        for group_id in desk.shard.group_ids():
            desk.do(desk.shard.decide_expiry(group_id, desk.now_ms))

    desk.now_ms += retention_ms
    expire()
    assert desk.shard.offsets.by_group  # a member subscribes to the topic
    desk.beat("a", -1)
    desk.now_ms -= 1
    expire()
    assert desk.shard.offsets.by_group
    desk.now_ms += 1
    expire()
    assert not desk.shard.group_ids()
    desk.reload()
    assert not desk.shard.group_ids()


def test_an_empty_classic_group_is_replaced(desk: ShardDesk) -> None:
    assert desk.ask(join(""), 3) is None
    member = next(iter(desk.shard.groups["g"].members))
    desk.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)]), 5)
    desk.now_ms += 3000
    desk.fire_due()
    assert desk.beat("a", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.beat("a").error_code == 0
    assert isinstance(records_of(desk.decision)[0], GroupRecord)
    assert not desk.shard.groups
    desk.reload()
    assert (desk.shard.group_ids(), desk.group.members.keys()) == (["g"], dict.fromkeys("a").keys())


def test_a_group_that_only_stored_offsets_keeps_them(desk: ShardDesk) -> None:
    desk.commit("", -1, 0)
    assert desk.shard.groups.keys() == {"g"}
    desk.beat("a")
    assert not desk.shard.groups
    for how in ({}, {"compacted": True}, {"snapshot": True}):
        desk.reload(**how)
        assert not desk.shard.groups
        assert desk.fetch("a", 1).topics[0].partitions[0].committed_offset == 5


def test_an_empty_consumer_group_is_replaced_by_a_classic_one(desk: ShardDesk) -> None:
    desk.beat("a")
    assert desk.ask(HeartbeatRequest(group_id="g", member_id="a"), 4).error_code == UNKNOWN
    sync = SyncGroupRequest(group_id="g", member_id="a", generation_id=1)
    assert desk.ask(sync, 5).error_code == UNKNOWN
    desk.commit("a", 1, 0)
    desk.beat("a", -1)
    assert desk.ask(join("unknown"), 4).error_code == UNKNOWN
    desk.ask(join(""), 3)
    assert not desk.shard.consumer_groups
    assert len(desk.shard.groups["g"].members) == 1
    desk.reload()
    assert desk.shard.groups.keys() == {"g"}
    assert not desk.shard.consumer_groups
    assert desk.fetch(None, -1).topics[0].partitions[0].committed_offset == 5


def test_tools_remove_members(desk: ShardDesk) -> None:
    desk.beat("a", instance_id="i")
    desk.beat("b")
    identities = [
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="b"),
        MemberIdentity(member_id="b"),
        MemberIdentity(member_id="x"),
        MemberIdentity(member_id="", group_instance_id="j"),
        MemberIdentity(member_id="b", group_instance_id="i"),
    ]
    answer = desk.ask(LeaveGroupRequest(group_id="g", members=identities), 5)
    codes = [member.error_code for member in answer.members]
    assert codes == [0, 0, 0, UNKNOWN, UNKNOWN, ErrorCode.FENCED_INSTANCE_ID]
    assert not desk.group.members
    assert desk.timers == {}


def test_tombstones_of_unknown_groups_create_nothing(desk: ShardDesk) -> None:
    for kind in ConsumerKind:
        desk.shard.apply(ConsumerRecord(kind, "gone", "m", None))
    assert not desk.shard.group_ids()


def test_a_target_of_a_deleted_and_recreated_group_is_new(desk: ShardDesk) -> None:
    desk.beat("a")
    desk.beat("a", -1)
    desk.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    answer = desk.beat("b")
    assert (answer.member_epoch, assigned(answer)) == (1, {"t": [0, 1, 2, 3, 4, 5]})
