"""SyncGroup, Heartbeat, LeaveGroup, and validation of OffsetCommit.

The rules are Kafka's (GroupMetadataManager and ClassicGroup.validate*).
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.rebalance import drop, end_if_all_joined, proceed
from kafkawire.groups.classic.working_copy import Draft, answer_sync, sync_error
from kafkawire.groups.model.changes import Dropped, Put, Synced
from kafkawire.groups.model.decision import SYNC, Decision, Reply, SetTimer, session
from kafkawire.groups.model.events import MemberLeft, RebalanceCompleted, format_member_count
from kafkawire.groups.model.member import Member
from kafkawire.groups.model.request import GroupRequest
from kafkawire.groups.model.states import GroupState
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

# Enum members that heartbeats need, because a lookup costs as much as a call.
_DEAD, _PREPARING, _NONE = GroupState.DEAD, GroupState.PREPARING, ErrorCode.NONE


def sync(
    group: ClassicGroup, ask: GroupRequest[SyncGroupRequest, SyncGroupResponse], now_ms: int
) -> Decision:
    """Answer or park a SyncGroup; the leader's ends the round."""
    request = ask.request
    draft = Draft(group, now_ms)
    code = _check_sync(group, request)
    if code is not ErrorCode.NONE:
        draft.reply(ask.token, sync_error(code))
        return draft.decision
    member = group.members[request.member_id]
    if member.id in group.unsynced:
        draft.do(Synced(member.id))
        # The last one: none is left to be removed for being late.
        if not draft.group.unsynced:
            draft.cancel(SYNC)
    # A follower that comes after the leader's assignment, or that repeats its request.
    if group.state is GroupState.STABLE:
        draft.reply(ask.token, answer_sync(group, member.assignment))
        return draft.decision
    # An earlier SyncGroup that is still parked is answered, because its sender has given up.
    draft.reply(member.sync, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    draft.do(Put(replace(member, sync=ask.token)))
    if member.id == group.leader:
        _hand_out(draft, request)
    return draft.decision


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    # The sender is checked before the state, as in Kafka: one that is fenced or unknown gets that
    # error during a round, too, instead of one after which it would join with the same id.
    code = group.find(request.member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(said: str | None, known: str | None) -> bool:
    # None: SyncGroup before version 5 names neither protocol nor type.
    return said is not None and known is not None and said != known


def _hand_out(draft: Draft, request: SyncGroupRequest) -> None:
    """The leader has assigned: write the group, and send every parked member its part."""
    # Both are read before the record is applied, which clears the parked tokens and the time.
    waiting = {member.id: member.sync for member in draft.group.members.values()}
    took_ms = draft.now_ms - draft.group.rebalancing_since_ms
    draft.do(draft.group_record({a.member_id: a.assignment for a in request.assignments}))
    group = draft.group
    draft.log(
        RebalanceCompleted(group.generation, len(group.members), group.protocol or "", took_ms)
    )
    for member in draft.group.members.values():
        # The others get theirs by their own SyncGroup, in Stable.
        if waiting[member.id] is not None:
            draft.reply(waiting[member.id], answer_sync(draft.group, member.assignment))
            # The parked request replaced heartbeats.
            draft.expect(member)


def heartbeat(
    group: ClassicGroup, ask: GroupRequest[HeartbeatRequest, HeartbeatResponse], now_ms: int
) -> Decision:
    request = ask.request
    # No Draft: a heartbeat has no step, and ten thousand members send one every three seconds.
    decision = Decision(group.group_id)
    code, member = check_heartbeat(group, request)
    if member is not None:
        at_ms = now_ms + member.session_timeout_ms
        decision.effects.append(SetTimer(session(member.id), at_ms))
    decision.effects.append(Reply(ask.token, HeartbeatResponse(error_code=int(code))))
    return decision


def check_heartbeat(
    group: ClassicGroup, request: HeartbeatRequest
) -> tuple[ErrorCode, Member | None]:
    """Return the response to a Heartbeat, and the member whose session it extends. Hot."""
    state = group.state
    if state is _DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    member = group.members.get(request.member_id)
    if member is None or request.group_instance_id is not None:
        code = group.find(request.member_id, request.group_instance_id)
        if code is not _NONE:
            return code, None
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION, None
    # NONE in CompletingRebalance, too: consumers send heartbeats from the response to their join
    # on (as in Kafka). With an error they would join again before they have an assignment.
    return ErrorCode.REBALANCE_IN_PROGRESS if state is _PREPARING else _NONE, member


def leave(
    group: ClassicGroup, ask: GroupRequest[LeaveGroupRequest, LeaveGroupResponse], now_ms: int
) -> Decision:
    """Remove members, by member id or by instance id alone."""
    request = ask.request
    draft = Draft(group, now_ms)
    if group.state is GroupState.DEAD:
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        draft.reply(ask.token, LeaveGroupResponse(error_code=code))
        return draft.decision
    answers = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=int(_leave_one(draft, identity)),
        )
        for identity in request.members
    ]
    # After all have been removed: members that leave together cause one round.
    if draft.decision.steps:
        gone = len(group.members) - len(draft.group.members)
        if gone:
            proceed(draft, f"{format_member_count(gone)} left")
        else:
            # Only pending ids were removed, which no assignment has, but for which a round waits.
            end_if_all_joined(draft)
    draft.reply(ask.token, LeaveGroupResponse(members=answers))
    return draft.decision


def _leave_one(draft: Draft, identity: MemberIdentity) -> ErrorCode:
    group = draft.group
    member_id = identity.member_id
    # Tools remove static members by instance id alone (KIP-345).
    if member_id == "":
        member_id = group.static.get(identity.group_instance_id or "", "")
    # Without a check of the instance id: only ids of dynamic members are ever pending.
    elif member_id in group.pending:
        draft.do(Dropped(member_id))
        draft.cancel(session(member_id))
        return ErrorCode.NONE
    else:
        code = group.find(member_id, identity.group_instance_id)
        if code is not ErrorCode.NONE:
            return code
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    drop(draft, member, MemberLeft(member, identity.reason or ""))
    return ErrorCode.NONE


def check_commit(
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    *,
    transactional: bool = False,
) -> ErrorCode:
    """Validate an OffsetCommit, or a TxnOffsetCommit (`transactional`); see
    kafkawire.groups.model.states for the response in each state."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Without a generation it comes from a tool, or from a consumer that assigns its partitions
    # itself: that must not overwrite what members commit.
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation >= 0 or member_id or instance_id is not None:
        code = group.find(member_id, instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    # A TxnOffsetCommit may come without a member, in any state: producers before KIP-447 know none.
    elif not transactional and group.state is not GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # It has the response to its join, so its generation is right, but no assignment yet.
    if not transactional and group.state is GroupState.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
