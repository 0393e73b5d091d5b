"""OffsetDelete v0: delete a group's offsets of topics it does not read.

Not done: nothing known. It has one version, never flexible.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kafkawire.broker.read_only import check_commits
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import ZERO_UUID
from kafkawire.groups.model.request import OFFSET_DELETE
from kafkawire.handlers.clients import client_of, partition_error, readable_topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.portions import Portions
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class _Entry(NamedTuple):
    """One partition to delete, and its position in the response."""

    topic: str
    partition: OffsetDeleteRequestPartition
    answer: OffsetDeleteResponsePartition


async def offset_delete(ctx: RequestContext, req: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete offsets. Missing partitions are rejected individually; the group decides on the rest,
    in portions, or rejects the whole request."""
    check_commits(ctx.broker.config)
    response = OffsetDeleteResponse()

    def ask(entries: list[_Entry]) -> asyncio.Future[OffsetDeleteResponse]:
        part = _part(req, entries)
        return ctx.broker.groups.handle_request(OFFSET_DELETE, client_of(ctx), ctx.version, part)

    def on_answer(entries: list[_Entry], decided: OffsetDeleteResponse) -> bool:
        response.error_code = decided.error_code
        codes = (entry.error_code for topic in decided.topics for entry in topic.partitions)
        for entry, code in zip(entries, codes, strict=not decided.error_code):
            entry.answer.error_code = code
        return not decided.error_code

    portions = Portions(ctx, ask, on_answer)
    for topic in req.topics:
        info, code = readable_topic_of(ctx, topic.name, ZERO_UUID, by_id=False)
        answers: list[OffsetDeleteResponsePartition] = []
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
        for entry in topic.partitions:
            if info is not None:
                code = partition_error(info, entry.partition_index)
            answer = OffsetDeleteResponsePartition(
                partition_index=entry.partition_index, error_code=int(code)
            )
            answers.append(answer)
            if code is ErrorCode.NONE:
                await portions.add(_Entry(topic.name, entry, answer))
            else:
                await ctx.give_way()
        await ctx.give_way()
    await portions.send_rest(always=True)
    if response.error_code:
        response.topics = []
    else:
        ctx.broker.security.audit.record_change(ctx.caller, "offsets deleted", group=req.group_id)
    return response


def _part(req: OffsetDeleteRequest, entries: list[_Entry]) -> OffsetDeleteRequest:
    topics: list[OffsetDeleteRequestTopic] = []
    for entry in entries:
        if not topics or topics[-1].name != entry.topic:
            topics.append(OffsetDeleteRequestTopic(name=entry.topic))
        topics[-1].partitions.append(entry.partition)
    return OffsetDeleteRequest(group_id=req.group_id, topics=topics)
