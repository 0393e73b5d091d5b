"""A classic group: its state, and how a step changes it.

`apply` is the only mutator, the same for a record just appended and for one read at load time. The
decisions are in modules that import this one: JoinGroup in kafkawire.groups.classic.join, the
phases of a rebalance and its timers in kafkawire.groups.classic.rebalance, everything else in
kafkawire.groups.classic.sync. They are made on a copy (kafkawire.groups.classic.working_copy).

Pure: no clock (the caller passes the time), no I/O, no futures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.changes import (
    Dropped,
    Entered,
    Generation,
    Pending,
    Put,
    Replaced,
    Synced,
    SyncEnded,
    Window,
    WindowClosed,
)
from kafkawire.groups.model.decision import Step
from kafkawire.groups.model.member import CONSUMER, Member, Protocols, subscribed_topics
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.states import GroupState, may_move
from kafkawire.messages.stored import GroupMetadataValue, MemberMetadata


class ClassicGroup:
    """One group. Attributes are public for reading; only `apply` writes them."""

    __slots__ = (
        "generation",
        "group_id",
        "joined",
        "leader",
        "members",
        "pending",
        "protocol",
        "protocol_type",
        "rebalancing_since_ms",
        "recorded",
        "settings",
        "since_ms",
        "spoken",
        "state",
        "static",
        "unsynced",
        "window",
    )

    def __init__(self, group_id: str, settings: Settings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = GroupState.EMPTY
        self.since_ms = -1  # unknown, as in records before version 2
        self.rebalancing_since_ms = 0  # 0 while no rebalance is in progress
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}  # in join order
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: set[str] = set()  # assigned ids that have not joined yet
        self.unsynced: set[str] = set()  # members that have not requested their assignment
        self.window: Window | None = None  # only during a first rebalance
        self.recorded: GroupMetadataValue | None = None  # None while it only stores offsets
        # Both are counted as members change: with thousands of members, counting them for each join
        # of a round would take quadratic time.
        self.joined = 0  # how many members have a parked JoinGroup
        self.spoken: dict[str, int] = {}  # protocol name -> how many members speak it

    def copy(self) -> ClassicGroup:
        twin = ClassicGroup.__new__(ClassicGroup)
        for name in self.__slots__:
            value = getattr(self, name)
            # One level is enough: members and records are immutable.
            setattr(twin, name, value.copy() if isinstance(value, dict | set) else value)
        return twin

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a round may stay open: the maximum of the members' timeouts."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether every member has a parked JoinGroup and no id is pending."""
        return self.joined == len(self.members) and not self.pending

    def find(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if this member, with this instance id, is in the group, or the error."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            # A later process with this instance id has joined: this one must end (KIP-345).
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def speaks(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols is compatible: it shares one with all."""
        # The first member chooses the protocol type.
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(
            self.spoken.get(name, 0) == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the next generation's protocol: of those that all support, the preferred one."""
        candidates = {name for name, count in self.spoken.items() if count == len(self.members)}
        assert candidates, "members were let in only with a common protocol"
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        # Of a tie the first vote in join order, so that the same members get the same protocol.
        return max(votes, key=votes.__getitem__)

    def find_subscribed_topics(self) -> set[str] | None:
        """Return the topics that members subscribe to, if the group's protocol has them; else
        None."""
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol)
            found = None if metadata is None else subscribed_topics(metadata)
            # A member whose subscription is unknown may read any topic.
            if found is None:
                return None
            topics |= found
        return topics

    def apply(self, step: Step) -> None:
        _APPLY[type(step)](self, step)

    def _apply_entered(self, step: Entered) -> None:
        # A rebalance that begins again is the same one: its duration counts from the first round.
        if self.state is not GroupState.COMPLETING:
            self.rebalancing_since_ms = step.at_ms
        self._move(step.state, recorded=False)
        self.since_ms = step.at_ms

    def _pending(self, step: Pending) -> None:
        assert step.member_id not in self.members
        self.pending.add(step.member_id)

    def _put(self, step: Put) -> None:
        member = step.member
        self._count(self.members.get(member.id), -1)
        if not self.members and step.protocol_type is not None:
            self.protocol_type = step.protocol_type
        self.members[member.id] = member
        self._count(member, 1)
        self.pending.discard(member.id)
        if member.instance_id is not None:
            assert self.static.get(member.instance_id, member.id) == member.id
            self.static[member.instance_id] = member.id
        # While there are members one of them leads, here and in `_apply_dropped`.
        if self.leader is None:
            self.leader = member.id

    def _apply_dropped(self, step: Dropped) -> None:
        member = self.members.pop(step.member_id, None)
        self._count(member, -1)
        if member is not None and member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == step.member_id:
            self.leader = next(iter(self.members), None)
        self.pending.discard(step.member_id)
        self.unsynced.discard(step.member_id)

    def _apply_replaced(self, step: Replaced) -> None:
        new = step.member
        assert new.instance_id is not None
        assert self.static[new.instance_id] == step.old_id
        self._count(self.members[step.old_id], -1)
        # In the position of the old id: `members` is in join order.
        self.members = {
            (new.id if id_ == step.old_id else id_): (new if id_ == step.old_id else member)
            for id_, member in self.members.items()
        }
        self._count(new, 1)
        self.static[new.instance_id] = new.id
        if self.leader == step.old_id:
            self.leader = new.id
        if step.old_id in self.unsynced:
            self.unsynced.remove(step.old_id)
            self.unsynced.add(new.id)

    def _window(self, step: Window) -> None:
        assert self.state is GroupState.PREPARING
        self.window = step

    def _window_closed(self, step: WindowClosed) -> None:
        self.window = None

    def _generation(self, step: Generation) -> None:
        assert step.leader in self.members
        self._move(GroupState.COMPLETING, recorded=False)
        self.since_ms = step.at_ms
        self.generation = step.number
        self.protocol = step.protocol
        self.leader = step.leader
        # The decision answers all parked joins. With the answer each member knows its id, so from
        # now on heartbeats keep its session.
        self.members = {
            id_: replace(member, join=None, is_new=False) for id_, member in self.members.items()
        }
        self.joined = 0
        self.unsynced = set(self.members)

    def _apply_synced(self, step: Synced) -> None:
        self.unsynced.discard(step.member_id)

    def _sync_ended(self, step: SyncEnded) -> None:
        self.unsynced.clear()
        if step.reset:
            self.members = {
                id_: replace(member, assignment=b"", sync=None)
                for id_, member in self.members.items()
            }

    def _apply_record(self, step: GroupRecord) -> None:
        value = step.value
        assert value is not None, "a tombstone ends the group: see kafkawire.groups.shard"
        self._move(GroupState.STABLE if value.members else GroupState.EMPTY, recorded=True)
        self.since_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.leader = value.leader
        known = self.members
        self.members = {}
        for stored in value.members:
            # Just appended: the member keeps what records do not contain, such as other protocols.
            member = known.get(stored.member_id)
            if member is None:
                member = _restore_member(stored, value.protocol)
            # The decision with this record answers the parked SyncGroups.
            self.members[member.id] = replace(member, assignment=stored.assignment, sync=None)
        self.static = {m.instance_id: m.id for m in self.members.values() if m.instance_id}
        self.joined = sum(m.join is not None for m in self.members.values())
        self.spoken = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                self.spoken[name] = self.spoken.get(name, 0) + 1
        self.unsynced &= self.members.keys()
        self.window = None
        self.rebalancing_since_ms = 0
        self.recorded = value

    def _move(self, state: GroupState, *, recorded: bool) -> None:
        if state is not self.state:
            assert may_move(self.state, state, recorded=recorded), (self.state, state)
            self.state = state

    def _count(self, member: Member | None, by: int) -> None:
        if member is None:
            return
        if member.join is not None:
            self.joined += by
        for name, _ in member.protocols:
            self.spoken[name] = self.spoken.get(name, 0) + by


def _restore_member(stored: MemberMetadata, protocol: str | None) -> Member:
    timeout = stored.rebalance_timeout
    return Member(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout if timeout == -1 else timeout,  # version 0 has none
        stored.session_timeout,
        # A record has only the chosen protocol: a member with more counts as changed when it joins
        # again after a load, and opens a round.
        ((protocol or "", stored.subscription),),
    )


_APPLY: dict[type, Callable[..., None]] = {
    Entered: ClassicGroup._apply_entered,
    Pending: ClassicGroup._pending,
    Put: ClassicGroup._put,
    Dropped: ClassicGroup._apply_dropped,
    Replaced: ClassicGroup._apply_replaced,
    Window: ClassicGroup._window,
    WindowClosed: ClassicGroup._window_closed,
    Generation: ClassicGroup._generation,
    Synced: ClassicGroup._apply_synced,
    SyncEnded: ClassicGroup._sync_ended,
    GroupRecord: ClassicGroup._apply_record,
}
