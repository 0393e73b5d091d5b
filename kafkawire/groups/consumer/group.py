"""A group with the consumer protocol: its state, and how a step changes it.

`apply` is the only mutator, the same for a record just appended and for one read at load time. The
decisions are in kafkawire.groups.consumer.heartbeat.

| state | when | left by |
|---|---|---|
| Empty | no member | a join |
| Assigning | its epoch is above that of the target | a heartbeat after the interval |
| Reconciling | a member has not reached the target assignment | heartbeats of members |
| Stable | every member has | a changed member, subscription or topic |
| Dead | the group was deleted | - |

Pure: no clock (the caller passes the time), no I/O, no futures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kafkawire.groups.consumer.member import (
    LEAVE,
    ConsumerMember,
    MemberState,
    Partitions,
    Target,
    current_record,
    metadata_record,
    restore_target,
    target_record,
    with_current,
    with_metadata,
)
from kafkawire.groups.model.changes import (
    JoinArrived,
    JoinExpected,
    PatternsRequested,
    PatternsResolved,
    TargetBegun,
    TargetEnded,
    TopicsCompared,
)
from kafkawire.groups.model.decision import Step
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord
from kafkawire.groups.model.topics import ClusterTopics, TopicRevision
from kafkawire.messages.stored import (
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)


class ConsumerState(Enum):
    """States of a group with the consumer protocol (Kafka: ConsumerGroupState)."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class Matched:
    """The topics that a pattern matched, when, and a number of the topics that there were then."""

    topics: frozenset[str]
    at_ms: int
    version: int = 0


