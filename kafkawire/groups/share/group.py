"""A share group: its state, and how a step changes it.

`apply` is the only mutator, the same for a record just appended and for one read at load time.

| state | when | left by |
|---|---|---|
| Empty | no member | a join |
| Stable | it has members | the last one leaves or is removed |
| Dead | the group was deleted, or never existed | - |

| state of a share partition | when | left by |
|---|---|---|
| none | no member has subscribed to it, or its Initialize failed | a heartbeat; Alter |
| initializing | a share coordinator is asked for its state | the answer; a retry after a while |
| initialized | it has a state, and may be assigned | deletion of topic, offsets or group |
| deleting | a share coordinator is asked to delete its state | the answer |

Pure: no clock (the caller passes the time), no I/O, no futures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from kafkawire.groups.consumer.member import Target
from kafkawire.groups.model.changes import (
    DeletionBegun,
    DeletionEnded,
    InitializationBegun,
    InitializationEnded,
    SharesSettled,
    TopicsCompared,
    VerificationBegun,
)
from kafkawire.groups.model.decision import Step
from kafkawire.groups.model.records import ShareGroupRecord, ShareKind
from kafkawire.groups.model.topics import TopicRevision
from kafkawire.groups.share.member import (
    ShareMember,
    current_record,
    metadata_record,
    restore_partitions,
    target_record,
    with_current,
    with_metadata,
)
from kafkawire.messages.stored import (
    NamedTopic,
    NamedTopicPartitions,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMetadataValue,
)


class ShareGroupState(Enum):
    """States of a share group (Kafka: ShareGroupState)."""

    EMPTY = "Empty"
    STABLE = "Stable"


class NamedPartitions(NamedTuple):
    """Partitions of a topic, and its name."""

    name: str
    partitions: frozenset[int]


States = Mapping[bytes, NamedPartitions]
"""Partitions by topic id."""


class ShareGroup:
    """One share group. Attributes are public for reading; only `apply` writes them."""

    __slots__ = (
        "begun",
        "compared",
        "deleting",
        "deletions",
        "epoch",
        "group_id",
        "initializations",
        "initialized",
        "initializing",
        "members",
        "metadata_hash",
        "names",
        "settled",
        "target",
        "target_at_ms",
        "target_epoch",
        "verified",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0  # of the subscribed topics when the epoch was written
        self.members: dict[str, ShareMember] = {}
        self.target_epoch = 0
        self.target_at_ms = 0  # when the target was computed; 0: the next one need not wait
        self.target: dict[str, Target] = {}
        self.initializing: States = {}
        self.initialized: States = {}
        self.deleting: Mapping[bytes, str] = {}  # topic id -> name
        self.names: dict[str, int] = {}  # how many members subscribe to each topic
        # Not in records: after a load topics are compared, and states requested, once more.
        self.compared: TopicRevision | None = None  # the topics that `metadata_hash` was checked at
        self.settled = False  # nothing is to be initialized or assigned
        self.verified = False  # states that were initialized before the load are looked up
        self.begun: dict[bytes, int] = {}  # when the states of a topic were requested last
        # How many requests are initializing (or looking up), or deleting, states of a topic now.
        self.initializations: dict[bytes, int] = {}
        self.deletions: dict[bytes, int] = {}

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def records(self) -> Iterator[ShareGroupRecord]:
        """Yield the live records, which would load the current state; it may change between two of
        them. In Kafka's order."""
        group_id = self.group_id
        for member in list(self.members.values()):
            yield metadata_record(group_id, member)
        yield epoch_record(group_id, self.epoch, self.metadata_hash)
        for member_id, target in list(self.target.items()):
            yield target_record(group_id, member_id, target)
        yield target_epoch_record(group_id, self.target_epoch, self.target_at_ms)
        for member in list(self.members.values()):
            yield current_record(group_id, member)
        if self.initializing or self.initialized or self.deleting:
            yield states_record(group_id, self.initializing, self.initialized, self.deleting)

    def tombstones(self) -> list[ShareGroupRecord]:
        """Return the records that delete the group, in Kafka's order."""
        named: tuple[tuple[ShareKind, Iterable[str]], ...] = (
            (ShareKind.CURRENT, self.members),
            (ShareKind.TARGET_MEMBER, self.target),
            (ShareKind.TARGET, [""]),
            (ShareKind.MEMBER, self.members),
            (ShareKind.STATES, [""]),
            (ShareKind.GROUP, [""]),
        )
        return [
            ShareGroupRecord(kind, self.group_id, name, None)
            for kind, names in named
            for name in names
        ]

    def apply(self, step: Step) -> None:
        if isinstance(step, ShareGroupRecord):
            _APPLY[step.kind](self, step.name, step.value)
            self.settled = False
        elif isinstance(step, TopicsCompared):
            self.compared = step.revision
        elif isinstance(step, SharesSettled):
            self.settled = True
        elif isinstance(step, VerificationBegun):
            self.verified = True
            _count_begun(self.initializations, step.topic_ids)
        elif isinstance(step, InitializationBegun):
            if not self.initialized:
                self.verified = True  # there was nothing before
            self.begun.update(dict.fromkeys(step.topic_ids, step.at_ms))
            _count_begun(self.initializations, step.topic_ids)
        elif isinstance(step, InitializationEnded):
            _count_ended(self.initializations, step.topic_ids)
        elif isinstance(step, DeletionBegun):
            _count_begun(self.deletions, step.topic_ids)
        elif isinstance(step, DeletionEnded):
            _count_ended(self.deletions, step.topic_ids)
            self.settled = False
        else:
            raise TypeError(f"{type(step).__name__} is no step of a share group")

    def _group(self, _: str, value: ShareGroupMetadataValue | None) -> None:
        assert value is not None, "a tombstone ends the group: see kafkawire.groups.shard"
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def _member(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._replace(old, with_metadata(old or ShareMember(member_id), value))
        elif old is not None:
            self._replace(old, None)

    def _current(self, member_id: str, value: Any) -> None:
        old = self.members.get(member_id)
        # Its metadata follows, or is a tombstone that was compacted away already.
        if value is not None:
            self._replace(old, with_current(old or ShareMember(member_id), value))

    def _replace(self, old: ShareMember | None, new: ShareMember | None) -> None:
        if old is not None:
            self._count(old, -1)
            if new is None:
                del self.members[old.id]
        if new is not None:
            self.members[new.id] = new
            self._count(new, 1)

    def _count(self, member: ShareMember, by: int) -> None:
        for topic in member.topics:
            count = self.names.get(topic, 0) + by
            if count:
                self.names[topic] = count
            else:
                self.names.pop(topic, None)

    def _target(self, _: str, value: ShareGroupTargetAssignmentMetadataValue | None) -> None:
        self.target_epoch = 0 if value is None else value.assignment_epoch
        self.target_at_ms = 0 if value is None else value.assignment_timestamp

    def _target_member(self, member_id: str, value: Any) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = restore_partitions(value.topic_partitions)

    def _states(self, _: str, value: ShareGroupStatePartitionMetadataValue | None) -> None:
        value = value or ShareGroupStatePartitionMetadataValue()
        self.initializing = _restore(value.initializing_topics)
        self.initialized = _restore(value.initialized_topics)
        self.deleting = {topic.topic_id: topic.topic_name for topic in value.deleting_topics}
        for topic_id in self.begun.keys() - self.initializing.keys():
            del self.begun[topic_id]


def _count_begun(counts: dict[bytes, int], topic_ids: Iterable[bytes]) -> None:
    for topic_id in topic_ids:
        counts[topic_id] = counts.get(topic_id, 0) + 1


def _count_ended(counts: dict[bytes, int], topic_ids: Iterable[bytes]) -> None:
    for topic_id in topic_ids:
        # Absent: the group was deleted and created again meanwhile.
        left = counts.pop(topic_id, 1) - 1
        if left:
            counts[topic_id] = left


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ShareGroupRecord:
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ShareGroupRecord(ShareKind.GROUP, group_id, "", value)


def target_epoch_record(group_id: str, epoch: int, at_ms: int) -> ShareGroupRecord:
    value = ShareGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=at_ms
    )
    return ShareGroupRecord(ShareKind.TARGET, group_id, "", value)


