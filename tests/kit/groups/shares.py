"""Share groups, called directly: a shard that carries out each decision, and share coordinators
that answer when a test lets them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import ChangeStates, Effect
from kafkawire.groups.share.group import ShareGroup
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import InitializeState, StateAnswer, StateShard
from tests.kit.groups.script import GroupSettings
from tests.kit.groups.shard_desk import ShardDesk

Assigned = dict[str, list[int]]
VOLATILE = {"begun", "compared", "deletions", "initializations", "settled", "verified"}


@dataclass
class ShareDesk(ShardDesk):
    """A shard of share groups. `changing`: what share coordinators are asked for; `states` has what
    they did."""

    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(group_share_assignment_interval_ms=0)
    )
    changing: list[tuple[str, ChangeStates]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        snapshot: Any = SimpleNamespace(share_coordinator_snapshot_update_records_per_snapshot=5)
        self.states = StateShard(snapshot, self.topics)

    @property
    def group(self) -> ShareGroup:
        return self.shard.share_groups["g"]

    def begin(self, group_id: str, effect: Effect) -> None:
        assert isinstance(effect, ChangeStates)
        self.changing.append((group_id, effect))

    def forget_effects(self) -> None:
        self.changing.clear()

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
