"""OffsetForLeaderEpoch: where a leader epoch ended, so that a client sees a cut log (KIP-320)."""

from __future__ import annotations

from operator import attrgetter

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from kafkawire.security.acls.model import Operation


async def offset_for_leader_epoch(
    ctx: RequestContext, req: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch v2-4.

    v2 the client's current leader epoch; v3 replica id; v4 flexible. The result is the largest
    epoch not above the requested one, with the offset after its last record; the current epoch ends
    at the log end. For an epoch before all known ones it is -1 and -1. Not done: followers (the
    replica id is not checked).
    """
    refused: list[OffsetForLeaderTopic] = []
    if not ctx.may_cluster(Operation.CLUSTER_ACTION, logged=False):
        topics = await ctx.split_by_rights(Operation.DESCRIBE, req.topics, attrgetter("topic"))
        req.topics, refused = topics
    await ctx.broker.table.load(
        (topic.topic, wanted.partition) for topic in req.topics for wanted in topic.partitions
    )
    response = OffsetForLeaderEpochResponse()
    for topic in req.topics:
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        for wanted in topic.partitions:
            result.partitions.append(_end(ctx, topic.topic, wanted))
            await ctx.give_way()
        response.topics.append(result)
        await ctx.give_way()
    for topic in refused:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rows = (EpochEndOffset(code, wanted.partition) for wanted in topic.partitions)
        response.topics.append(
            OffsetForLeaderTopicResult(topic.topic, await ctx.list_in_slices(rows))
        )
    return response


def _end(ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    try:
        partition = ctx.find_readable(topic, wanted.partition, wanted.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.epoch_end(wanted.leader_epoch)
    except KafkaError as error:
        answer.error_code = error.code
    return answer
