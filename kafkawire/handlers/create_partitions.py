"""CreatePartitions: give topics more partitions."""

from __future__ import annotations

from kafkawire.broker.config_service import FAILURES, as_kafka_error
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kafkawire.security.acls.model import Operation

STRICT_FROM = 3


async def create_partitions(
    ctx: RequestContext, req: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """CreatePartitions v0-3.

    v2 flexible; v3 quota errors. Count is the new total. The response has every requested topic
    once. Each topic is a separate transaction. Not done: the timeout;
    internal topics keep their number.
    """
    twice = await ctx.duplicates(topic.name for topic in req.topics)
    response = CreatePartitionsResponse()
    charge = ctx.charge(STRICT_FROM)
    topics: dict[str, CreatePartitionsTopic] = {}
    for topic in req.topics:
        topics[topic.name] = topic
        await ctx.give_way()
    for name, topic in topics.items():
        result = CreatePartitionsTopicResult(name=name)
        if name not in twice and not ctx.may_topic(Operation.ALTER, name):
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.results.append(result)
            await ctx.give_way()
            continue
        try:
            if name in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            await ctx.broker.topics.create_partitions(topic, req.validate_only, ctx.sender, charge)
        except FAILURES as failure:
            error = as_kafka_error(failure)
            result.error_code = error.code
            result.error_message = error.message or error.code.sentence
        response.results.append(result)
        await ctx.give_way()
    await ctx.empty_slowly(twice, topics)
    return response
