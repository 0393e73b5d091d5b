"""The volatile facts of a group, as events.

Kafka writes a group to its log only when a generation is complete. The state in between (joining
members, parked requests, the time limit of a round) is kept in memory and lost with the
coordinator; clients retry. These changes follow the same rule as records: a decision lists them,
only `apply` of the group applies them. So a decision can be discarded when its record cannot be
appended, and a test can replay it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkawire.groups.model.member import Member
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.model.streams_topics import ConfiguredTopology
from kafkawire.groups.model.topics import TopicRevision


@dataclass(frozen=True, slots=True)
class Entered:
    """The group has been in `state` since `at_ms`."""

    state: GroupState
    at_ms: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A member id was assigned (MEMBER_ID_REQUIRED); its owner is expected to join with it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Put:
    """A member joined or changed. The first member of a group sets the `protocol_type`."""

    member: Member
    protocol_type: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A member or a pending id was removed."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """A static member rejoined under a new id and replaces the old one (KIP-345)."""

    old_id: str
    member: Member


@dataclass(frozen=True, slots=True)
class Window:
    """The first rebalance of a group stays open for a while, so that members that start together
    share one generation (KIP-134). `remaining_ms`: the rest of the rebalance timeout after this
    delay; `grew`: a member joined during it."""

    delay_ms: int
    remaining_ms: int
    grew: bool = False


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """The delay of the first rebalance has ended."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation began: all joins are answered, and no member has synced yet."""

    number: int
    protocol: str
    leader: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A member has requested its assignment in this generation."""

    member_id: str


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """The sync phase ended before all members had synced. `reset`: its assignments were never
    delivered and are discarded."""

    reset: bool


@dataclass(frozen=True, slots=True)
class TopicsCompared:
    """A consumer group's hash of its topics is that of the topics as of `revision`."""

    revision: TopicRevision


@dataclass(frozen=True, slots=True)
class PatternsRequested:
    """A consumer group's patterns are being matched with the topics as of `revision`."""

    revision: TopicRevision
    at_ms: int


@dataclass(frozen=True, slots=True)
class PatternsResolved:
    """The matching of patterns has ended, or has failed."""


@dataclass(frozen=True, slots=True)
class TargetBegun:
    """The target assignment of a large consumer group is being computed."""


@dataclass(frozen=True, slots=True)
class TargetEnded:
    """The computation has ended, or has failed."""


@dataclass(frozen=True, slots=True)
class JoinExpected:
    """A member with the classic protocol, of a consumer group, was asked to join again."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JoinArrived:
    """Such a member has joined again."""

    member_id: str


@dataclass(frozen=True, slots=True)
class InitializationBegun:
    """A share group has requested at `at_ms` that states of these topics are initialized."""

    topic_ids: frozenset[bytes]
    at_ms: int


@dataclass(frozen=True, slots=True)
class InitializationEnded:
    """Such a request was answered."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class VerificationBegun:
    """A share group that was loaded looks up its states of these topics; InitializationEnded
    follows."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class DeletionBegun:
    """A share group has requested that its states of these topics are deleted."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class DeletionEnded:
    """Such a request was answered."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class SharesSettled:
    """A share group has the states of all partitions that it subscribes to, and has assigned
    them."""


@dataclass(frozen=True, slots=True)
class TopologyConfigured:
    """A streams group has configured its topology for the topics as they are."""

    configured: ConfiguredTopology


@dataclass(frozen=True, slots=True)
class DelayBegun:
    """A streams group waits for more members before it first assigns tasks."""


@dataclass(frozen=True, slots=True)
class DelayEnded:
    """That time has passed."""


@dataclass(frozen=True, slots=True)
class EndpointsChanged:
    """The endpoints of a streams group, or the partitions that they serve, have changed."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """A member has requested that all members of its streams group shut down."""

    member_id: str


@dataclass(frozen=True, slots=True)
class TaskOffsetsReported:
    """A member of a streams group has reported how far its copies of tasks are, and where their
    changelogs end; None: as before."""

    member_id: str
    offsets: Mapping[tuple[str, int], int] | None
    end_offsets: Mapping[tuple[str, int], int] | None


@dataclass(frozen=True, slots=True)
class AssignmentRefined:
    """Members of a streams group are to have other tasks than those of the target of this epoch:
    active, standby and warm-up tasks by member. `limits`: the most warm-up tasks and the acceptable
    lag for which there is no next step; None: that is not known."""

    epoch: int
    tasks: Mapping[str, tuple[frozenset[tuple[str, int]], ...]]
    limits: tuple[int, int] | None


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
    | TopicsCompared
    | PatternsRequested
    | PatternsResolved
    | TargetBegun
    | TargetEnded
    | JoinExpected
    | JoinArrived
    | InitializationBegun
    | InitializationEnded
    | VerificationBegun
    | DeletionBegun
    | DeletionEnded
    | SharesSettled
    | TopologyConfigured
    | DelayBegun
    | DelayEnded
    | EndpointsChanged
    | ShutdownRequested
    | TaskOffsetsReported
    | AssignmentRefined
)
