"""Conversations with a classic group, written as they happen.

    script().at(0).join("a", token=1).expect(set_timer("join", 3000), ...)
            .at(3000).timer("join").expect(answer(1, generation_id=1, leader="a"))

A Script sends requests to a ClassicGroup, checks that deciding changed nothing, applies the steps,
and keeps the effects until `expect` compares them, in order. Unexpected effects fail the next
`expect`, and a script that ends with some left over fails in `done`. Timers never fire by
themselves: `timer` fires one that is set and due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.configs.group_config import (
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.join import join
from kafkawire.groups.classic.rebalance import decide_timer
from kafkawire.groups.classic.sync import heartbeat, leave, sync
from kafkawire.groups.model.decision import CancelTimer, Decision, Effect, Reply, SetTimer, session
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import Client
from kafkawire.groups.model.states import GroupState
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kit.groups.requests import group_request, replies_of


@dataclass
class GroupSettings:
    """Settings of a test; the defaults are Kafka's."""

    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: list[str] = field(default_factory=lambda: ["uniform", "range"])
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000

    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_assignment_interval_ms: int = 1_000
    group_share_max_size: int = 200
    group_share_assignors: list[str] = field(default_factory=lambda: ["simple"])
    group_share_initialize_retry_interval_ms: int = 30_000
    share_version: int = 1

    group_streams_session_timeout_ms: int = 45_000
    group_streams_heartbeat_interval_ms: int = 5_000
    group_streams_assignment_interval_ms: int = 1_000
    group_streams_num_standby_replicas: int = 0
    group_streams_initial_rebalance_delay_ms: int = 3_000
    group_streams_task_offset_interval_ms: int = 60_000
    group_streams_num_warmup_replicas: int = 2
    group_streams_acceptable_recovery_lag: int = 10_000
    group_streams_rack_aware_assignment_tags: list[str] = field(default_factory=list)
    group_streams_max_size: int = 2**31 - 1
    group_streams_assignors: list[str] = field(default_factory=lambda: ["sticky"])

    def streams_group_settings(self, group_id: str) -> StreamsGroupSettings:
        return StreamsGroupSettings(
            self.group_streams_session_timeout_ms,
            self.group_streams_heartbeat_interval_ms,
            self.group_streams_assignment_interval_ms,
            self.group_streams_num_standby_replicas,
            self.group_streams_initial_rebalance_delay_ms,
            self.group_streams_task_offset_interval_ms,
            self.group_streams_num_warmup_replicas,
            self.group_streams_acceptable_recovery_lag,
            self.group_streams_rack_aware_assignment_tags,
        )

    def share_group_settings(self, group_id: str) -> ShareGroupSettings:
        return ShareGroupSettings(
            self.group_share_session_timeout_ms,
            self.group_share_heartbeat_interval_ms,
            self.group_share_assignment_interval_ms,
            30_000,
            5,
            2_000,
        )

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        return ConsumerGroupSettings(
            self.group_consumer_session_timeout_ms,
            self.group_consumer_heartbeat_interval_ms,
            self.group_consumer_assignment_interval_ms,
        )


@dataclass
class Answer:
    """Matches a Reply whose body has these fields; other fields are ignored."""

    token: int
    fields: dict[str, Any] = field(default_factory=dict)

    def matches(self, effect: Effect) -> bool:
        if not isinstance(effect, Reply) or effect.token != self.token:
            return False
        return all(getattr(effect.body, name) == value for name, value in self.fields.items())


