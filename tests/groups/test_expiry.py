"""Expiration of committed offsets (KIP-211): when, of which groups, and the state of the group
after it."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import session
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.states import GroupState
from tests.kit.groups.desk import Desk, join

DAY_MS = 86_400_000


def test_offsets_without_members_expire_by_commit_time() -> None:
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


def test_offsets_of_empty_group_expire_since_it_became_empty() -> None:
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


def test_only_unsubscribed_topics_of_active_group_expire() -> None:
    desk = Desk()
    desk.members("t")
    desk.commit({("t", 0): 1, ("u", 0): 2}, generation=4, member="m")
    desk.now_ms += 7 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}


def test_offsets_do_not_expire_during_rebalance_or_for_other_protocols() -> None:
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
    assert desk.group.state is GroupState.PREPARING
    desk.now_ms += 8 * DAY_MS
    desk.expire()
    assert desk.all_of() == {("u", 0): 1}


def test_commit_with_retention_time_expires_by_it() -> None:
    desk = Desk()
    desk.commit({("t", 0): 1}, retention_time_ms=5000, version=4)
    desk.now_ms += 4999
    desk.expire()
    assert desk.all_of() == {("t", 0): 1}
    desk.now_ms += 1
    desk.expire()
    assert not desk.shard.groups


def test_group_with_pending_member_is_not_removed() -> None:
    desk = Desk()
    assert desk.ask(join("")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    desk.expire()
    assert "g" in desk.shard.groups
    desk.do(desk.shard.decide_timer("g", session("c-fresh"), desk.now_ms))
    desk.expire()
    assert not desk.shard.groups
