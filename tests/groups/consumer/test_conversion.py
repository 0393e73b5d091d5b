"""Groups with members that are converted from one protocol to the other, and back."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.compile import decode_versioned, encode_versioned
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.consumer.classic_members import KNOWN_ID_FROM
from kafkawire.groups.consumer.conversion import read_subscription
from kafkawire.groups.model.records import ConsumerRecord, GroupRecord
from kafkawire.groups.model.states import GroupState
from kafkawire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.stored import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kit.groups.consumers import ConsumerDesk, Owned, assigned, facts
from tests.kit.groups.desk import commit_of
from tests.kit.groups.requests import records_of, replies_of

REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


class MixedDesk(ConsumerDesk):
    """A desk with members of both protocols."""

    def join(
        self,
        member: str = "",
        topics: list[str] | None = None,
        owned: Owned | None = None,
        version: int = 5,
        protocols: tuple[str, ...] = ("range", "cooperative-sticky"),
        **more: Any,
    ) -> Any:
        subscription = ConsumerProtocolSubscription(
            topics=topics or ["t"],
            owned_partitions=[TopicPartition(*pair) for pair in (owned or {}).items()],
        )
        request = JoinGroupRequest(
            group_id="g",
            member_id=member,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type=more.pop("protocol_type", "consumer"),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=encode_versioned(subscription, 1))
                for name in protocols
            ],
            **more,
        )
        return self.ask(request, version)

    def sync(self, member: str, generation: int, **more: Any) -> Any:
        request = SyncGroupRequest(group_id="g", member_id=member, generation_id=generation, **more)
        return self.ask(request, 5)

    def heart(self, member: str, generation: int) -> int:
        request = HeartbeatRequest(group_id="g", member_id=member, generation_id=generation)
        return int(self.ask(request, 4).error_code)

    def classic(self) -> str:
        """A stable classic group with one member that has all partitions of t; its id."""
        member = self.join().member_id
        self.join(member)
        self.now_ms += 3000
        self.fire_due()
        given = encode_versioned(
            ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartition("t", [0, 1, 2, 3, 4, 5])]
            ),
            1,
        )
        assignments = [SyncGroupRequestAssignment(member_id=member, assignment=given)]
        assert self.sync(member, 1, assignments=assignments).error_code == 0
        assert self.shard.groups["g"].state is GroupState.STABLE
        return str(member)


def read(assignment: bytes) -> Owned:
    found = decode_versioned(ConsumerProtocolAssignment, assignment)
    return {each.topic: each.partitions for each in found.assigned_partitions}


@pytest.fixture(name="desk")
def make_desk() -> MixedDesk:
    return MixedDesk()


def test_a_classic_group_is_converted_by_the_first_new_member(desk: MixedDesk) -> None:
    old = desk.classic()
    answer = desk.beat("new")
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 2, {})
    assert isinstance(records_of(desk.decision)[0], GroupRecord)
    assert not desk.shard.groups
    assert desk.group.members[old].classic is not None
    assert desk.timers["g", f"session:{old}"] == desk.now_ms + 10_000
    # Its heartbeat asks it to join again, which releases partitions; it keeps reading the others.
    assert desk.heart(old, 1) == REBALANCE
    joined = desk.join(old, owned={"t": [0, 1, 2, 3, 4, 5]})
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, "")
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    synced = desk.sync(old, 1, protocol_type="consumer", protocol_name="range")
    assert (synced.error_code, read(synced.assignment)) == (0, {"t": [0, 1, 2]})
    assert desk.heart(old, 1) == REBALANCE
    joined = desk.join(old, owned={"t": [0, 1, 2]})
    assert joined.generation_id == 2
    assert read(desk.sync(old, 2).assignment) == {"t": [0, 1, 2]}
    assert desk.heart(old, 2) == 0
    assert assigned(desk.beat("new", 2)) == {"t": [3, 4, 5]}
    before = facts(desk.group)
    for how in ({}, {"compacted": True}, {"snapshot": True}):
        desk.reload(**how)
        assert facts(desk.group) == before
        assert desk.timers["g", f"session:{old}"] == desk.now_ms + 10_000


def test_a_member_that_releases_everything_before_it_joins(desk: MixedDesk) -> None:
    old = desk.classic()
    desk.beat("new")
    assert desk.join(old).generation_id == 2
    assert read(desk.sync(old, 2).assignment) == {"t": [0, 1, 2]}
    assert assigned(desk.beat("new", 2)) == {"t": [3, 4, 5]}


def test_parked_members_are_asked_to_join_again(desk: MixedDesk) -> None:
    old = desk.classic()
    assert desk.join(group_instance_id="i") is None
    other = desk.shard.groups["g"].static["i"]
    desk.beat("new")
    codes = [getattr(reply.body, "error_code") for reply in replies_of(desk.decision)]  # noqa: B009
    assert codes == [REBALANCE, 0]
    assert desk.group.members.keys() == {old, other, "new"}
    assert ("g", "join") not in desk.timers


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"group_consumer_migration_policy": "downgrade"}, "online upgrade is disabled."),
        ({"group_consumer_migration_policy": "disabled"}, "online upgrade is disabled."),
        ({"group_consumer_max_size": 0}, "exceeds the consumer group maximum size."),
    ],
)
def test_conversions_are_refused(desk: MixedDesk, changed: dict[str, Any], text: str) -> None:
    desk.classic()
    for name, value in changed.items():
        setattr(desk.settings, name, value)
    answer = desk.beat("new")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (answer.error_message or "").endswith(text)
    assert desk.shard.groups.keys() == {"g"}


def test_an_assignment_with_user_data_is_not_lost(desk: MixedDesk) -> None:
    member = desk.classic()
    given = encode_versioned(ConsumerProtocolAssignment(user_data=b"state"), 1)
    desk.join(member)
    desk.sync(
        member, 2, assignments=[SyncGroupRequestAssignment(member_id=member, assignment=given)]
    )
    assert "custom assignor" in (desk.beat("new").error_message or "")
    desk.join(member)
    broken = [SyncGroupRequestAssignment(member_id=member, assignment=b"\0\0\0")]
    desk.sync(member, 3, assignments=broken)
    assert "malformed" in (desk.beat("new").error_message or "")
    assert desk.shard.groups.keys() == {"g"}


def test_classic_members_join_a_consumer_group(desk: MixedDesk) -> None:
    desk.beat("new")
    asked = desk.join(version=KNOWN_ID_FROM)
    assert (asked.error_code, asked.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "fresh")
    assert desk.join("x", protocol_type="connect").error_code == 23
    joined = desk.join("x")
    assert (joined.error_code, joined.generation_id) == (0, 2)
    # One protocol for all of them.
    assert desk.join("y", protocols=("other",)).error_code == 23
    assert desk.join("y", protocols=("cooperative-sticky",)).error_code == 0
    assert desk.join("", version=3).member_id == "fresh"
    desk.settings.group_consumer_migration_policy = "disabled"
    assert desk.join("z").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    (group,) = desk.ask(ConsumerGroupDescribeRequest(group_ids=["g"])).groups
    assert [member.member_type for member in group.members] == [1, 0, 0, 0]


def test_a_waiting_member_joins_when_its_partitions_are_free(desk: MixedDesk) -> None:
    desk.beat("new")
    assert desk.join("x").generation_id == 2
    assert read(desk.sync("x", 2).assignment) == {}
    assert desk.heart("x", 2) == 0
    desk.beat("new", 1)
    desk.beat("new", 1, owned={"t": [0, 1, 2]})
    assert desk.heart("x", 2) == REBALANCE
    desk.join("x")
    assert read(desk.sync("x", 2).assignment) == {"t": [3, 4, 5]}


def test_errors_of_classic_members(desk: MixedDesk) -> None:
    desk.beat("new")
    desk.join("x")
    assert desk.heart("x", 1) == ErrorCode.ILLEGAL_GENERATION
    assert desk.sync("x", 3).error_code == ErrorCode.ILLEGAL_GENERATION
    assert desk.heart("new", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.sync("y", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.sync("x", 2, protocol_name="other").error_code == 23
    late = commit_of({("t", 0): 1}, member="x", generation=3)
    answer = desk.ask(late, 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("silent", ["join", "sync", "session"])
def test_classic_members_that_stop_are_removed(desk: MixedDesk, silent: str) -> None:
    desk.beat("new")
    desk.join("x")
    if silent != "sync":
        desk.sync("x", 2)
    if silent == "join":
        desk.beat("other")
        assert desk.heart("x", 2) == REBALANCE
    for _ in range(3):
        desk.now_ms += 9000
        desk.fire_due()
        if silent != "session" and "x" in desk.group.members:
            desk.heart("x", 2)
        for name in ("new", "other"):
            if name in desk.group.members:
                desk.beat(name)
    assert "x" not in desk.group.members
    assert not desk.group.joining


def test_a_group_is_converted_back_when_the_last_new_member_leaves(desk: MixedDesk) -> None:
    old = desk.classic()
    desk.beat("new")
    desk.join(old)
    desk.sync(old, 2)
    desk.ask(commit_of({("t", 0): 7}, member=old, generation=2), 8)
    desk.beat("new", -1)
    assert not desk.shard.consumer_groups
    group = desk.shard.groups["g"]
    assert (group.state, group.generation, group.protocol_type) == (
        GroupState.PREPARING, 2, "consumer",
    )  # fmt: skip
    member = group.members[old]
    assert [name for name, _ in member.protocols] == ["range", "cooperative-sticky"]
    assert read_subscription(member.protocols[0][1]).topics == ["t"]
    assert read(member.assignment) == {"t": [0, 1, 2]}
    assert desk.heart(old, 2) == REBALANCE
    desk.join(old)
    assert desk.shard.groups["g"].state is GroupState.COMPLETING
    assert ("g", f"join:{old}") not in desk.timers
    desk.reload()
    assert desk.shard.groups.keys() == {"g"}
    assert not desk.shard.consumer_groups
    assert desk.shard.offsets.by_group["g"]["t"][0].offset == 7


def test_a_session_that_ends_converts_back_too(desk: MixedDesk) -> None:
    old = desk.classic()
    desk.beat("new")
    for _ in range(5):
        desk.join(old)
        desk.sync(old, 2)
        desk.now_ms += 9000
        desk.fire_due()
    assert desk.shard.groups.keys() == {"g"}


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_without_downgrade_the_group_stays(desk: MixedDesk, policy: str) -> None:
    desk.beat("new")
    desk.join("x")
    desk.settings.group_consumer_migration_policy = policy
    desk.beat("new", -1)
    assert desk.group.members.keys() == {"x"}
    assert desk.group.epoch == 3


def test_tools_remove_classic_members(desk: MixedDesk) -> None:
    desk.beat("new")
    desk.join("", group_instance_id="i", version=3)
    identity = MemberIdentity(member_id="", group_instance_id="i")
    answer = desk.ask(LeaveGroupRequest(group_id="g", members=[identity]), 5)
    assert answer.members[0].error_code == 0
    assert desk.group.members.keys() == {"new"}
    assert desk.group.classic_members == 0
    assert not desk.group.spoken
    assert {key for _, key in desk.timers} == {"session:new"}


def test_a_static_classic_member_is_replaced(desk: MixedDesk) -> None:
    desk.beat("new")
    first = desk.join("", group_instance_id="i")
    desk.sync(first.member_id, 2, group_instance_id="i")
    kept = dict(desk.group.target)
    assert desk.join("", group_instance_id="i").error_code == 0
    assert desk.group.target == kept
    assert len(desk.group.members) == 2


def test_a_member_may_change_to_the_new_protocol(desk: MixedDesk) -> None:
    desk.beat("new")
    desk.join("x")
    desk.beat("x")
    assert desk.group.members["x"].classic is None
    assert desk.group.classic_members == 0
    record = next(
        record
        for record in reversed(desk.log)
        if isinstance(record, ConsumerRecord) and record.kind == 5
    )
    assert record.value is not None
    assert record.value.unknown_tags is None
