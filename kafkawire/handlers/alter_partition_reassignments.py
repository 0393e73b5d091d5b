"""AlterPartitionReassignments: move partitions to other brokers (KIP-455)."""

from __future__ import annotations

from kafkawire.broker.config_service import as_kafka_error
from kafkawire.broker.moving.reassignment import Wish
from kafkawire.codec.errors import KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def alter_partition_reassignments(
    ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """AlterPartitionReassignments v0-1.

    The only new replica becomes the leader, later; it must be a broker that writes to the data
    folder of the present leader. No replicas end a move. v1 `allow_replication_factor_change` has
    no effect: the replicas follow from the leader.
    """
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=req.allow_replication_factor_change, error_message=None
    )
    wishes: list[Wish] = []
    for topic in req.topics:
        await ctx.give_way()
        for row in topic.partitions:
            wishes.append(Wish(topic.name, row.partition_index, row.replicas))
            await ctx.give_way()
    try:
        results = await ctx.broker.moves.alter(wishes, ctx.sender)
    except OSError as failure:
        error = as_kafka_error(failure)
        response.error_code, response.error_message = error.code, error.message
        return response
    outcomes = iter(results)
    for topic in req.topics:
        await ctx.give_way()
        answered = ReassignableTopicResponse(topic.name)
        for row in topic.partitions:
            answered.partitions.append(_result(row.partition_index, next(outcomes)))
            await ctx.give_way()
        response.responses.append(answered)
    await ctx.empty_slowly(wishes)
    return response


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(index, 0, None)
    return ReassignablePartitionResponse(index, error.code, error.message or error.code.sentence)
