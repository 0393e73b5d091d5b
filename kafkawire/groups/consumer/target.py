"""The target assignment of a group: who is to have which partition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkawire.groups.consumer.assignors import ASSIGNORS, MemberSubscription, Targets
from kafkawire.groups.consumer.group import ConsumerGroup, target_epoch_record
from kafkawire.groups.consumer.member import NO_TARGET, ConsumerMember, Target, target_record
from kafkawire.groups.consumer.subscription import subscribed_ids
from kafkawire.groups.model.records import ConsumerRecord
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics

LARGE = 300
"""Members and partitions of a group, together, whose target is computed in slices: fewer take less
than 5 ms, with the records of all members."""


def select_assignor(
    group: ConsumerGroup, settings: Settings, old: ConsumerMember | None, new: ConsumerMember | None
) -> str:
    """Return the assignor that most members name, if `new` replaces `old`; else the default."""
    counts = dict(group.assignors)
    for member, by in ((old, -1), (new, 1)):
        if member is not None and member.assignor is not None:
            counts[member.assignor] = counts.get(member.assignor, 0) + by
    known = settings.group_consumer_assignors
    # Of a tie the first of the setting. One that was removed from it has no votes.
    return max(known, key=lambda name: counts.get(name, 0))


class HasTarget(Protocol):
    """A group with a target assignment: of which epoch, and computed when."""

    target_epoch: int
    target_at_ms: int


def is_due(group: HasTarget, epoch: int, wait_ms: int, now_ms: int) -> bool:
    """Return whether a target for this epoch is to be computed now. `wait_ms`: the least time
    between two of them (KIP-1263)."""
    if group.target_epoch >= epoch:
        return False
    # Thousands of members that join at once share a computation, instead of one for each.
    since_ms = now_ms - group.target_at_ms
    # Negative if the clock was set back.
    return not group.target_at_ms or not wait_ms or not 0 <= since_ms < wait_ms


@dataclass(frozen=True, slots=True)
class TargetInput:
    """The input for the target assignment of a group with this epoch, as of one moment."""

    group: ConsumerGroup
    epoch: int
    assignor: str
    members: list[MemberSubscription]
    sizes: dict[bytes, int]
    previous: Mapping[str, Target]

    def assignment_record(self, member_id: str, target: Target) -> ConsumerRecord:
        return target_record(self.group.group_id, member_id, target)

    def record_epoch(self, at_ms: int) -> ConsumerRecord:
        return target_epoch_record(self.group.group_id, self.epoch, at_ms)

    def compute(self) -> Targets:
        return ASSIGNORS[self.assignor](self.members, self.sizes, self.previous)


def is_large(group: ConsumerGroup, topics: ClusterTopics, names: Iterable[str]) -> bool:
    """Return whether the target of a group that subscribes to these topics is to be computed in
    slices."""
    return len(group.members) + sum(topics.topic_size(name) or 0 for name in names) > LARGE


def gather_input(
    group: ConsumerGroup,
    settings: Settings,
    topics: ClusterTopics,
    epoch: int,
    old: ConsumerMember | None = None,
    new: ConsumerMember | None = None,
) -> TargetInput:
    """Return the input for the target of this epoch, if `new` replaces `old`."""
    # Copies, with references to values that do not change.
    members: dict[str, ConsumerMember] = dict(group.members)
    previous: dict[str, Target] = dict(group.target)
    if new is not None:
        if old is not None and old.id != new.id:
            del members[old.id]
            previous[new.id] = group.target.get(old.id, NO_TARGET)
        members[new.id] = new
    # Most members share their subscription.
    ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
    subscribers: list[MemberSubscription] = []
    for member in members.values():
        key = (member.topics, member.pattern)
        found = ids.get(key)
        if found is None:
            found = ids[key] = subscribed_ids(group, member, topics)
        subscribers.append(MemberSubscription(member.id, member.instance_id, found))
    sizes: dict[bytes, int] = {}
    for topic_id in frozenset[bytes]().union(*ids.values()):
        name = topics.topic_name(topic_id)
        sizes[topic_id] = (0 if name is None else topics.topic_size(name)) or 0
    assignor = select_assignor(group, settings, old, new)
    return TargetInput(group, epoch, assignor, subscribers, sizes, previous)
