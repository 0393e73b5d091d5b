"""Share groups, called directly: a shard that carries out each decision, and share coordinators
that answer when a test lets them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import (
    CancelTimer,
    ChangeStates,
    Decision,
    Reply,
    SetTimer,
)
from kafkawire.groups.model.records import Record, decode_record, encode_record
from kafkawire.groups.model.request import Client
from kafkawire.groups.shard import Shard
from kafkawire.groups.share.group import ShareGroup
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import InitializeState, StateAnswer, StateShard
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.requests import group_request, records_of, replies_of
from tests.kit.groups.script import GroupSettings

Assigned = dict[str, list[int]]
VOLATILE = {"begun", "compared", "deletions", "initializations", "settled", "verified"}


@dataclass
class ShareDesk:
    """One shard with topics `t` (3 partitions) and `u` (2), its clock, timers and log. `changing`:
    what share coordinators are asked for; `states` has what they did."""

    topics: FakeTopics = field(default_factory=lambda: FakeTopics({"t": 3, "u": 2}))
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(group_share_assignment_interval_ms=0)
    )
    now_ms: int = 1_000_000
    decision: Decision = field(default_factory=Decision)
    timers: dict[tuple[str, str], int] = field(default_factory=dict)
    log: list[Record] = field(default_factory=list)
    changing: list[tuple[str, ChangeStates]] = field(default_factory=list)
    answered: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shard = Shard(self.settings, self.topics)
        snapshot: Any = SimpleNamespace(share_coordinator_snapshot_update_records_per_snapshot=5)
        self.states = StateShard(snapshot, self.topics)

    @property
    def group(self) -> ShareGroup:
        return self.shard.share_groups["g"]

    def ask(self, request: Any, version: int = 1, token: int = 1) -> Any:
        ask = group_request(token, version, request, Client("c", "/h"), "fresh")
        return self.do(self.shard.decide(ask, self.now_ms))

    def do(self, decision: Decision) -> Any:
        """Carry out a decision; return the answer to its request, which is the last; None: it
        waits."""
        self.decision = decision
        self.log += records_of(decision)
        for step in decision.steps:
            self.shard.apply(step, decision.group_id)
        for effect in decision.effects:
            if isinstance(effect, SetTimer):
                self.timers[decision.group_id, effect.key] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop((decision.group_id, effect.key), None)
            elif isinstance(effect, ChangeStates):
                self.changing.append((decision.group_id, effect))
            elif isinstance(effect, Reply):
                self.answered[effect.token] = effect.body
        replies = replies_of(decision)
        return replies[-1].body if replies else None

    def change(self, *codes: ErrorCode, number: int = 0) -> Any:
        """Let the share coordinators answer what was asked `number`th: with these codes, or by
        doing it. Return the answer to the request that waited."""
        group_id, effect = self.changing.pop(number)
        found: dict[SharePartitionKey, StateAnswer] = {}
        for at, request in enumerate(effect.requests):
            if codes and codes[at % len(codes)] is not ErrorCode.NONE:
                found[request.key] = StateAnswer(codes[at % len(codes)])
                continue
            decided = self.states.decide(request, self.now_ms)
            if decided.record is not None:
                self.states.apply(decided.record)
            found[request.key] = decided.answer
        return self.do(self.shard.decide_changed(group_id, effect, found))

    def requested(self) -> list[tuple[int, int]]:
        """Partitions and start offsets of the states that are being initialized."""
        return [
            (each.key.partition, each.start_offset)
            for _, effect in self.changing
            for each in effect.requests
            if isinstance(each, InitializeState)
        ]

    def beat(
        self,
        member: str = "a",
        epoch: int = 0,
        topics: list[str] | None = None,
        group: str = "g",
        rack: str | None = None,
    ) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat; with epoch 0 a complete one."""
        if epoch == 0 and topics is None:
            topics = ["t"]
        request = ShareGroupHeartbeatRequest(group, member, epoch, rack, topics)
        answer = self.ask(request)
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        return answer

    def settle(self, *members: str) -> dict[str, Assigned]:
        """Have members send heartbeats until nothing changes; return their assignments."""
        for _ in range(10):
            before = len(self.log)
            while self.changing:
                self.change()
            for member in members:
                assert not self.beat(member, self.group.members[member].epoch).error_code
            if len(self.log) == before and not self.changing:
                break
        else:
            raise AssertionError("the group does not settle")
        return {each.id: by_name(each.assigned) for each in self.group.members.values()}

    def fire_due(self) -> None:
        """Fire the timers that are due."""
        for (group_id, key), at_ms in sorted(self.timers.items()):
            if at_ms <= self.now_ms and (group_id, key) in self.timers:
                del self.timers[group_id, key]
                self.do(self.shard.decide_timer(group_id, key, self.now_ms))

    def reload(self, *, compacted: bool = False, snapshot: bool = False) -> None:
        """Lose the coordinator, and load again from the log, or from a snapshot."""
        records = list(self.shard.records()) if snapshot else self.log
        pairs = [encode_record(record) for record in records]
        if compacted:
            last = {key: at for at, (key, _) in enumerate(pairs)}
            pairs = [pair for at, pair in enumerate(pairs) if last[pair[0]] == at]
        self.shard = Shard(self.settings, self.topics)
        for key, value in pairs:
            record = decode_record(key, value)
            assert record is not None
            self.shard.apply(record)
        self.timers.clear()
        self.changing.clear()
        for decision in self.shard.decide_loaded(self.now_ms):
            self.do(decision)


def by_name(partitions: Any) -> Assigned:
    return {
        topic_id.lstrip(b".").decode(): sorted(found)
        for topic_id, found in sorted(partitions.items())
    }


def assigned(answer: ShareGroupHeartbeatResponse) -> Assigned | None:
    """Return the assignment in an answer by topic; None: unchanged."""
    if answer.assignment is None:
        return None
    return by_name({each.topic_id: each.partitions for each in answer.assignment.topic_partitions})


def share_facts(group: ShareGroup) -> dict[str, Any]:
    """Return everything durable that a group knows."""
    return {name: getattr(group, name) for name in ShareGroup.__slots__ if name not in VOLATILE}
