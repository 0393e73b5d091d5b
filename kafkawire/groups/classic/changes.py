"""The volatile facts of a classic group, as events.

Kafka writes a group to its log only when a generation is complete. Everything between (who is
joining, which requests are parked, how long the round stays open) lives in memory and is lost
with the coordinator, which is fine: clients retry. Here these facts obey the same rule as
records nevertheless: a decision names them, `ClassicGroup.apply` alone makes them true, and
deciding leaves the group as it was. So a decision can be thrown away when its record cannot be
appended, and a test can replay one.

Values only; made by kafkawire.groups.classic.join, rebalance and syncing, applied by
kafkawire.groups.classic.group.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkawire.groups.classic.member import Member
from kafkawire.groups.classic.states import GroupState


@dataclass(frozen=True, slots=True)
class Entered:
    """The group is in `state` since `at_ms`."""

    state: GroupState
    at_ms: int


@dataclass(frozen=True, slots=True)
class Pending:
    """An id was given out (MEMBER_ID_REQUIRED); its owner is expected to join with it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Put:
    """A member joined, or some fact about it is new. The first member of a group brings the
    `protocol_type` with it."""

    member: Member
    protocol_type: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A member or a pending id is gone."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """A static member came back under a new id and takes the old one's place (KIP-345)."""

    old_id: str
    member: Member


@dataclass(frozen=True, slots=True)
class Window:
    """The first rebalance of a group stays open a while, so that members starting together
    share one generation (KIP-134). `remaining_ms` is what is left of the rebalance timeout
    beyond this delay; `grew` says that someone joined during it."""

    delay_ms: int
    remaining_ms: int
    grew: bool = False


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """The first rebalance waits no longer."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation began: every join is answered, every member has yet to sync."""

    number: int
    protocol: str
    leader: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A member has asked for its assignment in this generation."""

    member_id: str


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """The sync phase is over without all members having synced. `reset` if its assignments
    were never handed out: they are forgotten."""

    reset: bool


Change = (
    Entered
    | Pending
    | Put
    | Dropped
    | Replaced
    | Window
    | WindowClosed
    | Generation
    | Synced
    | SyncEnded
)
