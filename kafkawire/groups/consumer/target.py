"""The target assignment of a group: who is to have which partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kafkawire.groups.consumer.assignors import ASSIGNORS, MemberSubscription
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.member import ConsumerMember, Target
from kafkawire.groups.consumer.subscription import subscribed_ids
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics


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


def compute_target(
    group: ConsumerGroup,
    assignor: str,
    topics: ClusterTopics,
    old: ConsumerMember | None,
    new: ConsumerMember,
) -> dict[str, Target]:
    """Return the target of each member, if `new` replaces `old`."""
    members: dict[str, ConsumerMember] = dict(group.members)
    previous: Mapping[str, Target] = group.target
    if old is not None and old.id != new.id:
        del members[old.id]
        previous = {**previous, new.id: group.target.get(old.id, {})}
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
    return ASSIGNORS[assignor](subscribers, sizes, previous)
