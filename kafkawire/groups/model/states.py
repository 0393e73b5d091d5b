"""The states of a classic group and the transitions between them.

The docstring of each state lists its response to each request; tests/groups/classic/test_classic.py
has the same table and tests every request in every state. The machine is in
kafkawire.groups.classic; the names are Kafka's, shown to clients by DescribeGroups and ListGroups.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """States of a classic group (Kafka: ClassicGroupState)."""

    EMPTY = "Empty"
    """No members: a new group, one that all have left, or one that only stores offsets.

    JoinGroup: a new member begins the first rebalance; a member id is unknown (25). SyncGroup,
    Heartbeat, LeaveGroup: unknown member (25). OffsetCommit: accepted without generation (simple
    consumers, tools); with one, unknown member (25). Delete: deleted.
    """

    PREPARING = "PreparingRebalance"
    """The round is open: members are expected to join (again).

    JoinGroup: parked until all have joined or the rebalance timeout ends the wait. SyncGroup,
    Heartbeat: rebalance in progress (27). LeaveGroup: removed, which may complete the round.
    OffsetCommit: accepted with the previous generation. Delete: not empty (68).
    """

    COMPLETING = "CompletingRebalance"
    """The next generation has begun and waits for the leader's assignment.

    JoinGroup: a new member or changed metadata opens the round again; an unchanged member gets the
    current generation. SyncGroup: a follower is parked, the leader's request answers all.
    Heartbeat: fine (0). LeaveGroup: removed, the round opens again. OffsetCommit: rebalance in
    progress (27), because the member does not know its assignment yet. Delete: not empty (68).
    """

    STABLE = "Stable"
    """Every member has an assignment, or can request it.

    JoinGroup: a new member, the leader, or changed metadata opens a round; an unchanged follower
    gets the current generation; a known static instance is replaced. SyncGroup: the current
    assignment. Heartbeat: fine (0). LeaveGroup: removed, a round opens. OffsetCommit: accepted with
    this generation. Delete: not empty (68).
    """

    DEAD = "Dead"
    """Deleted, or its coordinator was unloaded.

    Every request: coordinator not available (15), so that clients look the coordinator up again. A
    group in this state is not registered any more.
    """


LEGAL: dict[GroupState, frozenset[GroupState]] = {
    # The first member joins.
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    # All have joined or the wait is over: with some member a generation begins, else it is empty.
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    # The leader's assignment arrives, or a member joins, leaves or is too late before it does.
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    # Not Empty: when the last member leaves, a round is opened and ends at once without members.
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Legal transitions from each state; asserted at every transition."""

RECORDED = frozenset({GroupState.EMPTY, GroupState.STABLE})
"""States that a record can represent."""


def may_move(old: GroupState, new: GroupState, *, recorded: bool) -> bool:
    """Return whether the transition from `old` to `new` is legal; `recorded`: by a record."""
    if new in LEGAL[old]:
        return True
    # While loading, records follow each other without the volatile states in between.
    return recorded and old in RECORDED and new in RECORDED
