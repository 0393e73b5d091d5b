"""Encode topics for Metadata: from catalog rows to encoded parts, partition by partition.

Pure. A step is one partition or one topic head, so that the caller can stop between any two:
a topic may have ten thousand partitions. Called by the Metadata handler only;
DescribeTopicPartitions, which is bounded, builds plain messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.compile import part_encoder
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.nodes import OPERATIONS_OMITTED, Nodes, is_internal, is_replicated
from kafkawire.handlers.slices import array_count, split
from kafkawire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import PartitionInfo, TopicInfo

LISTENER_NOT_FOUND_FROM = 6


class TopicEntry(NamedTuple):
    """One topic of a response: existing (`topic`), or missing with the reason."""

    error: ErrorCode
    name: str | None
    topic_id: bytes
    topic: TopicInfo | None = None
    internal: bool | None = None
    """None: as its name says."""
    denied: bool = False
    """Its operations are not shown."""

    @classmethod
    def from_topic(cls, topic: TopicInfo) -> TopicEntry:
        return cls(ErrorCode.NONE, topic.name, topic.id, topic)


def compile_parts(version: int) -> None:
    """Compile the encoders of topics and partitions; in any thread."""
    part_encoder(MetadataResponse, MetadataResponsePartition, version)
    part_encoder(MetadataResponse, MetadataResponseTopic, version)


class TopicEncoder:
    """Appends topics to `parts` in one version of MetadataResponse."""

    def __init__(
        self,
        nodes: Nodes,
        version: int,
        flexible: bool,
        operations: Callable[[str], int] | None,
        parts: list[Buffer],
    ) -> None:
        """`operations`: those that are allowed on a topic; None: not requested."""
        self._nodes = nodes
        self._version = version
        self._flexible = flexible
        self._operations = operations
        self._parts = parts
        self._encode = part_encoder(MetadataResponse, MetadataResponsePartition, version)
        self._encode_topic = part_encoder(MetadataResponse, MetadataResponseTopic, version)

    def steps(self, entries: Iterable[TopicEntry]) -> Iterator[None]:
        """Encode all `entries`; each step is short."""
        for entry in entries:
            yield from self._topic(entry)

    def _topic(self, entry: TopicEntry) -> Iterator[None]:
        # A snapshot of the list: partitions added meanwhile would not match the count.
        partitions = list(entry.topic.partitions) if entry.topic is not None else []
        operations = OPERATIONS_OMITTED
        if self._operations is not None and not entry.denied:
            operations = self._operations(entry.name or "")
        message = MetadataResponseTopic(
            error_code=entry.error,
            name=entry.name,
            topic_id=entry.topic_id,
            is_internal=(
                is_internal(entry.name or "") if entry.internal is None else entry.internal
            ),
            partitions=[],
            topic_authorized_operations=operations,
        )
        tail_bytes = 4 if self._version >= 8 else 0  # topic_authorized_operations
        whole: list[Buffer] = []
        self._encode_topic(message, whole)
        head, tail = split(b"".join(whole), self._flexible, tail_bytes)
        self._parts += (head, array_count(len(partitions), self._flexible))
        yield None
        replicated = entry.topic is not None and is_replicated(entry.topic)
        for partition in partitions:
            self._encode(self._partition(partition, replicated), self._parts)
            yield None
        self._parts.append(tail)

    def _partition(self, partition: PartitionInfo, replicated: bool) -> MetadataResponsePartition:
        error = self._nodes.leader_error(partition.leader)
        if error is ErrorCode.LISTENER_NOT_FOUND and self._version < LISTENER_NOT_FOUND_FROM:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        replicas, in_sync = self._nodes.replicas(partition.number, partition.leader, replicated)
        return MetadataResponsePartition(
            error_code=error,
            partition_index=partition.index,
            leader_id=-1 if error else partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=self._nodes.offline(replicas),
        )
