"""Any sequence of requests and timers on the pure group, with invariants checked after each step.

- Deciding changes nothing, and the group is consistent (Script checks both).
- A request is answered once, or is parked as a token of a member; none is lost or answered twice.
- Generations only rise, and each record read back gives the group as it was then.
- A group whose members send nothing becomes empty by its timers alone: it never hangs.

Covers: kafkawire.groups.classic.rebalance, kafkawire.groups.classic.sync.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.model.decision import JOIN, SYNC, session_member
from kafkawire.groups.model.states import GroupState
from tests.kit.groups.script import GroupSettings, script

PROTOCOLS = [["range"], ["range", "sticky"], ["sticky", "range"], [("range", b"new")]]


class GroupMachine(RuleBasedStateMachine):
    """Static and dynamic members with different protocols and timeouts in one group."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = script(group_max_size=4, group_initial_rebalance_delay_ms=1000)
        self.asked = 0
        self.open: set[int] = set()
        self.generation = 0
        self.read = 0

    @property
    def group(self) -> ClassicGroup:
        return self.steps.group

    def _token(self) -> int:
        self.asked += 1
        self.open.add(self.asked)
        return self.asked

    def _any_member(self, pick: int) -> str:
        known = [*self.group.members, *sorted(self.group.pending), "stranger"]
        return known[pick % len(known)]

    @rule(
        version=st.sampled_from([3, 9]),
        instance=st.sampled_from([None, None, "i", "j"]),
        protocols=st.sampled_from(PROTOCOLS),
        session_ms=st.sampled_from([6000, 20_000]),
        rebalance_ms=st.sampled_from([3000, 60_000]),
    )
    def join_as_new_member(self, protocols: Any, **how: Any) -> None:
        self.steps.join(token=self._token(), protocols=protocols, **how)

    @rule(pick=st.integers(0, 9), protocols=st.sampled_from(PROTOCOLS), named=st.booleans())
    def join_again(self, pick: int, protocols: Any, named: bool) -> None:
        member_id = self._any_member(pick)
        member = self.group.members.get(member_id)
        instance = member.instance_id if member is not None and named else None
        self.steps.join(member_id, token=self._token(), protocols=protocols, instance=instance)

    @precondition(lambda self: self.group.members)
    @rule(pick=st.integers(0, 9), late=st.integers(0, 1))
    def sync(self, pick: int, late: int) -> None:
        member_id = self._any_member(pick)
        part = {id_: id_.encode() for id_ in self.group.members}
        generation = self.group.generation - late
        self.steps.sync(member_id, token=self._token(), generation=generation, assign=part)

    @rule()
    def all_members_sync(self) -> None:
        for member_id in list(self.group.members):
            part = {id_: id_.encode() for id_ in self.group.members}
            generation = self.group.generation
            self.steps.sync(member_id, token=self._token(), generation=generation, assign=part)

    @rule()
    def all_members_join(self) -> None:
        for member in list(self.group.members.values()):
            self.steps.join(member.id, token=self._token(), instance=member.instance_id)

    @rule(pick=st.integers(0, 9))
    def heartbeat(self, pick: int) -> None:
        member_id = self._any_member(pick)
        self.steps.heartbeat(member_id, token=self._token(), generation=self.group.generation)

    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        self.steps.leave(self._any_member(pick), token=self._token())

    @rule(instance=st.sampled_from(["i", "j"]))
    def remove_by_admin_tool(self, instance: str) -> None:
        self.steps.leave(("", instance), token=self._token())

    @rule(ms=st.sampled_from([1, 500, 1000, 3000, 7000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self._run_until(self.steps.now_ms + ms)

    def _run_until(self, end_ms: int) -> None:
        while self.steps.timers:
            key, at_ms = min(self.steps.timers.items(), key=lambda item: item[1])
            if at_ms > end_ms:
                break
            self.steps.at(max(at_ms, self.steps.now_ms)).timer(key)
        self.steps.at(end_ms)

    @invariant()
    def every_request_is_answered_once_or_parked(self) -> None:
        answered = Counter(reply.token for reply in self._replies())
        assert all(count == 1 for count in answered.values())
        assert answered.keys() <= self.open
        self.open -= answered.keys()
        self.steps.forget()
        members = self.group.members.values()
        parked = {token for m in members for token in (m.join, m.sync) if token is not None}
        assert parked == self.open

    def _replies(self) -> list[Any]:
        return [effect for effect in self.steps.effects if hasattr(effect, "token")]

    @invariant()
    def timers_match_the_state(self) -> None:
        timers = self.steps.timers
        assert (JOIN in timers) == (self.group.state is GroupState.PREPARING)
        assert (SYNC in timers) == bool(self.group.unsynced)
        sessions = {session_member(key) for key in timers} - {None}
        known = self.group.members.keys() | self.group.pending
        waiting = {m.id for m in self.group.members.values() if m.keeps_session}
        assert known - waiting <= sessions
        assert sessions <= known

    @invariant()
    def generations_rise(self) -> None:
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def records_read_back_give_the_same_group(self) -> None:
        for record in self.steps.records[self.read :]:
            assert record.value is not None
            again = ClassicGroup("g", GroupSettings())
            again.apply(record)
            assert again.generation == record.value.generation
            assert again.state is (GroupState.STABLE if record.value.members else GroupState.EMPTY)
            assert set(again.members) == {m.member_id for m in record.value.members}
        self.read = len(self.steps.records)
        last = self.steps.records[-1] if self.steps.records else None
        if last is not None and self.group.state is GroupState.STABLE:
            assert last.value is self.group.recorded
            loaded = ClassicGroup("g", GroupSettings())
            loaded.apply(last)
            assert list(loaded.members) == [m.member_id for m in last.value.members]  # type: ignore[union-attr]
            assert {m.id: m.assignment for m in loaded.members.values()} == {
                m.id: m.assignment for m in self.group.members.values() if m.id in loaded.members
            }

    def teardown(self) -> None:
        """Let all members be silent: the group becomes empty, and every request is answered."""
        self._run_until(self.steps.now_ms + 3_600_000)
        self.every_request_is_answered_once_or_parked()
        assert self.group.state is GroupState.EMPTY
        assert not self.open
        assert not self.steps.timers
        assert not self.group.pending


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(stateful_step_count=40)
