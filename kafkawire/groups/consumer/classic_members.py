"""Members of a consumer group with the classic protocol: JoinGroup, SyncGroup, Heartbeat.

While a group is converted online, some members have the classic protocol. The broker assigns their
partitions, too: their JoinGroup is a heartbeat with a subscription, no member leads, and their
SyncGroup fetches what is assigned. A Heartbeat asks them to join again when there is something to
release or to get. Not done: the conversion to a classic group when a static member with the classic
protocol replaces the last one with the other protocol. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import DecodeError
from kafkawire.groups.consumer.conversion import (
    read_subscription,
    to_partitions,
    write_assignment,
)
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.heartbeat import ConsumerHeartbeat
from kafkawire.groups.consumer.member import (
    NO_TARGET,
    ClassicPart,
    ConsumerMember,
    MemberState,
)
from kafkawire.groups.consumer.removal import find_member
from kafkawire.groups.model.changes import JoinArrived, JoinExpected
from kafkawire.groups.model.decision import (
    CancelTimer,
    Decision,
    Reply,
    SetTimer,
    join_again,
    rebalance,
    session,
    sync_after,
)
from kafkawire.groups.model.member import CONSUMER, protocols_of
from kafkawire.groups.model.request import GroupRequest, Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kafkawire.messages.stored import ConsumerProtocolSubscription
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

KNOWN_ID_FROM = 4  # JoinGroup: MEMBER_ID_REQUIRED (KIP-394)


def join(
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    now_ms: int,
) -> Decision:
    """Decide on a JoinGroup to a group with members. Raises KafkaError."""
    request = ask.request
    if settings.group_consumer_migration_policy == "disabled":
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    part = ClassicPart(
        request.session_timeout_ms,
        protocols_of((each.name, each.metadata) for each in request.protocols),
    )
    # One protocol that all members with the classic protocol have.
    count = group.classic_members
    shared = any(group.spoken.get(name, 0) == count for name, _ in part.protocols)
    if request.protocol_type != CONSUMER or not part.protocols or not shared:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        subscription = read_subscription(part.protocols[0][1])
    except DecodeError:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    return ClassicJoin(group, topics, settings, ask, part, subscription, now_ms).decide()


class ClassicJoin(ConsumerHeartbeat):
    """A JoinGroup that is being decided: like a heartbeat of the other protocol."""

    __slots__ = ("join", "part", "version")

    def __init__(
        self,
        group: ConsumerGroup,
        topics: ClusterTopics,
        settings: Settings,
        ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
        part: ClassicPart,
        subscription: ConsumerProtocolSubscription,
        now_ms: int,
    ) -> None:
        self.part = part
        self.join = ask.request
        self.version = ask.version
        owned = to_partitions(subscription.owned_partitions, topics)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group.group_id,
            member_id=ask.request.member_id,
            instance_id=ask.request.group_instance_id,
            rack_id=subscription.rack_id,
            rebalance_timeout_ms=ask.request.rebalance_timeout_ms,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex="",  # these members cannot have a pattern (KAFKA-19720)
            # None of members that release everything before they join.
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(found))
                for topic_id, found in owned.items()
            ],
        )
        super().__init__(group, topics, settings, ask, request, now_ms)

    def _find(self) -> tuple[ConsumerMember | None, ConsumerMember]:
        group, request = self.group, self.request
        member_id = request.member_id or self.ask.fresh_id
        if request.instance_id is None:
            if not request.member_id and self.version >= KNOWN_ID_FROM:
                raise MemberIdRequiredError(member_id)
            old = group.members.get(member_id)
            return old, old or ConsumerMember(member_id)
        if request.member_id:
            old = find_member(group, request.member_id, request.instance_id)
            return old, old
        holder = group.static.get(request.instance_id)
        if holder is None:
            return None, ConsumerMember(member_id)
        # The next process of a static member replaces it, whether or not it has left.
        old = group.members[holder]
        return old, replace(old, id=member_id, epoch=0, previous_epoch=0)

    def _merge(self) -> ConsumerMember:
        merged = replace(super()._merge(), classic=self.part, assignor=None)
        return self.known if merged == self.known else merged

    def _answer(self) -> None:
        member, decision = self.member, self.decision
        if member.id in self.group.joining:
            decision.steps.append(JoinArrived(member.id))
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        decision.effects += [
            CancelTimer(rebalance(member.id)),
            CancelTimer(join_again(member.id)),
            SetTimer(session(member.id), self.now_ms + self.part.session_timeout_ms),
            SetTimer(sync_after(member.id), self.now_ms + timeout_ms),
        ]
        answer = JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=CONSUMER,
            protocol_name=self.part.protocols[0][0],
            # No member assigns: the broker does.
            leader="",
            member_id=member.id,
        )
        decision.effects.append(Reply(self.ask.token, answer))


class MemberIdRequiredError(KafkaError):
    """A member must join again with the id that it is given (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id


def sync(
    group: ConsumerGroup,
    topics: ClusterTopics,
    ask: GroupRequest[SyncGroupRequest, SyncGroupResponse],
    now_ms: int,
) -> Decision:
    """Answer a SyncGroup with what is assigned. Raises KafkaError."""
    request = ask.request
    member, part = _find_classic(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    protocol, subscription = part.protocols[0]
    given = (request.protocol_type or CONSUMER, request.protocol_name or protocol)
    if given != (CONSUMER, protocol):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    decision = Decision(group.group_id)
    # With something to release it has joined already, and joins again after that.
    if member.epoch < group.target_epoch and member.state is not MemberState.UNREVOKED:
        _expect_join(decision, group, member, now_ms)
        code = int(ErrorCode.REBALANCE_IN_PROGRESS)
        decision.effects.append(Reply(ask.token, SyncGroupResponse(error_code=code)))
        return decision
    assigned = {topic_id: frozenset(found) for topic_id, found in member.assigned.items()}
    answer = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(assigned, subscription, topics),
    )
    decision.effects += [
        CancelTimer(sync_after(member.id)),
        SetTimer(session(member.id), now_ms + part.session_timeout_ms),
        Reply(ask.token, answer),
    ]
    return decision


def heartbeat(
    group: ConsumerGroup, ask: GroupRequest[HeartbeatRequest, HeartbeatResponse], now_ms: int
) -> Decision:
    """Answer a Heartbeat: REBALANCE_IN_PROGRESS if the member is to join again. Raises
    KafkaError."""
    request = ask.request
    member, part = _find_classic(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    decision = Decision(group.group_id)
    decision.effects.append(SetTimer(session(member.id), now_ms + part.session_timeout_ms))
    code = ErrorCode.NONE
    if _must_join(group, member):
        code = ErrorCode.REBALANCE_IN_PROGRESS
        _expect_join(decision, group, member, now_ms)
    decision.effects.append(Reply(ask.token, HeartbeatResponse(error_code=int(code))))
    return decision


def _must_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.target_epoch or member.state is MemberState.UNREVOKED:
        return True
    # It waits for partitions: once none of them has another owner, it can get them.
    return member.state is MemberState.UNRELEASED and not any(
        group.owner(topic_id, partition) not in (None, member.id)
        for topic_id, found in group.target.get(member.id, NO_TARGET).items()
        for partition in found
    )


def _expect_join(
    decision: Decision, group: ConsumerGroup, member: ConsumerMember, now_ms: int
) -> None:
    # Once: the time runs from the first request that was answered so.
    if member.id not in group.joining:
        at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
        decision.steps.append(JoinExpected(member.id))
        decision.effects.append(SetTimer(join_again(member.id), at_ms))


def _find_classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicPart]:
    member = find_member(group, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic
