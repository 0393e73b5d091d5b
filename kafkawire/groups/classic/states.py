"""The states of a classic group and the moves between them.

Each state says what the group answers in it to each request; tests/groups/classic/test_classic.py
holds the same as a table and asks every question in every state. The machine is in
kafkawire.groups.classic.group; the names are Kafka's, shown to clients by DescribeGroups and
ListGroups.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Where a classic group is in its round (Kafka: ClassicGroupState)."""

    EMPTY = "Empty"
    """No members: a new group, one that all have left, or one that only stores offsets.

    JoinGroup: a new member begins the first rebalance; a member id is unknown (25).
    SyncGroup, Heartbeat, LeaveGroup: unknown member (25). OffsetCommit: taken without
    generation (simple consumers, tools); with one, unknown member (25). Delete: done."""

    PREPARING = "PreparingRebalance"
    """The round is open: members are expected to join (again).

    JoinGroup: parked until all have joined or the rebalance timeout ends the wait.
    SyncGroup, Heartbeat: rebalance in progress (27). LeaveGroup: removed; it may have been the
    last one missing. OffsetCommit: taken with the previous generation. Delete: not empty (68)."""

    COMPLETING = "CompletingRebalance"
    """The next generation has begun and waits for the leader's assignment.

    JoinGroup: a new member or changed metadata opens the round again; an unchanged member gets
    the current generation. SyncGroup: a follower is parked, the leader's answers everybody.
    Heartbeat: fine (0). LeaveGroup: removed, the round opens again. OffsetCommit: rebalance in
    progress (27), for the member has yet to hear its assignment. Delete: not empty (68)."""

    STABLE = "Stable"
    """Every member has an assignment, or can ask for it.

    JoinGroup: a new member, the leader, or changed metadata opens a round; an unchanged
    follower gets the current generation; a known static instance takes its old place.
    SyncGroup: the current assignment. Heartbeat: fine (0). LeaveGroup: removed, a round opens.
    OffsetCommit: taken with this generation. Delete: not empty (68)."""

    DEAD = "Dead"
    """Deleted, or its coordinator was unloaded.

    Every request: coordinator not available (15), so that clients look the coordinator up
    again. A group in this state is in no table any more."""


LEGAL: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""From each state, where a group may go. Asserted for every move."""

RECORDED = frozenset({GroupState.EMPTY, GroupState.STABLE})
"""The states a record can stand for. While loading, records follow one another without the
volatile states between them, so moves inside this set are legal for records."""


def may_move(old: GroupState, new: GroupState, *, recorded: bool) -> bool:
    """True if a group may go from `old` to `new`; `recorded` if a record says so."""
    if new in LEGAL[old]:
        return True
    return recorded and old in RECORDED and new in RECORDED
