"""JoinGroup: validation, member ids, and replies.

The rules are Kafka's (GroupMetadataManager.classicGroupJoin and its callees). A join that has to
wait is parked as a token in its Member.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.rebalance import (
    NEW_MEMBER_TIMEOUT_MS,
    drop,
    end_if_all_joined,
    proceed,
    reopen,
)
from kafkawire.groups.classic.working_copy import Draft, answer_join, join_error, sync_error
from kafkawire.groups.model.changes import Dropped, Pending, Put, Replaced, Window
from kafkawire.groups.model.decision import Decision, session
from kafkawire.groups.model.events import (
    Eviction,
    MemberEvicted,
    MemberJoined,
    MemberReplaced,
)
from kafkawire.groups.model.member import Member, Protocols, protocols_of
from kafkawire.groups.model.request import GroupRequest
from kafkawire.groups.model.states import GroupState
from kafkawire.log_lines import shorten_for_log
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupResponse

MAX_PENDING = 10_000
"""Maximum number of pending ids per group. Each takes some 200 bytes for a session timeout, so a
client that requests ids in a loop must not fill the memory. Real groups start fewer members
concurrently."""

FRESH_ID_BYTES = 40
"""Characters of a member id after the client or instance id: a dash, a uuid and a reserve."""

CLIENT_ID_CHARS = 8000
"""Maximum length of the client id in member ids; a longer one would not fit into a record's
string."""

KNOWN_ID_FROM = 4  # JoinGroup: MEMBER_ID_REQUIRED (KIP-394)
SKIP_ASSIGNMENT_FROM = 9  # JoinGroup: SkipAssignment (KIP-814)


def join(
    group: ClassicGroup, ask: GroupRequest[JoinGroupRequest, JoinGroupResponse], now_ms: int
) -> Decision:
    request = ask.request
    draft = Draft(group, now_ms)
    protocols = protocols_of((p.name, p.metadata) for p in request.protocols)
    if group.state is GroupState.DEAD:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Before the protocols, as in Kafka: a member without room is removed, whatever it supports.
    elif not _has_room(group, request.member_id):
        _turn_away(draft, ask.token, request.member_id)
        return draft.decision
    elif not group.speaks(request.protocol_type, protocols):
        code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    else:
        if request.member_id == "":
            _join_new(draft, ask, request, protocols)
        else:
            _join_known(draft, ask, request, protocols)
        return draft.decision
    draft.reply(ask.token, join_error(code, request.member_id))
    return draft.decision


def _has_room(group: ClassicGroup, member_id: str) -> bool:
    limit = group.settings.group_max_size
    member = group.members.get(member_id)
    # In an open round those that wait are counted instead of all members, so that a group over a
    # lowered limit removes the last to rejoin.
    if group.state is GroupState.PREPARING:
        return (member is not None and member.join is not None) or group.joined < limit
    # One member fits: the limit is at least 1.
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < limit


def _turn_away(draft: Draft, token: int, member_id: str) -> None:
    member = draft.group.members.get(member_id)
    # The round must not wait for a member that will not join: it may have been the last.
    if member is not None:
        drop(draft, member, MemberEvicted(member, Eviction.MAX_SIZE))
        end_if_all_joined(draft)
    elif member_id in draft.group.pending:
        draft.do(Dropped(member_id))
        draft.cancel(session(member_id))
        end_if_all_joined(draft)
    draft.reply(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))


def _join_new(
    draft: Draft,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    request: JoinGroupRequest,
    protocols: Protocols,
) -> None:
    group = draft.group
    instance_id = request.group_instance_id
    # In the form of Kafka's ids: operators and tools read the client from it.
    owner = (ask.client.id or "")[:CLIENT_ID_CHARS] if instance_id is None else instance_id
    new_id = f"{owner}-{ask.fresh_id}"
    # A static member is recognized by its instance id, so its join is never lost with the response.
    if instance_id is not None:
        old_id = group.static.get(instance_id)
        if old_id is None:
            _add(draft, ask, request, protocols, new_id)
        else:
            _replace(draft, ask, request, protocols, old_id, new_id)
    # The client joins again with this id (KIP-394). One that gives up before the response leaves an
    # id that ends with its session timeout, not a member that may wait for NEW_MEMBER_TIMEOUT_MS.
    elif ask.version >= KNOWN_ID_FROM:
        if len(group.pending) >= MAX_PENDING:
            draft.reply(ask.token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        draft.do(Pending(new_id))
        draft.timer(session(new_id), request.session_timeout_ms)
        draft.reply(ask.token, join_error(ErrorCode.MEMBER_ID_REQUIRED, new_id))
    else:
        _add(draft, ask, request, protocols, new_id)


def _join_known(
    draft: Draft,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    request: JoinGroupRequest,
    protocols: Protocols,
) -> None:
    """Join a member with an id: a pending one, or one that rejoins."""
    group = draft.group
    member_id = request.member_id
    # Ids of static members are never pending: with an instance id this is no join of that id.
    if member_id in group.pending and request.group_instance_id is None:
        _add(draft, ask, request, protocols, member_id)
        return
    code = group.find(member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        draft.reply(ask.token, join_error(code, member_id))
        return
    member = group.members[member_id]
    unchanged = member.protocols == protocols
    if group.state is GroupState.COMPLETING and unchanged:
        # It may have missed the response to its first join.
        draft.reply(ask.token, answer_join(group, member_id))
    # Nothing has changed that the assignment depends on, so the generation remains.
    elif group.state is GroupState.STABLE and unchanged and member_id != group.leader:
        draft.reply(ask.token, answer_join(group, member_id))
    else:
        # In Stable an unchanged leader also starts a round: it rejoins when something that only it
        # monitors has changed, such as the partitions of a topic.
        _park(draft, member, ask.token, request, protocols)
        proceed(draft, _rejoins(member.id, member_id == group.leader, unchanged, request.reason))


def _rejoins(member_id: str, leads: bool, unchanged: bool, reason: str | None) -> str:
    """Return why a known member's join opens a round; `reason`: the client's words (KIP-800)."""
    who = f"{'leader' if leads else 'member'} {shorten_for_log(member_id)}"
    what = "rejoined" if unchanged else "joined with other topics or protocols"
    return f"{who} {what}{f' ({shorten_for_log(reason)})' if reason else ''}"


def _park(
    draft: Draft, member: Member, token: int, request: JoinGroupRequest, protocols: Protocols
) -> None:
    """Park the join of a member until the round ends, and update the member."""
    # An earlier join that is still parked: its sender has given up, but its connection may be open.
    draft.reply(member.join, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
    changed = replace(
        member,
        protocols=protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        join=token,
    )
    draft.do(Put(changed))


def _add(
    draft: Draft,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    request: JoinGroupRequest,
    protocols: Protocols,
    member_id: str,
) -> None:
    window = draft.group.window
    member = Member(
        member_id,
        request.group_instance_id,
        ask.client.id or "",
        ask.client.host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        protocols,
        is_new=True,
        join=ask.token,
    )
    draft.do(Put(member, request.protocol_type))
    # The timer of the open first round is not moved: it finds `grew` when it fires.
    if window is not None:
        draft.do(Window(window.delay_ms, window.remaining_ms, grew=True))
    draft.timer(session(member_id), NEW_MEMBER_TIMEOUT_MS)
    draft.log(MemberJoined(member))
    proceed(draft, f"member {shorten_for_log(member_id)} joined")


def _replace(
    draft: Draft,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    request: JoinGroupRequest,
    protocols: Protocols,
    old_id: str,
    new_id: str,
) -> None:
    """Replace a static member that rejoined without its id, under a new id."""
    group = draft.group
    old = group.members[old_id]
    led = group.leader
    # An earlier process with this instance id still waits: two must not read the same partitions.
    draft.reply(old.join, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
    draft.reply(old.sync, sync_error(ErrorCode.FENCED_INSTANCE_ID))
    new = Member(
        new_id,
        old.instance_id,
        ask.client.id or "",
        ask.client.host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        protocols,
        old.assignment,
    )
    draft.do(Replaced(old_id, new))
    draft.log(MemberReplaced(old_id, new))
    draft.cancel(session(old_id))
    draft.expect(new)
    # The purpose of static members: after a restart each has its partitions again without a round
    # (KIP-345). Only the id changes, unless its new protocols change the choice of all.
    if group.state is GroupState.STABLE and draft.group.select_protocol() == group.protocol:
        _keep_round(draft, ask, new_id, led)
        return
    draft.do(Put(replace(new, join=ask.token)))
    if group.state is GroupState.PREPARING:
        end_if_all_joined(draft)
    else:
        # The leader may be computing an assignment, which has the old id.
        reopen(
            draft,
            f"static member {shorten_for_log(new_id)} joined while others waited for assignments",
        )


def _keep_round(
    draft: Draft,
    ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
    new_id: str,
    led: str | None,
) -> None:
    """Write the group with the new id and answer with the current generation."""
    assignments = {member.id: member.assignment for member in draft.group.members.values()}
    draft.do(draft.group_record(assignments))
    answer = answer_join(draft.group, new_id)
    # A leader that returns must not assign again, as there is no round. From version 9 on the
    # response says so; before, it has the old id as leader, which no member has (as in Kafka).
    if ask.version >= SKIP_ASSIGNMENT_FROM:
        answer.skip_assignment = new_id == draft.group.leader
    else:
        answer.leader = led or ""
        answer.members = []
    draft.reply(ask.token, answer)
