"""DescribeProducers v0: the producers that a partition knows, and their open transactions.

Added by KIP-664. Idempotent producers without transactions are listed, too. Operators find hanging
transactions with it (`kafka-transactions find-hanging`, `kafkawire transactions hanging`).
"""

from __future__ import annotations

from kafkawire.broker.new_topics import name_fault
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kafkawire.security.acls.model import Operation


async def describe_producers(
    ctx: RequestContext, req: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe the producers of each partition led here; the others have an error of their own."""
    broker = ctx.broker
    await broker.table.load(
        (topic.name, index) for topic in req.topics for index in topic.partition_indexes
    )
    response = DescribeProducersResponse()
    for topic in req.topics:
        answers: list[PartitionResponse] = []
        for index in topic.partition_indexes:
            answers.append(await _describe(ctx, topic.name, index))
            await ctx.give_way()
        response.topics.append(TopicResponse(topic.name, answers))
        await ctx.give_way()
    return response


async def _describe(ctx: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        fault = name_fault(topic)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if not ctx.may_topic(Operation.READ, topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            raise KafkaError(code, code.sentence)
        partition = ctx.broker.table.find_by_name(topic, index)
    except KafkaError as error:
        return PartitionResponse(index, int(error.code), error.message)
    answer = PartitionResponse(index, int(ErrorCode.NONE))
    for producer in partition.producers.active():
        answer.active_producers.append(
            ProducerState(
                producer.producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.open_offset,
            )
        )
        await ctx.give_way()
    return answer
