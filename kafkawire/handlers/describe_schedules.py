"""DescribeSchedules: what waits in schedule topics, and why; an API specific to kafkawire that
ApiVersions does not list."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_schedules import (
    DescribeSchedulesRequest,
    DescribeSchedulesResponse,
    SchedulePartition,
)
from kafkawire.schedules.configs import is_schedule
from kafkawire.security.acls.model import Operation


async def describe_schedules(
    ctx: RequestContext, req: DescribeSchedulesRequest
) -> DescribeSchedulesResponse:
    """DescribeSchedules v0.

    For `kafkawire schedule`. Topics that the client may not describe are left out, or refused if
    named. INVALID_TOPIC_EXCEPTION for a topic that is no schedule topic.
    """
    try:
        if req.topic is not None:
            _check(ctx, req.topic)
        return DescribeSchedulesResponse(partitions=await _describe_partitions(ctx, req))
    except KafkaError as error:
        return DescribeSchedulesResponse(int(error.code), error.message or error.code.sentence)


def _check(ctx: RequestContext, topic: str) -> None:
    """Raise KafkaError unless a named topic is a schedule topic that the client may describe."""
    if not ctx.may_topic(Operation.DESCRIBE, topic):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    info = ctx.broker.catalog.by_name.get(topic)
    if info is None:
        text = f"the topic {topic} does not exist"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if not is_schedule(info.configs):
        text = f"the topic {topic} is no schedule topic"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


async def _describe_partitions(
    ctx: RequestContext, req: DescribeSchedulesRequest
) -> list[SchedulePartition]:
    service = ctx.broker.schedules.service
    found: list[SchedulePartition] = []
    if service is None:
        return found
    for each in list(service.deliverers.values()):
        if req.topic is not None and each.topic != req.topic:
            continue
        if ctx.may_topic(Operation.DESCRIBE, each.topic, logged=False):
            found.append(await each.describe(details=req.include_details))
        await ctx.give_way()
    found.sort(key=lambda row: (row.topic, row.partition))
    return found
