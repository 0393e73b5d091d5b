"""Heartbeats of the consumer protocol: joins, reconciliation, errors, static members, patterns."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.consumer import heartbeat as heartbeat_module
from kafkawire.groups.consumer import target as target_module
from kafkawire.groups.consumer.group import ConsumerGroup, ConsumerState
from kafkawire.groups.consumer.member import MemberState
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord
from kafkawire.groups.model.request import Client
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.kit.groups.consumers import ConsumerDesk, assigned, facts
from tests.kit.groups.log import id_of

ALL = {"t": [0, 1, 2, 3, 4, 5]}


@pytest.fixture(name="desk")
def make_desk() -> ConsumerDesk:
    return ConsumerDesk()


def two_members(desk: ConsumerDesk) -> None:
    """Members a and b with three partitions of `t` each, at epoch 2."""
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 1)
    desk.beat("a", 1, owned={"t": [0, 1, 2]})
    desk.beat("b", 2)
    assert desk.group.state is ConsumerState.STABLE


def test_the_first_member_gets_everything_at_once(desk: ConsumerDesk) -> None:
    answer = desk.beat("a")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 1)
    assert answer.heartbeat_interval_ms == 5000
    assert assigned(answer) == ALL
    assert desk.timers == {("g", "session:a"): desk.now_ms + 45_000}
    kinds = [record.kind for record in desk.log if isinstance(record, ConsumerRecord)]
    assert kinds == [
        ConsumerKind.MEMBER,
        ConsumerKind.GROUP,
        ConsumerKind.TARGET_MEMBER,
        ConsumerKind.TARGET,
        ConsumerKind.CURRENT,
    ]


def test_a_member_id_is_made_for_version_0(desk: ConsumerDesk) -> None:
    answer = desk.beat("", version=0)
    assert (answer.error_code, answer.member_id) == (0, "fresh")
    assert desk.beat("", version=1).error_code == ErrorCode.INVALID_REQUEST


def test_partitions_move_only_after_they_were_revoked(desk: ConsumerDesk) -> None:
    desk.beat("a")
    joined = desk.beat("b")
    assert (joined.member_epoch, assigned(joined)) == (2, {})
    assert desk.group.members["b"].state is MemberState.UNRELEASED
    # The epoch of the first stays until it has revoked, so that it may commit.
    asked = desk.beat("a", 1)
    assert (asked.member_epoch, assigned(asked)) == (1, {"t": [0, 1, 2]})
    assert desk.group.members["a"].state is MemberState.UNREVOKED
    assert desk.timers["g", "rebalance:a"] == desk.now_ms + 30_000
    for owned in (None, ALL, {"t": [0, 3]}):
        again = desk.beat("a", 1, owned=owned)
        assert (again.member_epoch, again.assignment) == (1, None)
    assert assigned(desk.beat("b", 2)) is None
    revoked = desk.beat("a", 1, owned={"t": [0, 1, 2]})
    assert (revoked.member_epoch, revoked.assignment) == (2, None)
    assert ("g", "rebalance:a") not in desk.timers
    assert desk.group.state.value == "Reconciling"
    assert assigned(desk.beat("b", 2)) == {"t": [3, 4, 5]}
    assert desk.group.state.value == "Stable"


def test_a_heartbeat_that_changes_nothing_writes_and_computes_nothing(
    desk: ConsumerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_members(desk)

    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("computed")

    # All that takes time with members, topics or partitions.
    for name in ("gather_input", "is_large", "subscribed_names", "subscribed_ids", "hash_topics"):
        monkeypatch.setattr(heartbeat_module, name, fail)
    monkeypatch.setattr(heartbeat_module, "select_assignor", fail)
    for more in ({}, {"topics": ["t"]}, {"owned": {"t": [0, 1, 2]}}):
        answer = desk.beat("a", 2, **more)
        assert (answer.error_code, answer.assignment) == (0, None)
        assert desk.decision.steps == []


def test_a_full_request_is_answered_with_the_assignment(desk: ConsumerDesk) -> None:
    desk.beat("a")
    answer = desk.beat("a", 1, topics=["t"], owned=ALL, rebalance_timeout_ms=30_000)
    assert assigned(answer) == ALL
    assert desk.decision.steps == []


def test_many_joins_share_a_computation(desk: ConsumerDesk) -> None:
    desk.settings.group_consumer_assignment_interval_ms = 1000
    desk.beat("a")
    for name in "bcdef":
        answer = desk.beat(name)
        assert (answer.member_epoch, assigned(answer)) == (1, {})
    assert (desk.group.epoch, desk.group.target_epoch) == (6, 1)
    assert desk.group.state is ConsumerState.ASSIGNING
    assert desk.beat("f", 1).member_epoch == 1
    desk.now_ms += 1000
    assert desk.beat("f", 1).member_epoch == 6
    assert (desk.group.target_epoch, desk.group.target_at_ms) == (6, desk.now_ms)
    assert all(sum(map(len, target.values())) == 1 for target in desk.group.target.values())


def test_a_clock_that_was_set_back_does_not_stop_assignments(desk: ConsumerDesk) -> None:
    desk.settings.group_consumer_assignment_interval_ms = 1000
    desk.beat("a")
    desk.now_ms -= 100_000
    assert desk.beat("b").member_epoch == 2


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (3, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, {"t": [0, 1, 2]}, ErrorCode.NONE),  # the answer with epoch 2 was lost
        (1, {"t": [0]}, ErrorCode.NONE),
        (1, {"t": [0, 3]}, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, None, ErrorCode.NONE),
    ],
)
def test_epochs_are_fenced(
    desk: ConsumerDesk, epoch: int, owned: dict[str, list[int]] | None, code: ErrorCode
) -> None:
    two_members(desk)
    answer = desk.beat("a", epoch, owned=owned)
    assert answer.error_code == code
    assert bool(answer.error_message) == bool(code)
    if not code:
        assert answer.member_epoch == 2


def test_a_known_member_may_join_again(desk: ConsumerDesk) -> None:
    two_members(desk)
    answer = desk.beat("a")  # KAFKA-19233
    assert (answer.member_epoch, assigned(answer)) == (2, {"t": [0, 1, 2]})


def test_unknown_groups_and_members(desk: ConsumerDesk) -> None:
    assert desk.beat("a", 5).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.beat("a", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.beat("a")
    assert desk.beat("b", 5).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert not desk.decision.steps


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"subscribed_topic_names": None}, "Either SubscribedTopicNames or"),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid"),
        ({"member_id": "x" * 40_000}, "GroupId, MemberId or SubscribedTopicRegex is too long."),
    ],
)
def test_requests_are_checked(desk: ConsumerDesk, fields: dict[str, Any], text: str) -> None:
    join = {
        "group_id": "g", "member_id": "a", "rebalance_timeout_ms": 9, "topic_partitions": [],
        "subscribed_topic_names": ["t"],
    }  # fmt: skip
    answer = desk.ask(ConsumerGroupHeartbeatRequest(**{**join, **fields}))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message.startswith(text)


def test_an_assignor_must_be_known(desk: ConsumerDesk) -> None:
    answer = desk.beat("a", server_assignor="sticky")
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert not desk.shard.consumer_groups


def test_the_assignor_that_most_members_name_is_used(desk: ConsumerDesk) -> None:
    desk.beat("a")
    desk.beat("b")
    # One vote for range, none for another: a changed assignor raises the epoch (KAFKA-20434).
    desk.beat("c", server_assignor="range")
    assert desk.group.epoch == 3
    desk.beat("a", 1, server_assignor="uniform")
    assert desk.group.epoch == 4
    desk.beat("a", 1, server_assignor="uniform")
    assert desk.group.epoch == 4


def test_a_full_group_refuses_others(desk: ConsumerDesk) -> None:
    desk.settings.group_consumer_max_size = 1
    desk.beat("a", instance_id="i")
    assert desk.beat("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    desk.beat("a", -2, instance_id="i")
    assert desk.beat("c", instance_id="i").error_code == 0


def test_leaving_gives_the_partitions_to_others(desk: ConsumerDesk) -> None:
    two_members(desk)
    answer = desk.beat("b", -1)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "b", -1)
    assert ("g", "session:b") not in desk.timers
    assert assigned(desk.beat("a", 2)) == ALL
    assert desk.beat("b", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_to_leave_raises_both_epochs(desk: ConsumerDesk) -> None:
    desk.settings.group_consumer_assignment_interval_ms = 1000
    desk.beat("a")
    desk.beat("a", -1)
    group = desk.group
    assert (group.epoch, group.target_epoch, group.target_at_ms) == (2, 2, 0)
    assert group.state is ConsumerState.EMPTY
    assert not group.owners
    assert not group.names
    assert assigned(desk.beat("b")) == ALL  # without waiting for the interval (KAFKA-20442)


def test_a_silent_member_is_removed(desk: ConsumerDesk) -> None:
    two_members(desk)
    desk.now_ms += 44_000
    desk.beat("a", 2)
    desk.now_ms += 1000
    desk.fire_due()
    assert desk.group.members.keys() == {"a"}
    assert assigned(desk.beat("a", 2)) == ALL


def test_a_member_that_does_not_revoke_is_removed(desk: ConsumerDesk) -> None:
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 1)
    for _ in range(3):
        desk.now_ms += 10_000
        desk.beat("b", 2)
        desk.fire_due()
        desk.beat("a", 1)
    assert desk.group.members.keys() == {"b"}
    assert assigned(desk.beat("b", 2)) == ALL
    assert desk.beat("a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_changed_subscription_takes_partitions_at_once(desk: ConsumerDesk) -> None:
    desk.settings.group_consumer_assignment_interval_ms = 1000
    desk.beat("a", topics=["t", "u"])
    answer = desk.beat("a", 1, topics=["u"])
    assert (answer.member_epoch, assigned(answer)) == (1, {"u": [0, 1]})
    assert desk.group.members["a"].state is MemberState.UNREVOKED
    assert desk.group.target_epoch == 1
    desk.now_ms += 1000
    answer = desk.beat("a", 1, owned={"u": [0, 1]})
    assert (answer.member_epoch, answer.assignment) == (2, None)


def test_added_partitions_and_new_topics_are_assigned(desk: ConsumerDesk) -> None:
    desk.beat("a", topics=["t", "later"])
    assert desk.beat("a", 1).assignment is None
    desk.topics["unrelated"] = 3
    desk.beat("a", 1)
    assert desk.group.epoch == 1
    desk.topics["t"] = 7
    assert assigned(desk.beat("a", 1)) == {"t": list(range(7))}
    desk.topics["later"] = 1
    assert assigned(desk.beat("a", 2)) == {"t": list(range(7)), "later": [0]}
    del desk.topics["t"]
    assert assigned(desk.beat("a", 3)) == {"later": [0]}


def test_static_members_keep_their_partitions(desk: ConsumerDesk) -> None:
    desk.beat("a", instance_id="i1")
    desk.beat("b")
    desk.beat("a", 1, instance_id="i1")
    desk.beat("a", 1, instance_id="i1", owned={"t": [0, 1, 2]})
    assert desk.beat("x", instance_id="i1").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert desk.beat("x", 2, instance_id="i1").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert desk.beat("x", 2, instance_id="i9").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat("a", -2, instance_id="i1").member_epoch == -2
    assert assigned(desk.beat("b", 2)) == {"t": [3, 4, 5]}
    again = desk.beat("x", instance_id="i1")
    assert (again.error_code, again.member_epoch) == (0, 2)
    assert assigned(again) == {"t": [0, 1, 2]}
    assert desk.group.epoch == 2  # nothing was rebalanced
    assert desk.beat("a", 2, instance_id="i1").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert ("g", "session:a") not in desk.timers
    before = facts(desk.group)
    desk.reload(compacted=True)
    assert facts(desk.group) == before


def test_a_static_member_that_stays_away_is_removed(desk: ConsumerDesk) -> None:
    desk.beat("a", instance_id="i1")
    desk.beat("a", -2, instance_id="i1")
    desk.now_ms += 45_000
    desk.fire_due()
    assert not desk.group.members
    assert not desk.group.static


def test_patterns_are_matched_after_the_answer(desk: ConsumerDesk) -> None:
    answer = desk.beat("a", subscribed_topic_regex="t|v.*")
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 1, {})
    desk.match()
    assert desk.group.epoch == 2
    assert assigned(desk.beat("a", 1)) == ALL
    # New topics are found, at most every ten seconds.
    desk.topics["v1"] = 2
    desk.beat("a", 2)
    assert not desk.matching
    desk.now_ms += 10_001
    desk.beat("a", 2)
    desk.match()
    assert assigned(desk.beat("a", 2)) == ALL | {"v1": [0, 1]}


def test_names_and_pattern_are_a_union(desk: ConsumerDesk) -> None:
    desk.beat("a", topics=["u"], subscribed_topic_regex="t")
    desk.match()
    assert assigned(desk.beat("a", 1)) == ALL | {"u": [0, 1]}
    # An empty pattern ends it (KAFKA-19891).
    assert assigned(desk.beat("a", 2, subscribed_topic_regex="")) == {"u": [0, 1]}
    assert not desk.group.matched


def test_a_pattern_is_checked_when_it_is_new(desk: ConsumerDesk) -> None:
    for pattern in ("(", "(" * 1000, "(x{1000}){1000}"):
        answer = desk.beat("a", subscribed_topic_regex=pattern)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not desk.shard.consumer_groups


def test_topics_that_the_sender_may_not_see_are_left_out(desk: ConsumerDesk) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        rebalance_timeout_ms=9,
        subscribed_topic_regex=".*",
        topic_partitions=[],
    )
    desk.ask(request, client=Client("c", "/h", lambda name: name != "t"))
    desk.match()
    assert assigned(desk.beat("a", 1)) == {"u": [0, 1]}


def test_a_pattern_is_forgotten_with_its_last_member(desk: ConsumerDesk) -> None:
    desk.beat("a", subscribed_topic_regex="t")
    desk.beat("b", subscribed_topic_regex="t")
    desk.match()
    desk.beat("a", -1)
    assert desk.group.matched.keys() == {"t"}
    desk.beat("b", -1)
    assert not desk.group.matched
    assert not desk.group.patterns


def test_matching_that_failed_is_tried_again(desk: ConsumerDesk) -> None:
    desk.beat("a", subscribed_topic_regex="t")
    desk.matching.clear()
    desk.do(desk.shard.decide_matched("g", {}, 0, desk.now_ms))
    assert desk.decision.steps[0].__class__ is not ConsumerRecord
    desk.beat("a", 1)
    assert not desk.matching
    desk.now_ms += 10_001
    desk.beat("a", 1)
    assert desk.matching


@pytest.mark.parametrize("how", [{}, {"compacted": True}, {"snapshot": True}])
def test_a_group_survives_a_reload_in_the_middle_of_a_rebalance(
    desk: ConsumerDesk, how: dict[str, bool]
) -> None:
    desk.beat("a", subscribed_topic_regex="u")
    desk.match()
    desk.beat("b", instance_id="i")
    desk.beat("a", 1, topics=["t"])
    desk.beat("a", 2)
    before = facts(desk.group)
    assert desk.group.state is ConsumerState.RECONCILING
    desk.reload(**how)
    assert facts(desk.group) == before
    assert {key for _, key in desk.timers} >= {"session:a", "session:b"}


def test_a_revocation_has_its_time_after_a_reload(desk: ConsumerDesk) -> None:
    desk.beat("a")
    desk.beat("b")
    desk.beat("a", 1)
    desk.reload()
    assert desk.timers["g", "rebalance:a"] == desk.now_ms + 30_000


def test_topics_are_compared_after_a_reload(desk: ConsumerDesk) -> None:
    desk.beat("a")
    desk.topics["t"] = 8
    desk.reload()
    assert assigned(desk.beat("a", 1)) == {"t": list(range(8))}


def test_a_member_in_an_unknown_state_must_join_again(desk: ConsumerDesk) -> None:
    desk.beat("a")
    record = desk.log[-1]
    assert isinstance(record, ConsumerRecord)
    record.value.state = 9  # type: ignore[union-attr]
    desk.reload()
    assert desk.beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert desk.beat("a", 1, owned=ALL).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert desk.beat("a").error_code == 0
    assert desk.group.state is ConsumerState.STABLE


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group counts as a large one."""
    monkeypatch.setattr(target_module, "LARGE", 0)


