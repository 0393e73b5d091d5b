"""Members of a streams group that leave, are removed, or whose timers expire. Pure."""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.changes import DelayEnded, ShutdownRequested
from kafkawire.groups.model.decision import (
    INITIAL,
    CancelTimer,
    Decision,
    Reply,
    SetTimer,
    rebalance,
    rebalance_member,
    session,
    session_member,
)
from kafkawire.groups.model.events import Eviction, GroupEmpty, MemberEvicted, MemberLeft
from kafkawire.groups.model.request import GroupRequest, Settings, StreamsHeartbeatResult
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.streams.group import (
    STATIC_LEAVE,
    StreamsGroup,
    epoch_record,
    target_epoch_record,
)
from kafkawire.groups.streams.member import (
    NOTHING,
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    current_record,
    member_tombstones,
)
from kafkawire.groups.streams.target import add_target, gather_input
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

Ask = GroupRequest[StreamsGroupHeartbeatRequest, StreamsHeartbeatResult]


def leave(group: StreamsGroup, ask: Ask) -> Decision:
    """Decide on a heartbeat with epoch -1 or -2. Raises KafkaError."""
    request = ask.request
    decision = Decision(group.group_id)
    member = find_member(group, request.member_id, request.instance_id)
    if request.instance_id is not None and request.member_epoch == STATIC_LEAVE:
        # Its tasks are kept for the next process with this instance id, until its session ends.
        # They count as got in epoch 0, so that a late commit is accepted.
        active = dict.fromkeys(member.assigned.active, 0)
        away = replace(
            member,
            epoch=STATIC_LEAVE,
            assigned=HeldTasks(active, member.assigned.standby, member.assigned.warmup),
            pending=NOTHING,
        )
        decision.steps.append(current_record(group.group_id, away))
        decision.effects.append(CancelTimer(rebalance(member.id)))
    else:
        decision.events.append(MemberLeft(member))
        _remove(decision, group, member)
    if request.shutdown_application and group.shutdown_by is None and len(group.members) > 1:
        decision.steps.append(ShutdownRequested(member.id))
    answer = StreamsGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    decision.effects.append(Reply(ask.token, StreamsHeartbeatResult(answer)))
    return decision


def find_member(group: StreamsGroup, member_id: str, instance_id: str | None) -> StreamsMember:
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
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member "
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{text}{holder}.")
    return group.members[holder]


def _remove(decision: Decision, group: StreamsGroup, member: StreamsMember) -> None:
    """Add the records that remove a member, and raise the epoch of the group."""
    group_id, epoch = group.group_id, group.epoch + 1
    decision.effects += [CancelTimer(session(member.id)), CancelTimer(rebalance(member.id))]
    decision.steps += member_tombstones(group_id, member.id)
    decision.steps.append(epoch_record(group, epoch))
    if len(group.members) == 1:
        # Nothing to assign, and the next member gets its target at once (KAFKA-20442).
        decision.steps.append(target_epoch_record(group_id, epoch, 0))
        decision.events.append(GroupEmpty(epoch))


def decide_timer(
    group: StreamsGroup, _: ClusterTopics, settings: Settings, key: str, now_ms: int
) -> Decision:
    """Decide on an expired timer; no effect if the state has changed since."""
    decision = Decision(group.group_id)
    if key == INITIAL:
        decision.steps.append(DelayEnded())
        if group.members and group.epoch > group.target_epoch and not group.computing:
            given = gather_input(group, group.epoch, group.configured, group.configs)
            add_target(decision, group, given, now_ms)
        return decision
    limits = settings.streams_group_settings(group.group_id)
    member = group.members.get(session_member(key) or "")
    if member is not None:
        limit_ms = limits.session_timeout_ms
        decision.events.append(MemberEvicted(member, Eviction.SESSION_TIMEOUT, limit_ms))
        _remove(decision, group, member)
        return decision
    member = group.members.get(rebalance_member(key) or "")
    if member is not None and member.state is StreamsMemberState.UNREVOKED:
        limit_ms = member.rebalance_timeout_ms
        decision.events.append(MemberEvicted(member, Eviction.REBALANCE_TIMEOUT, limit_ms))
        _remove(decision, group, member)
    return decision


def decide_loaded(group: StreamsGroup, settings: Settings, now_ms: int) -> Decision:
    """Decide on a group loaded from the log: sessions begin, and revocations get their time."""
    decision = Decision(group.group_id)
    until_ms = now_ms + settings.streams_group_settings(group.group_id).session_timeout_ms
    for member in group.members.values():
        decision.effects.append(SetTimer(session(member.id), until_ms))
        if member.state is StreamsMemberState.UNREVOKED and member.epoch != STATIC_LEAVE:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            decision.effects.append(SetTimer(rebalance(member.id), at_ms))
    return decision
