"""OffsetDelete v0: forget a group's offsets of topics it does not read.

Not done: nothing known. It has one version, never flexible.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import ZERO_UUID
from kafkawire.handlers.clients import client_of, partition_error, topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def offset_delete(ctx: RequestContext, req: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Partitions that do not exist are refused each for itself; the group decides on the rest,
    or refuses the whole request."""
    response = OffsetDeleteResponse()
    known: list[OffsetDeleteRequestTopic] = []
    open_answers: list[OffsetDeleteResponsePartition] = []
    for topic in req.topics:
        info, code = topic_of(ctx, topic.name, ZERO_UUID, by_id=False)
        kept = OffsetDeleteRequestTopic(name=topic.name)
        answers: list[OffsetDeleteResponsePartition] = []
        for entry in topic.partitions:
            if info is not None:
                code = partition_error(info, entry.partition_index)
            answer = OffsetDeleteResponsePartition(
                partition_index=entry.partition_index, error_code=int(code)
            )
            answers.append(answer)
            if code is ErrorCode.NONE:
                kept.partitions.append(entry)
                open_answers.append(answer)
        known.append(kept)
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    req.topics = [topic for topic in known if topic.partitions]
    decided = await ctx.broker.groups.offset_delete(client_of(ctx), ctx.version, req)
    if decided.error_code:
        return decided
    codes = (entry.error_code for topic in decided.topics for entry in topic.partitions)
    for answer, code_of_group in zip(open_answers, codes, strict=True):
        answer.error_code = code_of_group
    return response
