"""AlterShareGroupOffsets v0: have a share group without members continue elsewhere (KIP-932).

It creates the group if there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from kafkawire.broker.read_only import check_commits
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

MAX_STATES = 32
"""States that are initialized together: a millisecond."""


async def alter_share_group_offsets(
    ctx: RequestContext, req: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Each partition with its own error; answered when the new offsets are durable."""
    try:
        _check(ctx, req.group_id)
        check_commits(ctx.broker.config)
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
    response = AlterShareGroupOffsetsResponse(responses=refused)
    # One part after the other: the group decides on a topic again when its states are changed.
    async for part in _parts(ctx, allowed):
        one = AlterShareGroupOffsetsRequest(group_id=req.group_id, topics=part)
        answer = ctx.broker.groups.handle_request(SHARE_ALTER, client_of(ctx), ctx.version, one)
        if not answer.done():
            ctx.park()
        decided = await answer
        if decided.error_code:
            code = ErrorCode(decided.error_code)
            return _refuse(code, decided.error_message or code.sentence)
        for result in decided.responses:
            last = response.responses[-1] if response.responses else None
            if last is not None and last.topic_name == result.topic_name:
                last.partitions += result.partitions
            else:
                response.responses.append(result)
    ctx.broker.security.audit.record_change(
        ctx.caller, "share group offsets altered", group=req.group_id
    )
    return response


async def _parts(
    ctx: RequestContext, topics: list[AlterShareGroupOffsetsRequestTopic]
) -> AsyncIterator[list[AlterShareGroupOffsetsRequestTopic]]:
    """Yield the topics in parts of at most MAX_STATES partitions; at least one part, since the
    group checks a request without topics, too."""
    part: list[AlterShareGroupOffsetsRequestTopic] = []
    left = MAX_STATES
    for topic in topics:
        start = 0
        while start < len(topic.partitions):
            taken = topic.partitions[start : start + left]
            part.append(AlterShareGroupOffsetsRequestTopic(topic.topic_name, taken))
            start += len(taken)
            left -= len(taken)
            if not left:
                yield part
                part, left = [], MAX_STATES
                await ctx.give_way()
        await ctx.give_way()
    if part or left == MAX_STATES:
        yield part


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
    result.partitions = await ctx.list_in_slices(rows)
    return result
