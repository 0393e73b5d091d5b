"""Committed offsets: commit, fetch, delete, expiry, as one coordinator partition decides them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from groups.ask import Ask, Client
from groups.classic import ClassicGroup
from groups.decision import Decision, SetTimer, session
from groups.member import Member
from groups.records import GroupRecord, OffsetRecord, decode_record, encode_record
from groups.shard import Shard
from groups.states import State
from kafkawire.codec.compile import encode_versioned
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kafkawire.messages.stored import ConsumerProtocolSubscription, GroupMetadataValue
from kafkawire.messages.stored import MemberMetadata as Stored
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.script import GroupSettings

NONE = ErrorCode.NONE
DAY_MS = 86_400_000


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 0)


def commit_of(
    offsets: dict[tuple[str, int], int],
    group: str = "g",
    generation: int = -1,
    member: str = "",
    metadata: str | None = "",
    **more: Any,
) -> OffsetCommitRequest:
    """An OffsetCommit of these (topic, partition) -> offset."""
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, **more
    )
    for (topic, partition), offset in offsets.items():
        entry = OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=metadata,
        )
        request.topics.append(OffsetCommitRequestTopic(name=topic, partitions=[entry]))
    return request


@dataclass
class Desk:
    """A shard, and decisions carried out on it at once."""

    shard: Shard = field(default_factory=lambda: Shard(GroupSettings()))
    now_ms: int = 1_000_000
    decision: Decision = field(default_factory=Decision)

    def ask(self, request: Any, version: int = 8) -> Any:
        ask = Ask(1, version, request, Client("c", "/h"), "fresh")
        return self.do(self.shard.decide(ask, self.now_ms))

    def do(self, decision: Decision) -> Any:
        self.decision = decision
        for step in decision.steps:
            self.shard.apply(decision.group_id, step)
        return decision.replies[0].body if decision.replies else None

    def commit(self, offsets: dict[tuple[str, int], int], **how: Any) -> list[int]:
        version = how.pop("version", 8)
        answer = self.ask(commit_of(offsets, **how), version)
        return [entry.error_code for topic in answer.topics for entry in topic.partitions]

    def fetch(self, *partitions: tuple[str, int], group: str = "g") -> list[tuple[int, int, str]]:
        topics = [OffsetFetchRequestTopics(name=t, partition_indexes=[p]) for t, p in partitions]
        answer = self.ask(OffsetFetchRequestGroup(group_id=group, topics=topics))
        assert answer.error_code == 0
        return [
            (entry.committed_offset, entry.committed_leader_epoch, entry.metadata)
            for topic in answer.topics
            for entry in topic.partitions
        ]

    def all_of(self, group: str = "g") -> dict[tuple[str, int], int]:
        answer = self.ask(OffsetFetchRequestGroup(group_id=group, topics=None))
        return {
            (topic.name, entry.partition_index): entry.committed_offset
            for topic in answer.topics
            for entry in topic.partitions
        }

    def members(self, *topics: str, kind: str = "consumer") -> None:
        """The group is Stable, generation 4, with member m reading `topics`."""
        member = Stored(member_id="m", session_timeout=10_000, subscription=subscription(*topics))
        value = GroupMetadataValue(
            protocol_type=kind,
            generation=4,
            protocol="range",
            leader="m",
            current_state_timestamp=self.now_ms,
            members=[member],
        )
        self.shard.load(GroupRecord("g", value))

    def everybody_leaves(self) -> None:
        group = self.shard.groups["g"].recorded
        assert group is not None
        value = GroupMetadataValue(
            protocol_type=group.protocol_type,
            generation=5,
            protocol=None,
            leader=None,
            current_state_timestamp=self.now_ms,
        )
        self.shard.load(GroupRecord("g", value))

    def expire(self) -> None:
        for group_id in list(self.shard.groups):
            self.do(self.shard.decide_expiry(group_id, self.now_ms))

    @property
    def group(self) -> ClassicGroup:
        return self.shard.groups["g"]


# -- commit and fetch -------------------------------------------------------------------------


def test_a_simple_consumer_commits_and_reads_back() -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 7}, metadata="né") == [0, 0, 0]
    assert desk.fetch(("t", 0), ("t", 1), ("u", 0)) == [(5, 3, "né"), (6, 3, "né"), (7, 3, "né")]
    assert desk.all_of() == {("t", 0): 5, ("t", 1): 6, ("u", 0): 7}
    assert desk.group.state is State.EMPTY
    assert desk.group.protocol_type is None


def test_what_was_never_committed_is_minus_one() -> None:
    desk = Desk()
    assert desk.fetch(("t", 0)) == [(-1, -1, "")]
    assert desk.all_of() == {}
    desk.commit({("t", 0): 5})
    assert desk.fetch(("t", 1), ("x", 0)) == [(-1, -1, ""), (-1, -1, "")]


def test_null_metadata_is_empty() -> None:
    desk = Desk()
    desk.commit({("t", 0): 5}, metadata=None)
    assert desk.fetch(("t", 0)) == [(5, 3, "")]


def test_metadata_has_a_limit_of_its_own_for_each_partition() -> None:
    desk = Desk()
    request = commit_of({("t", 0): 1, ("t", 1): 2}, metadata="x" * 4096)
    request.topics[1].partitions[0].committed_metadata = "x" * 4097
    answer = desk.ask(request)
    codes = [entry.error_code for topic in answer.topics for entry in topic.partitions]
    assert codes == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert desk.all_of() == {("t", 0): 1}
    emoji = "\U0001f600"  # two units in UTF-16, which is what Kafka counts
    assert desk.commit({("u", 0): 1}, metadata=emoji * 2048) == [0]
    assert desk.commit({("u", 0): 1}, metadata=emoji * 2049) == [12]


def test_members_commit_with_their_generation() -> None:
    desk = Desk()
    desk.members("t")
    assert desk.commit({("t", 0): 1}, generation=4, member="m") == [NONE]
    assert SetTimer(session("m"), desk.now_ms + 10_000) in desk.decision.effects
    assert desk.commit({("t", 0): 2}, generation=3, member="m") == [ErrorCode.ILLEGAL_GENERATION]
    assert desk.commit({("t", 0): 2}, generation=4, member="x") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert desk.commit({("t", 0): 2}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert desk.commit({("t", 0): 2}, generation=-1, member="m") == [ErrorCode.ILLEGAL_GENERATION]
    assert desk.all_of() == {("t", 0): 1}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_no_group(version: int, code: ErrorCode) -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 1}, generation=1, member="m", version=version) == [code]
    assert not desk.shard.groups


def test_the_empty_group_id_may_commit_and_fetch_as_ever() -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 1}, group="") == [0]
    assert desk.fetch(("t", 0), group="") == [(1, 3, "")]


# -- delete -----------------------------------------------------------------------------------


def offset_delete(*partitions: tuple[str, int]) -> OffsetDeleteRequest:
    topics = [
        OffsetDeleteRequestTopic(
            name=t, partitions=[OffsetDeleteRequestPartition(partition_index=p)]
        )
        for t, p in partitions
    ]
    return OffsetDeleteRequest(group_id="g", topics=topics)


def test_offsets_of_topics_nobody_reads_are_deleted() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1, ("u", 0): 2, ("u", 1): 3}, generation=4, member="m")
    answer = desk.ask(offset_delete(("t", 0), ("u", 0), ("u", 9)))
    codes = [entry.error_code for topic in answer.topics for entry in topic.partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert desk.all_of() == {("t", 0): 1, ("u", 1): 3}
    assert len(desk.decision.steps) == 0


def test_offset_delete_of_other_groups() -> None:
    desk = Desk()
    assert desk.ask(offset_delete(("t", 0))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.members(kind="connect")
    assert desk.ask(offset_delete(("t", 0))).error_code == ErrorCode.NON_EMPTY_GROUP
    desk.everybody_leaves()
    assert desk.ask(offset_delete(("t", 0))).error_code == 0


def test_a_consumer_that_does_not_tell_reads_everything() -> None:
    desk = Desk()
    desk.members("t")
    member = desk.group.members["m"]
    desk.group.members["m"] = Member(
        "m", None, "c", "/h", 1, 1, (("range", b"no subscription"),), member.assignment
    )
    desk.commit({("u", 0): 1}, generation=4, member="m")
    answer = desk.ask(offset_delete(("u", 0)))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_groups_are_deleted_when_empty() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1}, generation=4, member="m")
    delete = DeleteGroupsRequest(groups_names=["g", "x", "g"])
    found = [(r.group_id, r.error_code) for r in desk.ask(delete).results]
    assert found == [("g", ErrorCode.NON_EMPTY_GROUP), ("x", ErrorCode.GROUP_ID_NOT_FOUND)]
    desk.everybody_leaves()
    found = [(r.group_id, r.error_code) for r in desk.ask(delete).results]
    assert found == [("g", 0), ("x", ErrorCode.GROUP_ID_NOT_FOUND)]
    assert desk.decision.steps == [OffsetRecord("g", "t", 0, None), GroupRecord("g", None)]
    assert not desk.shard.groups
    assert not desk.shard.offsets.by_group


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    desk = Desk()
    desk.commit({("t", 0): 1, ("u", 0): 2})
    desk.commit({("t", 5): 1}, group="h")
    desk.do(desk.shard.decide_topic_deleted(["t"]))
    assert desk.all_of() == {("u", 0): 2}
    assert desk.all_of("h") == {}
    assert "h" not in desk.shard.groups  # it was nothing but that offset
    assert desk.shard.topics() == {"u"}


# -- expiry (KIP-211) -------------------------------------------------------------------------


def test_simple_consumers_lose_offsets_by_the_time_of_commit() -> None:
    desk = Desk()
    desk.commit({("t", 0): 1})
    desk.now_ms += 6 * DAY_MS
    desk.commit({("t", 1): 2})
    desk.now_ms += DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 1): 2}
    desk.now_ms += 6 * DAY_MS
    desk.expire()
    assert not desk.shard.groups
    assert desk.decision.steps[-1] == GroupRecord("g", None)


def test_offsets_of_an_empty_group_count_from_when_it_became_so() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1}, generation=4, member="m")
    desk.now_ms += 30 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}  # it is being read
    desk.everybody_leaves()
    desk.now_ms += 7 * DAY_MS - 1
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}
    desk.now_ms += 1
    desk.expire()
    assert not desk.shard.groups


def test_members_keep_what_they_read_and_lose_the_rest() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1, ("u", 0): 2}, generation=4, member="m")
    desk.now_ms += 7 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}


def test_a_group_in_a_round_or_of_another_kind_is_left_alone() -> None:
    desk = Desk()
    desk.members(kind="connect")
    desk.commit({("t", 0): 1}, generation=4, member="m")
    desk.now_ms += 8 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}
    desk = Desk()
    desk.members("t")
    desk.commit({("u", 0): 1}, generation=4, member="m")
    desk.ask(join("m"))
    desk.ask(join(""), 3)
    assert desk.group.state is State.PREPARING
    desk.now_ms += 8 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("u", 0): 1}


def test_a_commit_may_bring_its_own_retention() -> None:
    desk = Desk()
    desk.commit({("t", 0): 1}, retention_time_ms=5000, version=4)
    desk.now_ms += 4999
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}
    desk.now_ms += 1
    desk.expire()
    assert not desk.shard.groups


def test_a_group_with_an_id_out_is_not_removed() -> None:
    desk = Desk()
    assert desk.ask(join("")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    desk.expire()
    assert "g" in desk.shard.groups
    desk.do(desk.shard.decide_timer("g", session("c-fresh"), desk.now_ms))
    desk.expire()
    assert not desk.shard.groups


# -- what else one partition answers ----------------------------------------------------------


def join(member: str, session_ms: int = 10_000, group: str = "g") -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=[protocol],
    )


def test_a_new_group_is_written_before_anybody_is_in_it() -> None:
    desk = Desk()
    desk.ask(join(""))
    (record,) = desk.decision.records
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


def test_joins_are_checked_before_a_group_is_made() -> None:
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
def test_requests_to_no_group(request_class: Any) -> None:
    desk = Desk()
    assert desk.ask(request_class(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert desk.commit({("t", 0): 1}, group="") == [ErrorCode.NONE]  # offsets may have no name
    assert desk.ask(request_class(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    if request_class is LeaveGroupRequest:
        gone = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
        assert desk.ask(gone).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert desk.ask(request_class(group_id="g")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_describe_shows_protocol_and_metadata_while_stable() -> None:
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


def test_a_group_nobody_knows_is_dead_or_not_found() -> None:
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


def test_strings_too_long_for_a_record_are_refused_when_they_are_said() -> None:
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


def test_the_longest_strings_go_all_the_way() -> None:
    desk = Desk()
    longest = "g" * 32_767
    assert desk.commit({("t", 0): 1}, group=longest) == [0]
    client = Client("é" * 16_000, "/h")
    ask = Ask(1, 3, join(""), client, "0" * 36)
    desk.do(desk.shard.decide(ask, desk.now_ms))
    desk.do(desk.shard.decide_timer("g", "join", desk.now_ms))
    (member_id,) = desk.group.members
    desk.ask(SyncGroupRequest(group_id="g", member_id=member_id, generation_id=1))
    for record in desk.shard.records():
        key, value = encode_record(record)
        assert decode_record(key, value) == record
