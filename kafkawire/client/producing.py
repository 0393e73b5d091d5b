"""Appending records to one partition: one batch per Produce request, acks=all.

No transactions, no idempotence: a caller that retries after a failure may append twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import build

PRODUCE = 0
NAMES_UNTIL = 12
"""The last version of Produce that identifies topics by name; later ones use ids."""
TIMEOUT_MS = 30_000


def produce(
    cluster: Cluster,
    node: int,
    partition: Partition,
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
) -> int:
    """Append (key, value) pairs; return the offset of the first. ClientError, BrokerError."""
    from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    topic, index = partition
    batch = bytes(build(records, timestamp_ms=timestamp_ms))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index, batch)])
    asked = ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data])
    answer = cluster.node(node).request(PRODUCE, asked, at_most=NAMES_UNTIL)
    row = answer.responses[0].partition_responses[0]
    check(f"Produce to {topic}-{index}", row.error_code, getattr(row, "error_message", None))
    return int(row.base_offset)