class ConsumerGroup:
    """One group. Attributes are public for reading; only `apply` writes them."""

    __slots__ = (
        "assignors",
        "classic_members",
        "compared",
        "computing",
        "epoch",
        "group_id",
        "joining",
        "matched",
        "matched_at_ms",
        "matched_revision",
        "members",
        "metadata_hash",
        "names",
        "owners",
        "patterns",
        "resolving",
        "spoken",
        "static",
        "target",
        "target_at_ms",
        "target_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0  # of the subscribed topics when the epoch was written
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.target_epoch = 0
        self.target_at_ms = 0  # when the target was computed; 0: the next one need not wait
        self.target: dict[str, Target] = {}
        self.matched: dict[str, Matched] = {}  # pattern -> what it matched
        # Topic id -> partition -> the member that has it assigned or pending revocation.
        self.owners: dict[bytes, dict[int, str]] = {}
        # Counted as members change, so that a heartbeat need not: how many members have each.
        self.names: dict[str, int] = {}
        self.patterns: dict[str, int] = {}
        self.assignors: dict[str, int] = {}
        self.spoken: dict[str, int] = {}  # protocols of members with the classic protocol
        self.classic_members = 0
        self.joining: set[str] = set()  # of these: who was asked to join again
        # Not in records: after a load topics are compared, and patterns matched, once more.
        self.compared: TopicRevision | None = None  # the topics that `metadata_hash` was checked at
        self.resolving = False  # patterns are being matched
        self.computing = False  # the target of a large group is
        self.matched_at_ms: int | None = None  # when that began last
        self.matched_revision: TopicRevision | None = None

    @property
    def state(self) -> ConsumerState:
        """The state of the group; takes time with the number of members."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        return self.owners.get(topic_id, {}).get(partition)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic, by name or by a pattern."""
        return topic in self.names or any(topic in found.topics for found in self.matched.values())

    def assigned_since(
        self, member_id: str, topic: str, partition: int, topics: ClusterTopics
    ) -> int | None:
        """Return the epoch in which a member got a partition; None if it does not have it."""
        topic_id = topics.topic_id(topic)
        return None if topic_id is None else self.members[member_id].epoch_of(topic_id, partition)

    def records(self) -> Iterator[ConsumerRecord]:
        """Yield the live records, which would load the current state; it may change between two of
        them. In Kafka's order."""
        group_id = self.group_id
        for member in list(self.members.values()):
            yield metadata_record(group_id, member)
        for pattern, found in list(self.matched.items()):
            yield pattern_record(group_id, pattern, found)
        yield epoch_record(group_id, self.epoch, self.metadata_hash)
        for member_id, target in list(self.target.items()):
            yield target_record(group_id, member_id, target)
        yield target_epoch_record(group_id, self.target_epoch, self.target_at_ms)
        for member in list(self.members.values()):
            yield current_record(group_id, member)

    def tombstones(self) -> list[ConsumerRecord]:
        """Return the records that delete the group, in Kafka's order."""
        named = (
            (ConsumerKind.CURRENT, self.members),
            (ConsumerKind.TARGET_MEMBER, self.target),
            (ConsumerKind.TARGET, [""]),
            (ConsumerKind.MEMBER, self.members),
            (ConsumerKind.PATTERN, self.matched),
            (ConsumerKind.TOPICS, [""]),
            (ConsumerKind.GROUP, [""]),
        )
        return [
            ConsumerRecord(kind, self.group_id, name, None)
            for kind, names in named
            for name in names
        ]

    def apply(self, step: Step) -> None:
        if isinstance(step, ConsumerRecord):
            _APPLY[step.kind](self, step.name, step.value)
        elif isinstance(step, TopicsCompared):
            self.compared = step.revision
        elif isinstance(step, PatternsRequested):
            self.resolving = True
            self.matched_at_ms = step.at_ms
            self.matched_revision = step.revision
        elif isinstance(step, PatternsResolved):
            self.resolving = False
        elif isinstance(step, TargetBegun | TargetEnded):
            self.computing = isinstance(step, TargetBegun)
        elif isinstance(step, JoinExpected):
            self.joining.add(step.member_id)
        elif isinstance(step, JoinArrived):
            self.joining.discard(step.member_id)
        else:
            raise TypeError(f"{type(step).__name__} is no step of a consumer group")

    def _group(self, _: str, value: ConsumerGroupMetadataValue | None) -> None:
        assert value is not None, "a tombstone ends the group: see kafkawire.groups.shard"
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def _member(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._replace(old, with_metadata(old or ConsumerMember(member_id), value))
        elif old is not None:
            self._replace(old, None)

    def _current(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._replace(old, with_current(old or ConsumerMember(member_id), value))
        elif old is not None:
            self._replace(
                old,
                replace(
                    ConsumerMember(member_id, old.instance_id),
                    topics=old.topics,
                    pattern=old.pattern,
                    assignor=old.assignor,
                    epoch=LEAVE,
                ),
            )

    def _replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            self._release(old.id, old.assigned)
            self._release(old.id, old.pending)
            self._count(old, -1)
            # Unless a later process of the static member has replaced it.
            if old.instance_id is not None and self.static.get(old.instance_id) == old.id:
                del self.static[old.instance_id]
            if new is None:
                del self.members[old.id]
                self.joining.discard(old.id)
        if new is None:
            return
        self.members[new.id] = new
        self._count(new, 1)
        if new.instance_id is not None:
            self.static[new.instance_id] = new.id
        for partitions in (new.assigned, new.pending):
            for topic_id, found in partitions.items():
                owners = self.owners.setdefault(topic_id, {})
                for partition in found:
                    owners[partition] = new.id

    def _release(self, member_id: str, partitions: Partitions) -> None:
        for topic_id, found in partitions.items():
            owners = self.owners.get(topic_id, {})
            for partition in found:
                # Not if another member got it: compaction may leave an older record of this one.
                if owners.get(partition) == member_id:
                    del owners[partition]
            if not owners:
                self.owners.pop(topic_id, None)

    def _count(self, member: ConsumerMember, by: int) -> None:
        for topic in member.topics:
            _add(self.names, topic, by)
        if member.pattern:
            _add(self.patterns, member.pattern, by)
        if member.assignor is not None:
            _add(self.assignors, member.assignor, by)
        if member.classic is not None:
            self.classic_members += by
            for name, _ in member.classic.protocols:
                _add(self.spoken, name, by)

    def _target(self, _: str, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.target_epoch = 0 if value is None else value.assignment_epoch
        self.target_at_ms = 0 if value is None else value.assignment_timestamp

    def _target_member(self, member_id: str, value: Any) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = restore_target(value)

    def _pattern(self, pattern: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.matched.pop(pattern, None)
        else:
            self.matched[pattern] = Matched(frozenset(value.topics), value.timestamp, value.version)

    def _ignore(self, _: str, __: object) -> None:
        """Ignore a tombstone of what only Kafka until 4.0 wrote."""


def pattern_record(group_id: str, pattern: str, found: Matched) -> ConsumerRecord:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(found.topics), version=found.version, timestamp=found.at_ms
    )
    return ConsumerRecord(ConsumerKind.PATTERN, group_id, pattern, value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ConsumerRecord(ConsumerKind.GROUP, group_id, "", value)


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> ConsumerRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return ConsumerRecord(ConsumerKind.TARGET, group_id, "", value)


def _add(counts: dict[str, int], key: str, by: int) -> None:
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


_APPLY: dict[ConsumerKind, Callable[[ConsumerGroup, str, Any], None]] = {
    ConsumerKind.GROUP: ConsumerGroup._group,
    ConsumerKind.TOPICS: ConsumerGroup._ignore,
    ConsumerKind.MEMBER: ConsumerGroup._member,
    ConsumerKind.TARGET: ConsumerGroup._target,
    ConsumerKind.TARGET_MEMBER: ConsumerGroup._target_member,
    ConsumerKind.CURRENT: ConsumerGroup._current,
    ConsumerKind.PATTERN: ConsumerGroup._pattern,
}
