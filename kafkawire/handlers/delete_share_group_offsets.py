"""DeleteShareGroupOffsets v0: have a share group without members forget topics (KIP-932)."""

from __future__ import annotations

from kafkawire.broker.read_only import check_commits
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.request import SHARE_DELETE
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from kafkawire.security.acls.model import Operation, ResourceKind

MAX_TOPICS = 32
"""Topics whose states are deleted together: some hundred states, a millisecond."""


async def delete_share_group_offsets(
    ctx: RequestContext, req: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Each topic with its own error; answered when the states are deleted."""
    try:
        _check(ctx, req.group_id)
        check_commits(ctx.broker.config)
    except KafkaError as error:
        return _refuse(error.code, error.message)
    await ctx.find_topics(topic.topic_name for topic in req.topics)
    allowed: list[DeleteShareGroupOffsetsRequestTopic] = []
    refused: list[DeleteShareGroupOffsetsResponseTopic] = []
    for topic in req.topics:
        if ctx.may_topic(Operation.READ, topic.topic_name):
            allowed.append(topic)
        else:
            refused.append(_refuse_topic(topic.topic_name))
        await ctx.give_way()
    response = DeleteShareGroupOffsetsResponse(responses=refused)
    # The group checks a request without topics, too.
    for start in range(0, len(allowed) or 1, MAX_TOPICS):
        topics = allowed[start : start + MAX_TOPICS]
        one = DeleteShareGroupOffsetsRequest(group_id=req.group_id, topics=topics)
        answer = ctx.broker.groups.handle_request(SHARE_DELETE, client_of(ctx), ctx.version, one)
        if not answer.done():
            ctx.park()
        decided = await answer
        if decided.error_code:
            code = ErrorCode(decided.error_code)
            return _refuse(code, decided.error_message or code.sentence)
        response.responses += decided.responses
        await ctx.give_way()
    ctx.broker.security.audit.record_change(
        ctx.caller, "share group offsets deleted", group=req.group_id
    )
    return response


def _check(ctx: RequestContext, group_id: str) -> None:
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not ctx.may(Operation.DELETE, ResourceKind.GROUP, group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _refuse(code: ErrorCode, text: str | None) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(
        error_code=int(code), error_message=text or code.sentence
    )


def _refuse_topic(name: str) -> DeleteShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=int(code), error_message=code.sentence
    )
