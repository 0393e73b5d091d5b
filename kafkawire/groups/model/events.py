"""Events of a group for the log and the metrics: who joined, left or was removed, and why.

A decision lists them next to its steps; nothing depends on them. kafkawire.groups.event_log writes
them to the log once the decision is carried out. The text of each continues "group NAME: ...".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kafkawire.log_lines import shorten_for_log


class Eviction(Enum):
    """Why a member was removed without having left; the value is a label of the metrics."""

    SESSION_TIMEOUT = "session_timeout"
    REBALANCE_TIMEOUT = "rebalance_timeout"
    SYNC_TIMEOUT = "sync_timeout"
    MAX_SIZE = "max_size"


class LoggedMember(Protocol):
    """A member of a group of any protocol."""

    @property
    def id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def client_id(self) -> str: ...
    @property
    def client_host(self) -> str: ...


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A member is new in the group."""

    member: LoggedMember

    def __str__(self) -> str:
        return f"{describe_member(self.member)} joined"


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member left by LeaveGroup. `reason`: the client's own words (KIP-800)."""

    member: LoggedMember
    reason: str = ""

    def __str__(self) -> str:
        return f"{describe_member(self.member)} left{_format_reason(self.reason)}"


@dataclass(frozen=True, slots=True)
class MemberEvicted:
    """A member was removed. `timeout_ms`: the limit that it exceeded; 0 for MAX_SIZE."""

    member: LoggedMember
    why: Eviction
    timeout_ms: int = 0

    def __str__(self) -> str:
        limit = seconds(self.timeout_ms)
        reason = {
            Eviction.SESSION_TIMEOUT: f"no heartbeat within its session timeout of {limit}: its "
            "process has ended or is blocked",
            Eviction.REBALANCE_TIMEOUT: f"it did not rejoin within the rebalance timeout of "
            f"{limit}: processing takes longer than its max.poll.interval.ms, or it has ended",
            Eviction.SYNC_TIMEOUT: f"it did not request its assignment within {limit} after it "
            "had joined",
            Eviction.MAX_SIZE: "the group has group.max.size members",
        }[self.why]
        return f"{describe_member(self.member)} was removed: {reason}"


@dataclass(frozen=True, slots=True)
class MemberReplaced:
    """A static member was started again, and replaces the one with its instance id (KIP-345)."""

    old_id: str
    member: LoggedMember

    def __str__(self) -> str:
        return f"{describe_member(self.member)} replaces member {shorten_for_log(self.old_id)}"


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A rebalance began, or began again before it was complete (`again`)."""

    reason: str
    generation: int
    members: int
    again: bool = False

    def __str__(self) -> str:
        what = "rebalance starts again" if self.again else "rebalance started"
        members = format_member_count(self.members)
        return f"{what} after generation {self.generation} with {members}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RebalanceCompleted:
    """All members have an assignment. `took_ms` since the rebalance began."""

    generation: int
    members: int
    protocol: str
    took_ms: int

    def __str__(self) -> str:
        return (
            f"rebalance completed in {seconds(self.took_ms)}, generation {self.generation}, "
            f"{format_member_count(self.members)}, protocol {shorten_for_log(self.protocol)}"
        )


@dataclass(frozen=True, slots=True)
class TargetComputed:
    """A target assignment was computed; members move to it one by one (KIP-848)."""

    epoch: int
    members: int
    assignor: str

    def __str__(self) -> str:
        return (
            f"target assignment of epoch {self.epoch} computed for "
            f"{format_member_count(self.members)}, assignor {shorten_for_log(self.assignor)}"
        )


@dataclass(frozen=True, slots=True)
class GroupEmpty:
    """The last member is gone. `expires`: the group is deleted after a while."""

    generation: int
    expires: bool = True

    def __str__(self) -> str:
        after = "; its offsets expire after offsets.retention.minutes" if self.expires else ""
        return f"has no members any more, generation {self.generation}{after}"


@dataclass(frozen=True, slots=True)
class GroupStuck:
    """A rebalance makes no progress. `reason`: what it waits for."""

    reason: str
    for_ms: int

    def __str__(self) -> str:
        return f"has been rebalancing for {seconds(self.for_ms)}: {self.reason}"


Event = (
    MemberJoined
    | MemberLeft
    | MemberEvicted
    | MemberReplaced
    | RebalanceStarted
    | RebalanceCompleted
    | TargetComputed
    | GroupEmpty
    | GroupStuck
)


def describe_member(member: LoggedMember) -> str:
    # Clients choose all of these texts: each is kept in one line and of bounded length.
    instance = (
        "" if member.instance_id is None else f", instance {shorten_for_log(member.instance_id)}"
    )
    host = member.client_host.lstrip("/")  # as Java's InetAddress prints it
    client = f"client {shorten_for_log(member.client_id)} at {shorten_for_log(host)}"
    return f"member {shorten_for_log(member.id)} ({client}{instance})"


def format_member_count(members: int) -> str:
    return "1 member" if members == 1 else f"{members} members"


def seconds(ms: int) -> str:
    # Negative if the wall clock was set back meanwhile.
    return f"{max(ms, 0) / 1000:.1f} s"


def _format_reason(reason: str) -> str:
    return f": {shorten_for_log(reason)}" if reason else ""
