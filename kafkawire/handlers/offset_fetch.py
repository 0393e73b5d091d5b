"""OffsetFetch v1-10: return the offsets of groups.

v2 topics null means all, and a top-level error; v3 throttle time; v5 leader epoch; v6 flexible; v7
RequireStable; v8 many groups; v9 member id and epoch (for the new consumer protocol; classic groups
ignore them); v10 topics by id, not by name. Every response waits for the commit of its offsets,
with or without RequireStable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import ZERO_UUID
from kafkawire.groups.model.request import OFFSET_FETCH, STABLE_FETCH, StableOffsetFetch
from kafkawire.handlers.clients import client_of, topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.portions import Portions
from kafkawire.handlers.slices import free_in_steps
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
from kafkawire.security.acls.model import Operation, ResourceKind

TOP_LEVEL_ERROR_FROM = 2
MANY_GROUPS_FROM = 8
BY_ID_FROM = 10

INDEXES_PER_ENTRY = 16
"""Partitions of a topic that are looked up together: a microsecond each."""


async def offset_fetch(ctx: RequestContext, req: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return each group's offsets, or its error."""
    if ctx.version >= MANY_GROUPS_FROM:
        found_groups = await _fetch_groups(ctx, req.groups, stable=req.require_stable)
        return OffsetFetchResponse(groups=found_groups)
    group = OffsetFetchRequestGroup(group_id=req.group_id, topics=None)
    if req.topics is not None:
        group.topics = await ctx.list_in_slices(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in req.topics
        )
    asked = [group]
    del group
    (found,) = await _fetch_groups(ctx, asked, stable=req.require_stable)
    if ctx.version >= TOP_LEVEL_ERROR_FROM or not found.error_code:
        response = OffsetFetchResponse(error_code=found.error_code)
        found.topics.reverse()
        while found.topics:
            response.topics.append(await _old_form(ctx, found.topics.pop()))
        await ctx.broker.env.slices.run(free_in_steps(asked))
        return response
    # Version 1 has no top-level error: each partition has it.
    refused: list[OffsetFetchResponseTopic] = []
    for topic in asked[0].topics or []:
        of_topic = await _refuse_topic(ctx, topic, ErrorCode(found.error_code))
        refused.append(await _old_form(ctx, of_topic))
    return OffsetFetchResponse(topics=refused)


class _Entry(NamedTuple):
    """Partitions of one topic of one group, and the position of their offsets. No topic: an empty
    request, to get the group's error."""

    group: OffsetFetchRequestGroup
    found: OffsetFetchResponseGroup
    topic: OffsetFetchRequestTopics | None
    answer: OffsetFetchResponseTopics | None


async def _fetch_groups(
    ctx: RequestContext, groups: list[OffsetFetchRequestGroup], *, stable: bool
) -> list[OffsetFetchResponseGroup]:
    """Fetch all groups, in portions that wait for one commit. `stable`: with RequireStable."""
    client = client_of(ctx)
    submit = ctx.broker.groups.handle_request

    def ask(entries: list[_Entry]) -> asyncio.Future[list[OffsetFetchResponseGroup]]:
        return asyncio.gather(
            *(
                submit(STABLE_FETCH, client, ctx.version, StableOffsetFetch(part))
                if stable
                else submit(OFFSET_FETCH, client, ctx.version, part)
                for part in _parts(entries)
            )
        )

    portions = Portions(ctx, ask, _distribute_answers)
    response: list[OffsetFetchResponseGroup] = []
    seen: set[str] = set()
    for group in groups:
        found = OffsetFetchResponseGroup(group_id=group.group_id)
        response.append(found)
        if group.group_id in seen:
            found.error_code = int(ErrorCode.INVALID_REQUEST)
            await ctx.give_way()
            continue
        seen.add(group.group_id)
        if not ctx.may(Operation.DESCRIBE, ResourceKind.GROUP, group.group_id):
            found.error_code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            await ctx.give_way()
            continue
        await _ask_group(ctx, portions, group, found)
    await ctx.empty_slowly(seen)
    await portions.send_rest(always=False)
    for found in response:
        if found.error_code:
            found.topics = []
        await ctx.give_way()
    return response


