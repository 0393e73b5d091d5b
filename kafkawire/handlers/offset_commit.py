"""OffsetCommit v2-10: store how far a group has read.

v2-4 carry a retention time of their own, v5+ do not; v6 leader epoch; v7 static members; v8
flexible; v9 GROUP_ID_NOT_FOUND for a group that does not exist; v10 topics by id, not by name.
Not done: member epochs of the new consumer protocol (there are no such groups yet).
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.clients import client_of, partition_error, topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

BY_ID_FROM = 10


async def offset_commit(ctx: RequestContext, req: OffsetCommitRequest) -> OffsetCommitResponse:
    """Partitions that do not exist are refused each for itself; the group decides on the rest."""
    response = OffsetCommitResponse()
    known: list[OffsetCommitRequestTopic] = []
    open_answers: list[OffsetCommitResponsePartition] = []
    for topic in req.topics:
        info, code = topic_of(ctx, topic.name, topic.topic_id, ctx.version >= BY_ID_FROM)
        kept = OffsetCommitRequestTopic(topic_id=topic.topic_id)
        answers: list[OffsetCommitResponsePartition] = []
        for entry in topic.partitions:
            if info is not None:
                code = partition_error(info, entry.partition_index)
            answer = OffsetCommitResponsePartition(
                partition_index=entry.partition_index, error_code=int(code)
            )
            answers.append(answer)
            if code is ErrorCode.NONE:
                kept.partitions.append(entry)
                open_answers.append(answer)
        if info is not None and kept.partitions:
            kept.name = info.name
            known.append(kept)
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    if known:
        req.topics = known
        answered = ctx.broker.groups.offset_commit(client_of(ctx), ctx.version, req)
        if not answered.done():
            ctx.park()  # what follows on this connection may share the commit
        decided = (entry for topic in (await answered).topics for entry in topic.partitions)
        for answer, decision in zip(open_answers, decided, strict=True):
            answer.error_code = decision.error_code
    return response
