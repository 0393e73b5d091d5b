"""One coordinator partition called directly: `Desk` applies each decision and keeps its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.compile import encode_versioned
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.model.decision import Decision
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import Client
from kafkawire.groups.shard import Shard
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kafkawire.messages.stored import ConsumerProtocolSubscription, GroupMetadataValue
from kafkawire.messages.stored import MemberMetadata as Stored
from tests.kit.groups.requests import group_request, replies_of
from tests.kit.groups.script import GroupSettings


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 0)


def commit_of(
    offsets: dict[tuple[str, int], int],
    group: str = "g",
    generation: int = -1,
    member: str = "",
    metadata: str | None = "",
    **more: Any,
) -> OffsetCommitRequest:
    """An OffsetCommit of these (topic, partition) -> offset."""
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, **more
    )
    for (topic, partition), offset in offsets.items():
        entry = OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=metadata,
        )
        request.topics.append(OffsetCommitRequestTopic(name=topic, partitions=[entry]))
    return request


@dataclass
class Desk:
    """A shard that carries out each decision at once."""

    shard: Shard = field(default_factory=lambda: Shard(GroupSettings()))
    now_ms: int = 1_000_000
    decision: Decision = field(default_factory=Decision)

    def ask(self, request: Any, version: int = 8) -> Any:
        ask = group_request(1, version, request, Client("c", "/h"), "fresh")
        return self.do(self.shard.decide(ask, self.now_ms))

    def do(self, decision: Decision) -> Any:
        self.decision = decision
        for step in decision.steps:
            self.shard.apply(step, decision.group_id)
        replies = replies_of(decision)
        return replies[0].body if replies else None

    def commit(self, offsets: dict[tuple[str, int], int], **how: Any) -> list[int]:
        version = how.pop("version", 8)
        answer = self.ask(commit_of(offsets, **how), version)
        return [entry.error_code for topic in answer.topics for entry in topic.partitions]

    def fetch(self, *partitions: tuple[str, int], group: str = "g") -> list[tuple[int, int, str]]:
        topics = [OffsetFetchRequestTopics(name=t, partition_indexes=[p]) for t, p in partitions]
        answer = self.ask(OffsetFetchRequestGroup(group_id=group, topics=topics))
        assert answer.error_code == 0
        return [
            (entry.committed_offset, entry.committed_leader_epoch, entry.metadata)
            for topic in answer.topics
            for entry in topic.partitions
        ]

    def all_of(self, group: str = "g") -> dict[tuple[str, int], int]:
        answer = self.ask(OffsetFetchRequestGroup(group_id=group, topics=None))
        return {
            (topic.name, entry.partition_index): entry.committed_offset
            for topic in answer.topics
            for entry in topic.partitions
        }

    def members(self, *topics: str, kind: str = "consumer") -> None:
        """Put the group into Stable, generation 4, with member m reading `topics`."""
        member = Stored(member_id="m", session_timeout=10_000, subscription=subscription(*topics))
        value = GroupMetadataValue(
            protocol_type=kind,
            generation=4,
            protocol="range",
            leader="m",
            current_state_timestamp=self.now_ms,
            members=[member],
        )
        self.shard.apply(GroupRecord("g", value))

    def everybody_leaves(self) -> None:
        group = self.shard.groups["g"].recorded
        assert group is not None
        value = GroupMetadataValue(
            protocol_type=group.protocol_type,
            generation=5,
            protocol=None,
            leader=None,
            current_state_timestamp=self.now_ms,
        )
        self.shard.apply(GroupRecord("g", value))

    def expire(self) -> None:
        for group_id in list(self.shard.groups):
            self.do(self.shard.decide_expiry(group_id, self.now_ms))

    @property
    def group(self) -> ClassicGroup:
        return self.shard.groups["g"]


def offset_delete(*partitions: tuple[str, int]) -> OffsetDeleteRequest:
    topics = [
        OffsetDeleteRequestTopic(
            name=t, partitions=[OffsetDeleteRequestPartition(partition_index=p)]
        )
        for t, p in partitions
    ]
    return OffsetDeleteRequest(group_id="g", topics=topics)


def join(member: str, session_ms: int = 10_000, group: str = "g") -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
