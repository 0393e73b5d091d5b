"""Appending record batches: at most one batch per partition in a Produce request.

A caller that sends a batch again after a failure may append it twice, unless the batch has a
producer id, epoch and sequence (KIP-98).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import build
from kafkawire.codec.types import Buffer

PRODUCE = 0
NAMES_UNTIL = 12
"""The last version of Produce that identifies topics by name; later ones use ids."""
EXPLICIT_UNTIL = 11
"""The last version of Produce that does not add partitions to a transaction (KIP-890)."""
TIMEOUT_MS = 30_000
ALL = -1
"""acks=all."""


class ProduceResult(NamedTuple):
    """Result of a batch: an error code (0: none) and its text, and the offset of the first
    record."""

    code: int
    message: str | None
    base_offset: int


def append(
    cluster: Cluster,
    node: int,
    batches: Mapping[Partition, Buffer],
    *,
    transactional_id: str | None = None,
    acks: int = ALL,
) -> dict[Partition, ProduceResult]:
    """Append one encoded batch to each of these partitions, which the broker `node` leads.

    Batches of a transaction need its `transactional_id`; their partitions must have been added to
    it. Errors of partitions are in the results. ClientError for other failures: the batches may
    have been appended. With `acks` 0 the broker does not answer, and offsets are -1.
    """
    from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    topics: dict[str, TopicProduceData] = {}
    for (topic, index), batch in batches.items():
        data = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
        data.partition_data.append(PartitionProduceData(index, batch))
    asked = ProduceRequest(transactional_id, acks, TIMEOUT_MS, list(topics.values()))
    most = NAMES_UNTIL if transactional_id is None else EXPLICIT_UNTIL
    if not acks:
        cluster.node(node).send(PRODUCE, asked, at_most=most)
        return dict.fromkeys(batches, ProduceResult(0, None, -1))
    answer = cluster.node(node).request(PRODUCE, asked, at_most=most)
    return {
        (response.name, row.index): ProduceResult(
            row.error_code, row.error_message, row.base_offset
        )
        for response in answer.responses
        for row in response.partition_responses
    }


def produce(
    cluster: Cluster,
    node: int,
    partition: Partition,
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
) -> int:
    """Append (key, value) pairs; return the offset of the first. ClientError, BrokerError."""
    batch = bytes(build(records, timestamp_ms=timestamp_ms))
    found = append(cluster, node, {partition: batch})[partition]
    check(f"Produce to {partition[0]}-{partition[1]}", found.code, found.message)
    return int(found.base_offset)
