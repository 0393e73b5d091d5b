"""The partitions this broker leads, found by topic name or topic id and index.

This is the table behind Produce, Fetch and ListOffsets: two plain dicts of lists, so the hot
path pays one lookup and one list index. It is not the catalog: the catalog knows every topic
of the cluster and who leads it, this table only holds what the local log has open. A hole
(None) in a list is a partition that another broker leads.

Written by broker.topics (create, delete, more partitions) and once at start by the broker;
read by the handlers. Both dicts share one list per topic, which grows in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import TopicInfo
    from log.partition import Partition


class PartitionTable:
    """Partitions by topic name and by topic id (16 bytes); None = led elsewhere."""

    __slots__ = ("by_id", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, list[Partition | None]] = {}
        self.by_id: dict[bytes, list[Partition | None]] = {}

    def add(self, topic: TopicInfo, led_here: Iterable[Partition]) -> None:
        """Enter a topic, or put further partitions of it in. A name made again under a new id
        replaces the old entry; the old id stays until `remove` takes it out."""
        rows = self.by_id.get(topic.id)
        if rows is None:
            rows = self.by_id[topic.id] = []
        rows.extend([None] * (len(topic.partitions) - len(rows)))
        for partition in led_here:
            rows[partition.index] = partition
        self.by_name[topic.name] = rows

    def remove(self, topic: TopicInfo) -> None:
        """Forget a topic. Its name goes only if it still means this topic id."""
        rows = self.by_id.pop(topic.id, None)
        if rows is not None and self.by_name.get(topic.name) is rows:
            del self.by_name[topic.name]

    def named(self, topic: str, index: int) -> Partition:
        """The partition, or KafkaError: UNKNOWN_TOPIC_OR_PARTITION where there is none,
        NOT_LEADER_OR_FOLLOWER where another broker leads it."""
        rows = self.by_name.get(topic)
        if rows is None or not 0 <= index < len(rows):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _led(rows[index])

    def identified(self, topic_id: bytes, index: int) -> Partition:
        """As `named`; an id nobody knows is UNKNOWN_TOPIC_ID (Kafka: ReplicaManager)."""
        rows = self.by_id.get(topic_id)
        if rows is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not 0 <= index < len(rows):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _led(rows[index])

    def __iter__(self) -> Iterator[Partition]:
        """Every partition that is led here."""
        for rows in list(self.by_id.values()):
            for partition in rows:
                if partition is not None:
                    yield partition


def check_leader_epoch(partition: Partition, current: int) -> None:
    """KafkaError unless the client knows the leader epoch that is in force (KIP-320). -1: it
    did not say."""
    if current < 0 or current == partition.leader_epoch:
        return
    if current > partition.leader_epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)


def _led(partition: Partition | None) -> Partition:
    if partition is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition
