"""OffsetCommit v2-10: store the offsets of a group.

v2-4 have a retention time, v5+ do not; v6 leader epoch; v7 static members; v8 flexible; v9
GROUP_ID_NOT_FOUND for a group that does not exist, and member epochs (KIP-848); v10 topics by id,
not by name.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kafkawire.broker.read_only import COMMIT_LATER, check_commits
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import OFFSET_COMMIT
from kafkawire.handlers.clients import client_of, partition_error, readable_topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.portions import Portions
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

BY_ID_FROM = 10


class _Entry(NamedTuple):
    """One partition to commit, and its position in the response."""

    topic: str
    topic_id: bytes
    commit: OffsetCommitRequestPartition
    answer: OffsetCommitResponsePartition


async def offset_commit(ctx: RequestContext, req: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets. Missing partitions are rejected individually; the group decides on the rest,
    in portions."""
    check_commits(ctx.broker.config, COMMIT_LATER)
    response = OffsetCommitResponse()

    def ask(entries: list[_Entry]) -> asyncio.Future[OffsetCommitResponse]:
        topics: list[OffsetCommitRequestTopic] = []
        for entry in entries:
            if not topics or topics[-1].name != entry.topic:
                topics.append(OffsetCommitRequestTopic(name=entry.topic, topic_id=entry.topic_id))
            topics[-1].partitions.append(entry.commit)
        portion = OffsetCommitRequest(
            group_id=req.group_id,
            generation_id_or_member_epoch=req.generation_id_or_member_epoch,
            member_id=req.member_id,
            group_instance_id=req.group_instance_id,
            retention_time_ms=req.retention_time_ms,
            topics=topics,
        )
        return ctx.broker.groups.handle_request(OFFSET_COMMIT, client_of(ctx), ctx.version, portion)

    portions = Portions(ctx, ask, _set_codes)
    for topic in req.topics:
        if response.topics:  # a request for one topic is decided without a pause
            await ctx.give_way()
        info, code = readable_topic_of(ctx, topic.name, topic.topic_id, ctx.version >= BY_ID_FROM)
        answers: list[OffsetCommitResponsePartition] = []
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
        for entry in topic.partitions:
            if info is not None:
                code = partition_error(info, entry.partition_index)
            answer = OffsetCommitResponsePartition(
                partition_index=entry.partition_index, error_code=int(code)
            )
            answers.append(answer)
            if info is not None and code is ErrorCode.NONE:
                await portions.add(_Entry(info.name, topic.topic_id, entry, answer))
            else:
                await ctx.give_way()
    await portions.send_rest(always=False)
    if req.generation_id_or_member_epoch < 0 and not req.member_id:
        ctx.broker.security.audit.offsets_set(ctx.caller, req.group_id)
    return response


def _set_codes(entries: list[_Entry], decided: OffsetCommitResponse) -> bool:
    """Set the codes of a portion in the response; see Portions."""
    at = 0
    for topic in decided.topics:
        for partition in topic.partitions:
            entries[at].answer.error_code = partition.error_code
            at += 1
    assert at == len(entries), "a code for each partition"
    return True