async def _ask_group(
    ctx: RequestContext,
    portions: Portions[_Entry, list[OffsetFetchResponseGroup]],
    group: OffsetFetchRequestGroup,
    found: OffsetFetchResponseGroup,
) -> None:
    topics = group.topics
    named = topics is not None
    if topics is None:
        topics = await ctx.list_in_slices(ctx.broker.groups.list_committed(group.group_id))
    await portions.add(_Entry(group, found, None, None))
    refused: list[OffsetFetchResponseTopics] = []
    for topic in topics:
        await ctx.give_way()  # most paths through here have no other pause
        if ctx.version >= BY_ID_FROM:
            if not topic.name:
                info, code = topic_of(ctx, "", topic.topic_id, by_id=True)
            else:  # of a group for which all topics are requested
                info, code = topic_of(ctx, topic.name, ZERO_UUID, by_id=False)
            if info is None:
                if not topic.name:
                    refused.append(await _refuse_topic(ctx, topic, code))
                continue
            topic.name, topic.topic_id = info.name, info.id
        if not ctx.may_topic(Operation.DESCRIBE, topic.name, logged=named):
            if named:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                refused.append(await _refuse_topic(ctx, topic, code))
            continue
        answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        found.topics.append(answer)
        for at in range(0, len(topic.partition_indexes) or 1, INDEXES_PER_ENTRY):
            indexes = topic.partition_indexes[at : at + INDEXES_PER_ENTRY]
            part = OffsetFetchRequestTopics(name=topic.name, partition_indexes=indexes)
            await portions.add(_Entry(group, found, part, answer))
    found.topics += refused


def _parts(entries: list[_Entry]) -> Iterator[OffsetFetchRequestGroup]:
    """Yield one request for each group of these entries."""
    for group, of_group in groupby(entries, lambda entry: entry.group):
        topics = [entry.topic for entry in of_group if entry.topic is not None]
        yield OffsetFetchRequestGroup(
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
            topics=topics,
        )


def _distribute_answers(entries: list[_Entry], answers: list[OffsetFetchResponseGroup]) -> bool:
    """Distribute the results: the responses have the topics in the order of the entries."""
    for found, (_, of_group) in zip(
        answers, groupby(entries, lambda entry: entry.group), strict=True
    ):
        topics = iter(found.topics)
        for entry in of_group:
            entry.found.error_code = entry.found.error_code or found.error_code
            if entry.answer is not None and not found.error_code:
                entry.answer.partitions += next(topics).partitions
    return True


async def _refuse_topic(
    ctx: RequestContext, topic: OffsetFetchRequestTopics, code: ErrorCode
) -> OffsetFetchResponseTopics:
    partitions = (
        OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1, error_code=int(code)
        )
        for index in topic.partition_indexes
    )
    return OffsetFetchResponseTopics(
        name=topic.name, topic_id=topic.topic_id, partitions=await ctx.list_in_slices(partitions)
    )


async def _old_form(
    ctx: RequestContext, topic: OffsetFetchResponseTopics
) -> OffsetFetchResponseTopic:
    """Return the form before version 8, which has other struct names."""
    partitions = (
        OffsetFetchResponsePartition(
            partition_index=entry.partition_index,
            committed_offset=entry.committed_offset,
            committed_leader_epoch=entry.committed_leader_epoch,
            metadata=entry.metadata,
            error_code=entry.error_code,
        )
        for entry in topic.partitions
    )
    await ctx.give_way()
    return OffsetFetchResponseTopic(
        name=topic.name, partitions=await ctx.list_in_slices(partitions)
    )
