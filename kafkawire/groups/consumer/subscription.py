"""The topics that members subscribe to, by name and by pattern, and a hash of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.member import ConsumerMember
from kafkawire.groups.model.topics import ClusterTopics

CACHED_HASHES = 20_000
"""Hashes of topics that are kept: 4 MB."""


def subscribed_ids(
    group: ConsumerGroup, member: ConsumerMember, topics: ClusterTopics
) -> frozenset[bytes]:
    """Return the ids of the existing topics that a member subscribes to."""
    names: Iterable[str] = member.topics
    # A pattern without a result yet matches nothing.
    if member.pattern and member.pattern in group.matched:
        names = member.topics | group.matched[member.pattern].topics
    found = (topics.topic_id(name) for name in names)
    return frozenset(topic_id for topic_id in found if topic_id is not None)


def subscribed_names(
    group: ConsumerGroup, old: ConsumerMember | None, new: ConsumerMember | None
) -> tuple[set[str], set[str]]:
    """Return the topics and the patterns of a group in which `new` has replaced `old`."""
    names, patterns = set(group.names), set(group.patterns)
    if old is not None:
        names.difference_update(name for name in old.topics if group.names[name] == 1)
        if group.patterns.get(old.pattern) == 1:
            patterns.discard(old.pattern)
    if new is not None:
        names |= new.topics
        if new.pattern:
            patterns.add(new.pattern)
    for pattern in patterns & group.matched.keys():
        names |= group.matched[pattern].topics
    return names, patterns


def hash_topics(names: Iterable[str], topics: ClusterTopics) -> int:
    """Return a hash that differs when a topic of these was created, deleted or got partitions; 0 if
    none of them exists."""
    # Any stable hash serves: a Kafka broker that reads it raises the epoch once. Kafka's has the
    # racks of replicas, too, which its assignors don't read.
    digest = blake2b(digest_size=8)
    exists = False
    for name in sorted(names):
        topic_id, size = topics.topic_id(name), topics.topic_size(name)
        if topic_id is not None and size is not None:
            exists = True
            digest.update(_hash_topic(topic_id, name, size))
    return int.from_bytes(digest.digest(), "big", signed=True) if exists else 0


@lru_cache(maxsize=CACHED_HASHES)
def _hash_topic(topic_id: bytes, name: str, size: int) -> bytes:
    return blake2b(b"%b%d:%b" % (topic_id, size, name.encode()), digest_size=8).digest()
