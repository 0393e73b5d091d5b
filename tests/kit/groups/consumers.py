"""Groups with the consumer protocol, called directly: a shard that carries out each decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.patterns import compile_pattern
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.model.decision import (
    CancelTimer,
    ComputeTarget,
    Decision,
    MatchPatterns,
    SetTimer,
    session,
)
from kafkawire.groups.model.records import Record, decode_record, encode_record
from kafkawire.groups.model.request import Client
from kafkawire.groups.shard import Shard
from kafkawire.log.io.slices import run_at_once
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.kit.groups.log import FakeTopics, id_of
from tests.kit.groups.requests import group_request, records_of, replies_of
from tests.kit.groups.script import GroupSettings

Owned = dict[str, list[int]]


@dataclass
class ConsumerDesk:
    """One shard with topics `t` (6 partitions) and `u` (2), its clock, timers and log."""

    topics: FakeTopics = field(default_factory=lambda: FakeTopics({"t": 6, "u": 2}))
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(group_consumer_assignment_interval_ms=0)
    )
    now_ms: int = 1_000_000
    decision: Decision = field(default_factory=Decision)
    timers: dict[tuple[str, str], int] = field(default_factory=dict)
    log: list[Record] = field(default_factory=list)
    matching: list[tuple[str, MatchPatterns]] = field(default_factory=list)
    computing: list[Iterator[None]] = field(default_factory=list)
    computed: int = 0  # targets of large groups
    unchanged: int = 0  # heartbeats that changed nothing, by the short way

    def __post_init__(self) -> None:
        self.shard = Shard(self.settings, self.topics)

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumer_groups["g"]

    def ask(self, request: Any, version: int = 1, client: Client | None = None) -> Any:
        client = client or Client("c", "/h")
        ask = group_request(1, version, request, client, "fresh")
        unchanged = None
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            unchanged = self.shard.answer_unchanged(client, request)
        answer = self.do(self.shard.decide(ask, self.now_ms))
        # The short way answers as the decision does, which then has nothing but a session timer.
        if unchanged is not None:
            self.unchanged += 1
            assert unchanged == answer
            assert not self.decision.steps
            limits = self.settings.consumer_group_settings(request.group_id)
            timer = SetTimer(session(request.member_id), self.now_ms + limits.session_timeout_ms)
            assert self.decision.effects[:-1] == [timer]
        return answer

    def do(self, decision: Decision) -> Any:
        """Carry out a decision; return the answer to its request, which is the last."""
        self.decision = decision
        self.log += records_of(decision)
        for step in decision.steps:
            self.shard.apply(step, decision.group_id)
        for effect in decision.effects:
            if isinstance(effect, SetTimer):
                self.timers[decision.group_id, effect.key] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop((decision.group_id, effect.key), None)
            elif isinstance(effect, ComputeTarget):
                self.computing.append(self.compute(decision.group_id))
            elif isinstance(effect, MatchPatterns):
                self.matching.append((decision.group_id, effect))
        replies = replies_of(decision)
        return replies[-1].body if replies else None

    def beat(
        self,
        member: str = "a",
        epoch: int = 0,
        topics: list[str] | None = None,
        owned: Owned | None = None,
        group: str = "g",
        version: int = 1,
        **more: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat; with epoch 0 a complete one."""
        joins = epoch == 0
        if joins:
            owned = {}
            if topics is None and "subscribed_topic_regex" not in more:
                topics = ["t"]
            more.setdefault("rebalance_timeout_ms", 30_000)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=topics,
            topic_partitions=None if owned is None else self.partitions(owned),
            **more,
        )
        answer = self.ask(request, version)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def partitions(self, owned: Owned) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=id_of(name), partitions=partitions)
            for name, partitions in owned.items()
        ]

    def fire_due(self) -> None:
        """Fire the timers that are due."""
        for (group_id, key), at_ms in sorted(self.timers.items()):
            if at_ms <= self.now_ms and (group_id, key) in self.timers:
                del self.timers[group_id, key]
                self.do(self.shard.decide_timer(group_id, key, self.now_ms))

    def compute(self, group_id: str) -> Iterator[None]:
        """Compute the target of a large group, and store it in parts of two members."""
        given = self.shard.gather_target_input(group_id)
        assert given is not None
        found: dict[str, Any] = run_at_once(given.compute())
        targets = list(found.items())
        for start in range(0, len(targets), 2):
            yield
            self.do(self.shard.decide_targets(group_id, given, targets[start : start + 2]))
        yield
        self.do(self.shard.decide_computed(group_id, given, self.now_ms, stored=True))
        self.computed += 1

    def go_on(self) -> None:
        """Take a step of each computation of a target."""
        for steps in list(self.computing):
            if next(steps, self) is self:
                self.computing.remove(steps)

    def match(self) -> None:
        """Match the patterns that a heartbeat asked for."""
        for group_id, effect in self.matching:
            found = {
                pattern: [
                    name
                    for name in self.topics
                    if compile_pattern(pattern)(name)
                    and (effect.may_describe is None or effect.may_describe(name))
                ]
                for pattern in effect.patterns
            }
            self.do(self.shard.decide_matched(group_id, found, effect.version, self.now_ms))
        self.matching.clear()

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
        self.matching.clear()
        self.computing.clear()
        for decision in self.shard.decide_loaded(self.now_ms):
            self.do(decision)


def assigned(answer: ConsumerGroupHeartbeatResponse) -> Owned | None:
    """Return the assignment in an answer by topic; None: unchanged."""
    if answer.assignment is None:
        return None
    return {
        topic.topic_id.lstrip(b".").decode(): topic.partitions
        for topic in answer.assignment.topic_partitions
    }


def facts(group: ConsumerGroup) -> dict[str, Any]:
    """Return everything durable that a group knows."""
    volatile = {"compared", "resolving", "matched_at_ms", "matched_revision", "computing"}
    return {name: getattr(group, name) for name in ConsumerGroup.__slots__ if name not in volatile}
