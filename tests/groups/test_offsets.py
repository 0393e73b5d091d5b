"""Committed offsets: commit, fetch, delete, as one coordinator partition decides them."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import SetTimer, session
from kafkawire.groups.model.member import Member
from kafkawire.groups.model.records import GroupRecord, OffsetRecord
from kafkawire.groups.model.states import GroupState
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from tests.kit.groups.desk import Desk, commit_of, offset_delete

NONE = ErrorCode.NONE


# -- commit and fetch -------------------------------------------------------------------------


def test_commit_without_member_can_be_fetched() -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 7}, metadata="né") == [0, 0, 0]
    assert desk.fetch(("t", 0), ("t", 1), ("u", 0)) == [(5, 3, "né"), (6, 3, "né"), (7, 3, "né")]
    assert desk.all_of() == {("t", 0): 5, ("t", 1): 6, ("u", 0): 7}
    assert desk.group.state is GroupState.EMPTY
    assert desk.group.protocol_type is None


def test_uncommitted_partition_is_minus_one() -> None:
    desk = Desk()
    assert desk.fetch(("t", 0)) == [(-1, -1, "")]
    assert desk.all_of() == {}
    desk.commit({("t", 0): 5})
    assert desk.fetch(("t", 1), ("x", 0)) == [(-1, -1, ""), (-1, -1, "")]


def test_null_metadata_is_stored_as_empty() -> None:
    desk = Desk()
    desk.commit({("t", 0): 5}, metadata=None)
    assert desk.fetch(("t", 0)) == [(5, 3, "")]


def test_metadata_size_limit_applies_per_partition() -> None:
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


def test_commit_requires_current_generation() -> None:
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
def test_commit_with_generation_to_unknown_group_is_refused(version: int, code: ErrorCode) -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 1}, generation=1, member="m", version=version) == [code]
    assert not desk.shard.groups


def test_empty_group_id_can_commit_and_fetch() -> None:
    desk = Desk()
    assert desk.commit({("t", 0): 1}, group="") == [0]
    assert desk.fetch(("t", 0), group="") == [(1, 3, "")]


# -- delete -----------------------------------------------------------------------------------


def test_offset_delete_of_unsubscribed_topics() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1, ("u", 0): 2, ("u", 1): 3}, generation=4, member="m")
    answer = desk.ask(offset_delete(("t", 0), ("u", 0), ("u", 9)))
    codes = [entry.error_code for topic in answer.topics for entry in topic.partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert desk.all_of() == {("t", 0): 1, ("u", 1): 3}
    assert len(desk.decision.steps) == 0


def test_offset_delete_errors_by_group_state() -> None:
    desk = Desk()
    assert desk.ask(offset_delete(("t", 0))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.members(kind="connect")
    assert desk.ask(offset_delete(("t", 0))).error_code == ErrorCode.NON_EMPTY_GROUP
    desk.everybody_leaves()
    assert desk.ask(offset_delete(("t", 0))).error_code == 0


def test_unparsable_subscription_counts_as_all_topics() -> None:
    desk = Desk()
    desk.members("t")
    member = desk.group.members["m"]
    desk.group.members["m"] = Member(
        "m", None, "c", "/h", 1, 1, (("range", b"no subscription"),), member.assignment
    )
    desk.commit({("u", 0): 1}, generation=4, member="m")
    answer = desk.ask(offset_delete(("u", 0)))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_only_empty_groups_can_be_deleted() -> None:
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


def test_topic_deletion_removes_its_offsets() -> None:
    desk = Desk()
    desk.commit({("t", 0): 1, ("u", 0): 2})
    desk.commit({("t", 5): 1}, group="h")
    desk.do(desk.shard.decide_topic_deleted(["t"]))
    assert desk.all_of() == {("u", 0): 2}
    assert desk.all_of("h") == {}
    assert "h" not in desk.shard.groups  # the group had nothing but that offset
    assert desk.shard.topics() == {"u"}
