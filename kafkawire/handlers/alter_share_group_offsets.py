"""AlterShareGroupOffsets v0: have a share group without members continue elsewhere (KIP-932).

It creates the group if there is none.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.request import SHARE_ALTER
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kafkawire.security.acls.model import Operation, ResourceKind


async def alter_share_group_offsets(
    ctx: RequestContext, req: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Each partition with its own error; answered when the new offsets are durable."""
    try:
        _check(ctx, req.group_id)
    except KafkaError as error:
        return _refuse(error.code, error.message)
    await ctx.find_topics(topic.topic_name for topic in req.topics)
    allowed: list[AlterShareGroupOffsetsRequestTopic] = []
    refused: list[AlterShareGroupOffsetsResponseTopic] = []
    for topic in req.topics:
        code = _find_refusal(ctx, topic.topic_name)
        if code is ErrorCode.NONE:
            allowed.append(topic)
        else:
            refused.append(await _refuse_topic(ctx, topic, code))
        await ctx.give_way()
    req.topics = allowed
    answer = ctx.broker.groups.submit(SHARE_ALTER, client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    response = await answer
    if response.error_code:
        code = ErrorCode(response.error_code)
        return _refuse(code, response.error_message or code.sentence)
    response.responses[:0] = refused
    ctx.broker.security.audit.record_change(
        ctx.caller, "share group offsets altered", group=req.group_id
    )
    return response


def _check(ctx: RequestContext, group_id: str) -> None:
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not ctx.may(Operation.READ, ResourceKind.GROUP, group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _refuse(code: ErrorCode, text: str | None) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=int(code), error_message=text or code.sentence)


def _find_refusal(ctx: RequestContext, name: str) -> ErrorCode:
    if not ctx.may_topic(Operation.READ, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name not in ctx.broker.catalog.by_name:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _refuse_topic(
    ctx: RequestContext, topic: AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> AlterShareGroupOffsetsResponseTopic:
    rows = (
        AlterShareGroupOffsetsResponsePartition(each.partition_index, int(code), code.sentence)
        for each in topic.partitions
    )
    result = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
    result.partitions = await ctx.collect(rows)
    return result