def answer(token: int, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> Answer:
    """Expect the response to `token`, with this error code and these fields."""
    return Answer(token, {"error_code": int(error), **fields})


def set_timer(key: str, at_ms: int) -> SetTimer:
    return SetTimer(key, at_ms)


def frozen(group: ClassicGroup) -> dict[str, Any]:
    """Everything a group knows, as a value that can be compared."""
    return {
        name: (value.copy() if isinstance(value, dict | set) else value)
        for name in ClassicGroup.__slots__
        if (value := getattr(group, name)) is not group.settings
    }


def check(group: ClassicGroup) -> None:
    """Check the invariants of a group in any state."""
    members = group.members
    assert group.joined == sum(m.join is not None for m in members.values())
    spoken: dict[str, int] = {}
    for member in members.values():
        for name, _ in member.protocols:
            spoken[name] = spoken.get(name, 0) + 1
    assert {k: v for k, v in group.spoken.items() if v} == spoken
    assert group.static == {m.instance_id: m.id for m in members.values() if m.instance_id}
    assert group.leader is None or group.leader in members
    assert (group.leader is None) == (not members)
    assert not group.pending & members.keys()
    assert group.unsynced <= members.keys()
    if group.state in (GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING):
        assert all(m.join is None for m in members.values())
    if group.state is not GroupState.COMPLETING:
        assert all(m.sync is None for m in members.values())
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        assert members
        assert all(m.metadata(group.protocol) is not None for m in members.values())
    if group.state is GroupState.EMPTY:
        assert not members
    assert group.window is None or group.state is GroupState.PREPARING


class Script:
    """A group, the time, the timers that are set, and the effects not yet expected."""

    def __init__(self, group: ClassicGroup) -> None:
        self.group = group
        self.now_ms = 0
        self.timers: dict[str, int] = {}
        self.effects: list[Effect] = []
        self.records: list[GroupRecord] = []
        self.decision = Decision()
        self._fresh = 0

    def at(self, now_ms: int) -> Script:
        """Set the time; it must not decrease."""
        assert now_ms >= self.now_ms
        self.now_ms = now_ms
        return self

    def join(
        self,
        member_id: str = "",
        *,
        token: int,
        client: str = "c",
        version: int = 9,
        instance: str | None = None,
        protocols: Iterable[str | tuple[str, bytes]] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        fresh: str | None = None,
    ) -> Script:
        self._fresh += 1
        pairs = [(p, b"") if isinstance(p, str) else p for p in protocols]
        request = JoinGroupRequest(
            group_id=self.group.group_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in pairs],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
        )
        return self._ask(join, token, version, request, client, fresh or str(self._fresh))

    def sync(
        self,
        member_id: str,
        *,
        token: int,
        generation: int,
        assign: dict[str, bytes] | None = None,
        instance: str | None = None,
        protocol: str | None = None,
        protocol_type: str | None = None,
    ) -> Script:
        request = SyncGroupRequest(
            group_id=self.group.group_id,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance,
            protocol_name=protocol,
            protocol_type=protocol_type,
            assignments=[
                SyncGroupRequestAssignment(member_id=id_, assignment=part)
                for id_, part in (assign or {}).items()
            ],
        )
        return self._ask(sync, token, 5, request)

    def heartbeat(
        self, member_id: str, *, token: int, generation: int, instance: str | None = None
    ) -> Script:
        request = HeartbeatRequest(
            group_id=self.group.group_id,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance,
        )
        return self._ask(heartbeat, token, 4, request)

    def leave(self, *identities: str | tuple[str, str], token: int) -> Script:
        """Member ids, or (member id, instance id)."""
        members = [
            MemberIdentity(member_id=i)
            if isinstance(i, str)
            else MemberIdentity(member_id=i[0], group_instance_id=i[1])
            for i in identities
        ]
        request = LeaveGroupRequest(group_id=self.group.group_id, members=members)
        return self._ask(leave, token, 5, request)

    def timer(self, key: str) -> Script:
        """Fire the timer; it must be set, for now or earlier."""
        assert key in self.timers, f"{key} is not set: {self.timers}"
        assert self.timers[key] <= self.now_ms, f"{key} is due at {self.timers[key]}"
        del self.timers[key]
        return self._perform(lambda: decide_timer(self.group, key, self.now_ms))

    def session_due(self, member_id: str) -> Script:
        return self.timer(session(member_id))

    def _ask(
        self,
        decide: Callable[..., Decision],
        token: int,
        version: int,
        request: Any,
        client: str = "c",
        fresh: str = "",
    ) -> Script:
        ask = group_request(token, version, request, Client(client, "/127.0.0.1"), fresh)
        return self._perform(lambda: decide(self.group, ask, self.now_ms))

    def _perform(self, decide: Any) -> Script:
        before = frozen(self.group)
        self.decision = decide()
        assert frozen(self.group) == before, "a decision changed the group before it was applied"
        for step in self.decision.steps:
            self.group.apply(step)
            if isinstance(step, GroupRecord):
                self.records.append(step)
        check(self.group)
        for effect in self.decision.effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
        self.effects += self.decision.effects
        return self

    def bodies(self, token: int) -> list[Any]:
        """The bodies of the last decision's replies to request `token`; a test knows their type."""
        return [reply.body for reply in replies_of(self.decision) if reply.token == token]

    def expect(self, *wanted: Answer | SetTimer | CancelTimer) -> Script:
        """Check that these effects have happened since the last `expect`, in this order, and no
        others."""
        found, self.effects = self.effects, []
        assert len(found) == len(wanted), f"{found} instead of {wanted}"
        for effect, want in zip(found, wanted, strict=True):
            fits = want.matches(effect) if isinstance(want, Answer) else want == effect
            assert fits, f"{effect} is not {want}"
        return self

    def expect_answers(self, *wanted: Answer) -> Script:
        """Check the replies only, like `expect`; timers are checked by `expect_timers`."""
        self.effects = [effect for effect in self.effects if isinstance(effect, Reply)]
        return self.expect(*wanted)

    def expect_timers(self, **at_ms: int) -> Script:
        """Check that these timers are set, and no others (sessions by member id, the rest by
        key)."""
        known = {
            key.removeprefix("session:").replace("-", "_"): at for key, at in self.timers.items()
        }
        assert known == at_ms, f"{known} instead of {at_ms}"
        return self

    def expect_state(self, state: GroupState, generation: int | None = None) -> Script:
        assert self.group.state is state
        assert generation is None or self.group.generation == generation
        return self

    def forget(self) -> Script:
        """Discard the effects so far: another test checks them."""
        self.effects = []
        return self

    def done(self) -> None:
        """Check at the end that no unexpected effect is left."""
        assert not self.effects, f"unexpected effects: {self.effects}"