@pytest.mark.usefixtures("large")
def test_target_of_a_large_group_gets_its_epoch_when_all_parts_are_stored(
    desk: ConsumerDesk,
) -> None:
    for name in "abc":
        assert desk.beat(name).member_epoch == 1
    group = desk.group
    # One computation at a time: that of the second member. The first has its target at once.
    assert (len(desk.computing), group.epoch, group.target_epoch) == (1, 3, 1)
    desk.go_on()
    desk.go_on()
    assert (len(group.target), group.target_epoch) == (2, 1)
    desk.go_on()
    desk.go_on()
    assert (len(group.target), group.target_epoch, desk.computing) == (3, 3, [])
    assert sorted(n for name in "abc" for n in group.target[name][id_of("t")]) == list(range(6))


@pytest.mark.usefixtures("large")
def test_static_member_that_returns_during_a_computation_gets_what_is_its_own(
    desk: ConsumerDesk,
) -> None:
    assert assigned(desk.beat("a", instance_id="i")) == ALL
    desk.topics["t"] += 1
    desk.beat("a", 1, instance_id="i")
    desk.go_on()
    desk.beat("a", -2, instance_id="i")
    desk.beat("b", instance_id="i")
    while desk.computing:
        desk.go_on()
    # Of another member than the group has now: not used.
    assert desk.group.target_epoch == 1
    answer = desk.beat("b", 1, instance_id="i")
    while desk.computing:
        desk.go_on()
    answer = desk.beat("b", answer.member_epoch, instance_id="i")
    assert assigned(answer) == {"t": list(range(7))}


@pytest.mark.usefixtures("large")
def test_target_is_not_stored_in_another_group_of_the_same_name(desk: ConsumerDesk) -> None:
    for name in "ab":
        desk.beat(name)
    desk.go_on()
    old, desk.computing = desk.computing, []
    desk.shard.consumer_groups["g"] = ConsumerGroup("g")
    for name in "ab":
        desk.beat(name)
    group = desk.group
    before = dict(group.target)
    desk.computing, new = old, desk.computing
    while desk.computing:
        desk.go_on()
    assert (group.target, group.target_epoch, group.computing) == (before, 1, True)
    desk.computing = new
    while desk.computing:
        desk.go_on()
    assert (group.target_epoch, group.computing) == (2, False)
