"""Members of a consumer group that leave, are removed, or whose timers expire. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.conversion import downgrade, may_downgrade
from kafkawire.groups.consumer.group import ConsumerGroup, epoch_record, target_epoch_record
from kafkawire.groups.consumer.member import (
    NO_PARTITIONS,
    STATIC_LEAVE,
    ConsumerMember,
    MemberState,
    Partitions,
    current_record,
    member_tombstones,
)
from kafkawire.groups.consumer.subscription import hash_topics
from kafkawire.groups.model.decision import (
    CancelTimer,
    Decision,
    Effect,
    Reply,
    SetTimer,
    join_again,
    joining_member,
    rebalance,
    rebalance_member,
    session,
    session_member,
    sync_after,
    syncing_member,
)
from kafkawire.groups.model.events import Eviction, GroupEmpty, MemberEvicted, MemberLeft
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord
from kafkawire.groups.model.request import GroupRequest, Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


def leave_by_heartbeat(
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    ask: GroupRequest[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse],
    now_ms: int,
) -> Decision:
    """Decide on a heartbeat with epoch -1 or -2. Raises KafkaError."""
    request = ask.request
    decision = Decision(group.group_id)
    member = find_member(group, request.member_id, request.instance_id)
    if request.instance_id is not None and request.member_epoch == STATIC_LEAVE:
        # Its partitions are kept for the next process with this instance id, until its session
        # ends. They count as got in epoch 0, so that a late commit is accepted.
        away = replace(
            member,
            epoch=STATIC_LEAVE,
            assigned=_forget_epochs(member.assigned),
            pending=NO_PARTITIONS,
        )
        decision.steps.append(current_record(group.group_id, away))
        decision.effects.append(CancelTimer(rebalance(member.id)))
    else:
        decision.events.append(MemberLeft(member))
        remove(decision, group, topics, settings, [member], now_ms)
    answer = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    decision.effects.append(Reply(ask.token, answer))
    return decision


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return a member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if its instance id belongs
    to another one."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            text = f"Member {member_id} is not a member of group {group.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return member
    holder = group.static.get(instance_id)
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        text = f"Instance id {instance_id} belongs to another member now."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)
    return group.members[holder]


def leave(
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    ask: GroupRequest[LeaveGroupRequest, LeaveGroupResponse],
    now_ms: int,
) -> Decision:
    """Remove members by LeaveGroup, as tools do: by member id or by instance id alone."""
    decision = Decision(group.group_id)
    response = LeaveGroupResponse()
    gone: dict[str, ConsumerMember] = {}
    for identity in ask.request.members:
        code = ErrorCode.NONE
        try:
            member = _find_identity(group, identity)
            if member.id not in gone:
                gone[member.id] = member
                decision.events.append(MemberLeft(member, identity.reason or ""))
        except KafkaError as error:
            code = error.code
        response.members.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=int(code),
            )
        )
    if gone:
        remove(decision, group, topics, settings, list(gone.values()), now_ms)
    decision.effects.append(Reply(ask.token, response))
    return decision


def _find_identity(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    instance_id = identity.group_instance_id
    member_id = identity.member_id
    if instance_id is not None and not member_id:
        member_id = group.static.get(instance_id, "")
    return find_member(group, member_id, instance_id)


def remove(
    decision: Decision,
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    gone: Sequence[ConsumerMember],
    now_ms: int,
) -> None:
    """Add the records that remove members, and raise the epoch of the group; or those that convert
    it to a classic group, if only members with the classic protocol remain."""
    group_id = group.group_id
    for member in gone:
        decision.effects += [CancelTimer(session(member.id)), CancelTimer(rebalance(member.id))]
        decision.effects += cancel_classic_timers(member.id)
    if may_downgrade(group, settings, gone):
        downgrade(decision, group, topics, settings, gone, now_ms)
        return
    for member in gone:
        decision.steps += member_tombstones(group_id, member.id)
    names, patterns = dict(group.names), dict(group.patterns)
    for member in gone:
        for name in member.topics:
            names[name] -= 1
        if member.pattern:
            patterns[member.pattern] -= 1
    subscribed = {name for name, count in names.items() if count}
    for pattern in group.matched:
        if patterns.get(pattern):
            subscribed |= group.matched[pattern].topics
        else:
            decision.steps.append(ConsumerRecord(ConsumerKind.PATTERN, group_id, pattern, None))
    epoch = group.epoch + 1
    decision.steps.append(epoch_record(group_id, epoch, hash_topics(subscribed, topics)))
    if len(gone) == len(group.members):
        # Nothing to assign, and the next member gets its target at once (KAFKA-20442).
        decision.steps.append(target_epoch_record(group_id, epoch, 0))
        decision.events.append(GroupEmpty(epoch))


def decide_timer(
    group: ConsumerGroup, topics: ClusterTopics, settings: Settings, key: str, now_ms: int
) -> Decision:
    """Decide on an expired timer; no effect if the state has changed since."""
    decision = Decision(group.group_id)
    event = _find_late(group, settings, key)
    if event is not None:
        decision.events.append(event)
        gone = group.members[event.member.id]
        remove(decision, group, topics, settings, [gone], now_ms)
    return decision


def _find_late(group: ConsumerGroup, settings: Settings, key: str) -> MemberEvicted | None:
    """Return the member that a timer removes, and why."""
    members = group.members
    member = members.get(session_member(key) or "")
    if member is not None:
        limit_ms = session_timeout_ms(group, settings, member)
        return MemberEvicted(member, Eviction.SESSION_TIMEOUT, limit_ms)
    member = members.get(rebalance_member(key) or "")
    late = member is not None and member.state is MemberState.UNREVOKED
    if member is None:
        member = members.get(joining_member(key) or "")
        late = member is not None and member.id in group.joining
    if member is not None:
        limit_ms = member.rebalance_timeout_ms
        return MemberEvicted(member, Eviction.REBALANCE_TIMEOUT, limit_ms) if late else None
    member = members.get(syncing_member(key) or "")
    if member is not None and member.classic is not None:
        return MemberEvicted(member, Eviction.SYNC_TIMEOUT, member.rebalance_timeout_ms)
    return None


def session_timeout_ms(group: ConsumerGroup, settings: Settings, member: ConsumerMember) -> int:
    """Return the session timeout of a member: the group's, or its own with the classic protocol."""
    if member.classic is not None:
        return member.classic.session_timeout_ms
    return settings.consumer_group_settings(group.group_id).session_timeout_ms


def cancel_classic_timers(member_id: str) -> list[Effect]:
    return [CancelTimer(join_again(member_id)), CancelTimer(sync_after(member_id))]


def decide_loaded(group: ConsumerGroup, settings: Settings, now_ms: int) -> Decision:
    """Decide on a group loaded from the log: sessions begin, and revocations get their time."""
    decision = Decision(group.group_id)
    for member in group.members.values():
        until_ms = now_ms + session_timeout_ms(group, settings, member)
        decision.effects.append(SetTimer(session(member.id), until_ms))
        if member.classic is not None:
            continue
        if member.state is MemberState.UNREVOKED and member.epoch != STATIC_LEAVE:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            decision.effects.append(SetTimer(rebalance(member.id), at_ms))
    return decision


def _forget_epochs(partitions: Partitions) -> Partitions:
    return {topic_id: dict.fromkeys(found, 0) for topic_id, found in partitions.items()}
