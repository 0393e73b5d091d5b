"""DescribeQuorum: who decides about the metadata (KIP-595, KIP-836, KIP-853).

There is no quorum of brokers: the metadata is in SQL. The answer names the broker that was asked as
the only voter, since every broker can change the metadata, and the others as observers. Offsets are
versions of the catalog; how far another broker has followed is not known here (-1).
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.nodes import Nodes
from kafkawire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
    TopicData,
)

METADATA_TOPIC = "__cluster_metadata"


async def describe_quorum(
    ctx: RequestContext, req: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """DescribeQuorum v0-2.

    Partition 0 of __cluster_metadata is the only one, and must be asked for alone: otherwise each
    partition is UNKNOWN_TOPIC_OR_PARTITION, as in Kafka (KafkaRaftClient). v1 times: that of the
    answer for the voter; v2 the address of the voter.
    """
    if not _asks_for_metadata(req.topics):
        return DescribeQuorumResponse(error_message=None, topics=await _unknown(ctx, req.topics))
    nodes, catalog = Nodes(ctx), ctx.broker.catalog
    me, version = nodes.controller, catalog.stored_version
    now_ms = ctx.broker.env.clock.now_ms()
    partition = ResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=me,
        leader_epoch=catalog.brokers[me].epoch,
        high_watermark=version,
        current_voters=[
            ReplicaState(
                me, log_end_offset=version, last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=[ReplicaState(node, log_end_offset=-1) for node in nodes.by_id if node != me],
    )  # fmt: skip
    address = nodes.by_id.get(me)
    listeners = [] if address is None else [Listener(ctx.listener, address.host, address.port)]
    return DescribeQuorumResponse(
        error_message=None,
        topics=[ResponseTopicData(METADATA_TOPIC, [partition])],
        nodes=[Node(me, listeners)],
    )


def _asks_for_metadata(topics: list[TopicData]) -> bool:
    """Return whether only the partition of the metadata is asked for."""
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        return False
    partitions = topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


async def _unknown(ctx: RequestContext, topics: list[TopicData]) -> list[ResponseTopicData]:
    found = []
    for topic in topics:
        await ctx.give_way()
        row = ResponseTopicData(topic.topic_name)
        for partition in topic.partitions:
            row.partitions.append(
                ResponsePartitionData(
                    partition.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
                )
            )
            await ctx.give_way()
        found.append(row)
    return found