def states_record(
    group_id: str, initializing: States, initialized: States, deleting: Mapping[bytes, str]
) -> ShareGroupRecord:
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_store(initializing),
        initialized_topics=_store(initialized),
        deleting_topics=[NamedTopic(topic_id, deleting[topic_id]) for topic_id in sorted(deleting)],
    )
    return ShareGroupRecord(ShareKind.STATES, group_id, "", value)


def _store(states: States) -> list[NamedTopicPartitions]:
    return [
        NamedTopicPartitions(topic_id, states[topic_id].name, sorted(states[topic_id].partitions))
        for topic_id in sorted(states)
    ]


def _restore(stored: Iterable[NamedTopicPartitions]) -> States:
    return {
        topic.topic_id: NamedPartitions(topic.topic_name, frozenset(topic.partitions))
        for topic in stored
    }


_APPLY: dict[ShareKind, Callable[[ShareGroup, str, Any], None]] = {
    ShareKind.GROUP: ShareGroup._group,
    ShareKind.MEMBER: ShareGroup._member,
    ShareKind.TARGET: ShareGroup._target,
    ShareKind.TARGET_MEMBER: ShareGroup._target_member,
    ShareKind.CURRENT: ShareGroup._current,
    ShareKind.STATES: ShareGroup._states,
}
