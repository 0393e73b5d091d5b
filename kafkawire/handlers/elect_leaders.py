"""ElectLeaders: a partition has one replica, which leads already (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from kafkawire.security.acls.model import Operation

PREFERRED, UNCLEAN = 0, 1  # ElectionType
PARTITIONS_PER_RESULT = 100
"""Partitions of a topic per entry of the response, which is built and encoded without yielding to
the event loop. A topic with more has several entries, which clients merge."""


async def elect_leaders(ctx: RequestContext, req: ElectLeadersRequest) -> list[Buffer]:
    """ElectLeaders v0-2.

    v1 kind of election; v2 flexible. Every partition that exists is ELECTION_NOT_NEEDED; for all
    partitions the response has the topics without partitions, as in Kafka. Not done: replicas.
    """
    answer = ElectLeadersResponse()
    topics: list[TopicPartitions] = []
    count = 0
    allowed = ctx.may_cluster(Operation.ALTER)
    results = _results(ctx, topics, allowed=allowed)
    if not allowed:
        answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if ctx.version >= 1 and req.election_type not in (PREFERRED, UNCLEAN):
        answer.error_code = ErrorCode.INVALID_REQUEST
    elif req.topic_partitions is None and not allowed:
        results = iter(())
    elif req.topic_partitions is None:
        names = list(ctx.broker.catalog.by_name)
        results, count = (ReplicaElectionResult(topic=name) for name in names), len(names)
    else:
        for topic in req.topic_partitions:
            if topic.partitions:
                topics.append(topic)
                count += ceil(len(topic.partitions) / PARTITIONS_PER_RESULT)
            await ctx.give_way()
    return await encode_list_in_slices(
        ctx.broker.env, answer, ctx.version, ReplicaElectionResult, results, count
    )


def _results(
    ctx: RequestContext, topics: list[TopicPartitions], *, allowed: bool
) -> Iterator[ReplicaElectionResult]:
    for topic in topics:
        info = ctx.broker.catalog.by_name.get(topic.topic)
        known = 0 if info is None else len(info.partitions)
        for at in range(0, len(topic.partitions), PARTITIONS_PER_RESULT):
            indexes = topic.partitions[at : at + PARTITIONS_PER_RESULT]
            yield ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _result(index, known) if allowed else _refuse_partition(index)
                    for index in indexes
                ],
            )


def _result(index: int, known: int) -> PartitionResult:
    code = (
        ErrorCode.ELECTION_NOT_NEEDED
        if 0 <= index < known
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    return PartitionResult(partition_id=index, error_code=code, error_message=code.sentence)


def _refuse_partition(index: int) -> PartitionResult:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return PartitionResult(partition_id=index, error_code=code, error_message=code.sentence)
