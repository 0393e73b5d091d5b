"""A shard called directly: each decision is carried out, and its records are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafkawire.groups.model.decision import CancelTimer, Decision, Effect, Reply, SetTimer
from kafkawire.groups.model.records import Record, decode_record, encode_record
from kafkawire.groups.model.request import Client
from kafkawire.groups.shard import Shard
from tests.kit.groups.log import FakeTopics
from tests.kit.groups.requests import group_request, records_of, replies_of
from tests.kit.groups.script import GroupSettings


@dataclass
class ShardDesk:
    """One shard with topics `t` (3 partitions) and `u` (2), its clock, timers and log."""

    topics: FakeTopics = field(default_factory=lambda: FakeTopics({"t": 3, "u": 2}))
    settings: GroupSettings = field(default_factory=GroupSettings)
    now_ms: int = 1_000_000
    decision: Decision = field(default_factory=Decision)
    timers: dict[tuple[str, str], int] = field(default_factory=dict)
    log: list[Record] = field(default_factory=list)
    answered: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shard = Shard(self.settings, self.topics)

    def ask(
        self, request: Any, version: int = 1, token: int = 1, client: Client | None = None
    ) -> Any:
        ask = group_request(token, version, request, client or Client("c", "/h"), "fresh")
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
            elif isinstance(effect, Reply):
                self.answered[effect.token] = effect.body
            else:
                self.begin(decision.group_id, effect)
        replies = replies_of(decision)
        return replies[-1].body if replies else None

    def begin(self, group_id: str, effect: Effect) -> None:
        """Take an effect that takes time."""
        raise AssertionError(f"{effect} of {group_id}")

    def forget_effects(self) -> None:
        """Lose the effects that have not ended."""

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
        self.forget_effects()
        for decision in self.shard.decide_loaded(self.now_ms):
            self.do(decision)
