"""OffsetFetch v1-10: how far groups have read.

v2 topics null means all, and a top-level error; v3 throttle time; v5 leader epoch; v6 flexible;
v7 RequireStable; v8 many groups; v9 member id and epoch (for the new consumer protocol; classic
groups ignore them); v10 topics by id, not by name.
Not done: UNSTABLE_OFFSET_COMMIT, for there are no transactions yet; every answer waits for the
commit of what it shows, with RequireStable or without.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.clients import client_of, topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TOP_LEVEL_ERROR_FROM = 2
MANY_GROUPS_FROM = 8
BY_ID_FROM = 10


async def offset_fetch(ctx: RequestContext, req: OffsetFetchRequest) -> OffsetFetchResponse:
    """Each group's offsets, or its error."""
    if ctx.version >= MANY_GROUPS_FROM:
        asked = [_ask(ctx, group) for group in req.groups]  # all wait for one commit
        return OffsetFetchResponse(groups=[await _answer(ctx, *one) for one in asked])
    group = OffsetFetchRequestGroup(group_id=req.group_id, topics=None)
    if req.topics is not None:
        group.topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in req.topics
        ]
    found = await _answer(ctx, *_ask(ctx, group))
    if ctx.version >= TOP_LEVEL_ERROR_FROM or not found.error_code:
        return OffsetFetchResponse(
            error_code=found.error_code, topics=[_old_form(topic) for topic in found.topics]
        )
    # Version 1 has no top-level error: each partition bears it.
    return OffsetFetchResponse(
        topics=[
            _old_form(_refused(topic, ErrorCode(found.error_code))) for topic in group.topics or []
        ]
    )


def _ask(
    ctx: RequestContext, group: OffsetFetchRequestGroup
) -> tuple[Awaitable[OffsetFetchResponseGroup], list[OffsetFetchResponseTopics]]:
    """The group's answer to come, and the topics it is not asked about."""
    refused: list[OffsetFetchResponseTopics] = []
    if ctx.version >= BY_ID_FROM and group.topics is not None:
        known: list[OffsetFetchRequestTopics] = []
        for topic in group.topics:
            info, code = topic_of(ctx, "", topic.topic_id, by_id=True)
            if info is None:
                refused.append(_refused(topic, code))
            else:
                topic.name = info.name
                known.append(topic)
        group.topics = known
    return ctx.broker.groups.offset_fetch(client_of(ctx), ctx.version, group), refused


async def _answer(
    ctx: RequestContext,
    answer: Awaitable[OffsetFetchResponseGroup],
    refused: list[OffsetFetchResponseTopics],
) -> OffsetFetchResponseGroup:
    found = await answer
    if ctx.version >= BY_ID_FROM:
        found.topics = _with_ids(ctx, found.topics)
    if not found.error_code:
        found.topics += refused
    return found


def _with_ids(
    ctx: RequestContext, topics: list[OffsetFetchResponseTopics]
) -> list[OffsetFetchResponseTopics]:
    """Topics with their ids; those deleted just now have none and are left out."""
    kept: list[OffsetFetchResponseTopics] = []
    for topic in topics:
        info = ctx.broker.catalog.by_name.get(topic.name)
        if info is not None:
            topic.topic_id = info.id
            kept.append(topic)
    return kept


def _refused(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, error_code=int(code)
            )
            for index in topic.partition_indexes
        ],
    )


def _old_form(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """The same before version 8, where the structs have other names."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=entry.partition_index,
                committed_offset=entry.committed_offset,
                committed_leader_epoch=entry.committed_leader_epoch,
                metadata=entry.metadata,
                error_code=entry.error_code,
            )
            for entry in topic.partitions
        ],
    )
