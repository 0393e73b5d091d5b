"""The phases of a rebalance: opening a round, ending it, and its timers.

`decide_timer` and `decide_loaded` return a decision; the others take the Draft of one and add to
it. The rules follow Kafka's GroupMetadataManager (prepareRebalance, completeClassicGroupJoin and
the expirations).
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.working_copy import Draft, answer_join, join_error, sync_error
from kafkawire.groups.model.changes import (
    Dropped,
    Entered,
    Generation,
    SyncEnded,
    Window,
    WindowClosed,
)
from kafkawire.groups.model.decision import JOIN, SYNC, Decision, session, session_member
from kafkawire.groups.model.events import (
    Eviction,
    GroupEmpty,
    GroupStuck,
    MemberEvicted,
    MemberLeft,
    RebalanceStarted,
    format_member_count,
    seconds,
)
from kafkawire.groups.model.member import Member
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.states import LEGAL, GroupState
from kafkawire.log_lines import shorten_for_log
from kafkawire.messages.stored import GroupMetadataValue

NEW_MEMBER_TIMEOUT_MS = 300_000
"""Maximum wait of a member in its first join. It cannot send heartbeats yet, so a client that gave
up and joined again would otherwise stay in the group forever (Kafka:
CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS)."""


def proceed(draft: Draft, reason: str) -> None:
    """After a member was added, changed or removed (`reason`): open a round, or end the open one if
    it is complete."""
    if GroupState.PREPARING in LEGAL[draft.group.state]:
        reopen(draft, reason)
    else:
        end_if_all_joined(draft)


def reopen(draft: Draft, reason: str) -> None:
    group = draft.group
    _log_start(draft, reason)
    # Members learn of the round from their heartbeats. Those with a parked SyncGroup send none, so
    # they are answered.
    if group.state is GroupState.COMPLETING:
        for member in group.members.values():
            if member.sync is not None:
                draft.reply(member.sync, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
                # The parked SyncGroup replaced heartbeats.
                draft.expect(member)
    draft.do(SyncEnded(reset=group.state is GroupState.COMPLETING))
    draft.cancel(SYNC)
    # Read before the next step, which may change this very copy.
    first = group.state is GroupState.EMPTY
    draft.do(Entered(GroupState.PREPARING, draft.now_ms))
    if first:
        # Members that start together share one generation, instead of one round for each (KIP-134).
        delay_ms = group.settings.group_initial_rebalance_delay_ms
        remaining_ms = max(draft.group.rebalance_timeout_ms - delay_ms, 0)
        draft.do(Window(delay_ms, remaining_ms))
        draft.timer(JOIN, delay_ms)
    # At once for a group of one whose member has joined, and after the last member has left.
    elif draft.group.all_joined:
        end(draft)
    else:
        draft.timer(JOIN, draft.group.rebalance_timeout_ms)


def _log_start(draft: Draft, reason: str) -> None:
    """Log that a round opens, and that the group is stuck if rounds have been opened again for
    longer than a rebalance may take."""
    group = draft.group
    # The last one has left: there is nothing to balance.
    if not group.members:
        return
    again = group.state is GroupState.COMPLETING
    draft.log(RebalanceStarted(reason, group.generation, len(group.members), again))
    took_ms = draft.now_ms - group.rebalancing_since_ms
    if again and took_ms > group.rebalance_timeout_ms:
        limit = seconds(group.rebalance_timeout_ms)
        text = f"longer than its rebalance timeout of {limit}, and it begins again because {reason}"
        draft.log(GroupStuck(text, took_ms))


def end_if_all_joined(draft: Draft) -> None:
    group = draft.group
    # A first round stays open for its delay, however many have joined: others may be starting.
    if group.state is GroupState.PREPARING and group.window is None and group.all_joined:
        end(draft)


def end(draft: Draft) -> None:
    """End the open round with the members that have joined."""
    draft.cancel(JOIN)
    # The timeout of all members, also of those that are removed below.
    timeout_ms = draft.group.rebalance_timeout_ms
    for member in list(draft.group.members.values()):
        # Static members stay until their session expires, so that a restart within it causes no
        # rebalance (KIP-345).
        if member.join is None and member.instance_id is None:
            draft.log(MemberEvicted(member, Eviction.REBALANCE_TIMEOUT, timeout_ms))
            draft.do(Dropped(member.id))
            draft.cancel(session(member.id))
    if not draft.group.members:
        _empty(draft)
        return
    leader = _elect(draft.group)
    if leader is None:
        # Only static members that have not rejoined are left: a leader that is away would assign
        # nothing. The round stays open until one joins, or their sessions have expired.
        draft.timer(JOIN, draft.group.rebalance_timeout_ms)
        count = len(draft.group.members)
        reason = (
            f"no member has rejoined; {format_member_count(count)} with a static instance id are "
            "waited for until their sessions time out"
        )
        draft.log(GroupStuck(reason, draft.now_ms - draft.group.rebalancing_since_ms))
    else:
        _begin_generation(draft, leader)


def drop(draft: Draft, member: Member, event: MemberLeft | MemberEvicted) -> None:
    draft.log(event)
    draft.do(Dropped(member.id))
    draft.cancel(session(member.id))
    # A client that is alive after all joins again as a new member.
    draft.reply(member.join, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
    draft.reply(member.sync, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))


def decide_timer(group: ClassicGroup, key: str, now_ms: int) -> Decision:
    """Decide on an expired timer; no effect if the state has changed since."""
    draft = Draft(group, now_ms)
    if group.state is GroupState.DEAD:
        return draft.decision
    if key == JOIN:
        _join_due(draft)
    elif key == SYNC:
        _sync_due(draft)
    else:
        member_id = session_member(key)
        assert member_id is not None, key
        _session_due(draft, member_id)
    return draft.decision


def decide_loaded(group: ClassicGroup, now_ms: int) -> Decision:
    """Decide on a group loaded from the log."""
    draft = Draft(group, now_ms)
    # Sessions are not in the log, and members could not send heartbeats while it was loaded.
    for member in group.members.values():
        draft.expect(member)
    # The limit was lowered: the round leaves out those that rejoin last.
    if len(group.members) > group.settings.group_max_size:
        reopen(draft, "it was loaded with more than group.max.size members")
    return draft.decision


def _join_due(draft: Draft) -> None:
    group = draft.group
    if group.state is not GroupState.PREPARING:
        return
    window = group.window
    if window is not None and window.grew and window.remaining_ms:
        # Members are still joining: wait again, but never beyond the rebalance timeout (Kafka:
        # tryCompleteInitialRebalanceElseSchedule).
        delay_ms = min(group.settings.group_initial_rebalance_delay_ms, window.remaining_ms)
        draft.do(Window(delay_ms, max(window.remaining_ms - window.delay_ms, 0)))
        draft.timer(JOIN, delay_ms)
    else:
        end(draft)


def _sync_due(draft: Draft) -> None:
    """Remove members that never requested their assignment (KAFKA-10134)."""
    group = draft.group
    # In Stable, too: the leader has assigned, but a follower may never request its part.
    if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.unsynced:
        return
    late = [m for m in group.members.values() if m.id in group.unsynced]
    timeout_ms = group.rebalance_timeout_ms
    for member in late:
        drop(draft, member, MemberEvicted(member, Eviction.SYNC_TIMEOUT, timeout_ms))
    reopen(draft, f"{format_member_count(len(late))} did not request an assignment")


def _session_due(draft: Draft, member_id: str) -> None:
    group = draft.group
    # Its client never joined with the id that it got. A round waits for pending ids, too.
    if member_id in group.pending:
        draft.do(Dropped(member_id))
        end_if_all_joined(draft)
        return
    member = group.members.get(member_id)
    if member is None or member.keeps_session:
        return
    timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
    drop(draft, member, MemberEvicted(member, Eviction.SESSION_TIMEOUT, timeout_ms))
    # In an open round the others are joining already: there is only one less to wait for.
    if group.state is not GroupState.PREPARING:
        reopen(draft, f"the session of member {shorten_for_log(member.id)} timed out")
    else:
        end_if_all_joined(draft)


def _elect(group: ClassicGroup) -> str | None:
    """Return the next leader: the previous one if it joined, else the first that did."""
    # Removing the leader makes another member the leader, so a group with members has one.
    assert group.leader is not None
    if group.members[group.leader].join is not None:
        return group.leader
    return next((m.id for m in group.members.values() if m.join is not None), None)


def _begin_generation(draft: Draft, leader: str) -> None:
    """Answer all joined members, and wait for the leader's assignment."""
    if draft.group.window is not None:
        draft.do(WindowClosed())
    # Read before the step, which clears the parked tokens.
    waiting = {member.id: member.join for member in draft.group.members.values()}
    number = draft.group.generation + 1
    draft.do(Generation(number, draft.group.select_protocol(), leader, draft.now_ms))
    for member in draft.group.members.values():
        draft.reply(waiting[member.id], answer_join(draft.group, member.id))
        draft.expect(member)
    # A member that never requests its assignment would keep partitions that it does not read,
    # while its heartbeats keep its session (KAFKA-10134).
    draft.timer(SYNC, draft.group.rebalance_timeout_ms)


def _empty(draft: Draft) -> None:
    """All members have left: write a generation without members."""
    group = draft.group
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation + 1,
        protocol=None,
        leader=None,
        # The retention of the group's offsets begins now (KIP-211).
        current_state_timestamp=draft.now_ms,
        members=[],
    )
    draft.do(GroupRecord(group.group_id, value))
    draft.log(GroupEmpty(value.generation))