def script(**changed: Any) -> Script:
    """A script for a new, empty group under Kafka's settings, except those in `changed`."""
    return Script(ClassicGroup("g", GroupSettings(**changed)))


def stable(*members: str, **changed: Any) -> Script:
    """A group in generation 1 with these members (dynamic; the first leads), at time 10,000.
    Each member's id is `<name>-<name>`; its assignment is its name as bytes."""
    steps = script(**changed)
    for number, name in enumerate(members):
        steps.join(token=1000 + number, client=name, fresh=name, version=3)
    steps.at(10_000)
    while steps.group.state is not GroupState.COMPLETING:
        steps.at(max(steps.now_ms, steps.timers["join"])).timer("join")
    ids = list(steps.group.members)
    for number, member_id in enumerate(ids[1:]):
        steps.sync(member_id, token=2000 + number, generation=1)
    part = {member_id: member_id.split("-")[0].encode() for member_id in ids}
    steps.sync(ids[0], token=2999, generation=1, assign=part)
    return steps.expect_state(GroupState.STABLE, 1).forget()


def preparing() -> Script:
    """A group with members a and b of generation 1 in which c wants to join; no member has
    rejoined."""
    steps = stable("a", "b").join(token=1, client="c", fresh="c", version=3)
    return steps.expect_state(GroupState.PREPARING, 1).forget()


def completing() -> Script:
    """Generation 2 with members a and b; no member has synced."""
    steps = stable("a", "b").join("a-a", token=1).join("b-b", token=2)
    return steps.expect_state(GroupState.COMPLETING, 2).forget()
