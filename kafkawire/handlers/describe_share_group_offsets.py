"""DescribeShareGroupOffsets v0-1: how far share groups have read (KIP-932).

v1 the lag (KIP-1226): records from the start offset on whose delivery is not complete; -1 while
that is not known. Without topics all are described that the group has states of.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import LIST_SHARES, ListShares
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.portions import MAX_ENTRIES
from kafkawire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.share.persister import UNKNOWN_COUNT, UNSET_OFFSET, SharePartitionKey
from kafkawire.share.state.machine import ReadSummary, StateAnswer

NO_LAG = -1

Asked = list[tuple[str, Sequence[int]]]
"""Topics and partitions to describe."""


async def describe_share_group_offsets(
    ctx: RequestContext, req: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe each group, with an error for each."""
    response = DescribeShareGroupOffsetsResponse()
    for group in req.groups:
        response.groups.append(await _describe(ctx, group))
        await ctx.give_way()
    return response


async def _describe(
    ctx: RequestContext, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    if not ctx.broker.config.share_version:
        return _refuse(group.group_id, ErrorCode.UNSUPPORTED_VERSION, None)
    if not ctx.may(Operation.DESCRIBE, ResourceKind.GROUP, group.group_id):
        return _refuse(group.group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
    refused: list[DescribeShareGroupOffsetsResponseTopic] = []
    if group.topics is None:
        listed = await ctx.broker.groups.handle_request(
            LIST_SHARES, client_of(ctx), ctx.version, ListShares(group.group_id)
        )
        if listed.error_code:
            code = ErrorCode(listed.error_code)
            return _refuse(group.group_id, code, code.sentence)
        asked: Asked = []
        for topic_id, partitions in listed.partitions.items():
            info = ctx.broker.catalog.by_id.get(topic_id)
            # Those that the client may not describe are left out, as those that are deleted.
            if info is not None and ctx.may_topic(Operation.DESCRIBE, info.name, logged=False):
                asked.append((info.name, sorted(partitions)))
            await ctx.give_way()
    else:
        await ctx.find_topics(topic.topic_name for topic in group.topics)
        asked = []
        for topic in group.topics:
            if ctx.may_topic(Operation.DESCRIBE, topic.topic_name):
                asked.append((topic.topic_name, topic.partitions))
            else:
                refused.append(await _refuse_topic(ctx, topic.topic_name, topic.partitions))
            await ctx.give_way()
    answer = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
    answer.topics = [*await _read(ctx, group.group_id, asked), *refused]
    return answer


def _refuse(
    group_id: str, code: ErrorCode, text: str | None
) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, error_code=int(code), error_message=text
    )


async def _refuse_topic(
    ctx: RequestContext, name: str, partitions: Sequence[int]
) -> DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = (
        DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=UNSET_OFFSET,
            lag=NO_LAG,
            error_code=int(code),
            error_message=code.sentence,
        )
        for index in partitions
    )
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=name, partitions=await ctx.list_in_slices(rows)
    )


async def _read(
    ctx: RequestContext, group_id: str, asked: Asked
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    """Read the states of the partitions; those of unknown topics have none."""
    known: list[DescribeShareGroupOffsetsResponseTopic] = []
    absent: list[DescribeShareGroupOffsetsResponseTopic] = []
    for name, partitions in asked:
        await ctx.give_way()
        info = ctx.broker.catalog.by_name.get(name)
        topic = DescribeShareGroupOffsetsResponseTopic(topic_name=name)
        if info is None:
            rows = (
                DescribeShareGroupOffsetsResponsePartition(index, UNSET_OFFSET)
                for index in partitions
            )
            topic.partitions = await ctx.list_in_slices(rows)
            absent.append(topic)
            continue
        topic.topic_id = info.id
        await ctx.broker.load_share_states()
        for start in range(0, len(partitions), MAX_ENTRIES):
            part = partitions[start : start + MAX_ENTRIES]
            requests = [ReadSummary(SharePartitionKey(group_id, info.id, each)) for each in part]
            answers = await ctx.broker.share_persister.execute_all(requests)
            for index, state in zip(part, answers, strict=True):
                topic.partitions.append(await _show(ctx, name, index, state))
                await ctx.give_way()
        known.append(topic)
    return [*known, *absent]


async def _show(
    ctx: RequestContext, topic: str, index: int, answer: StateAnswer
) -> DescribeShareGroupOffsetsResponsePartition:
    state = answer.state
    # Without a state there is nothing to show, whatever the error, as in Kafka.
    if state is None:
        return DescribeShareGroupOffsetsResponsePartition(index, UNSET_OFFSET, lag=NO_LAG)
    row = DescribeShareGroupOffsetsResponsePartition(
        index, state.start_offset, state.leader_epoch, NO_LAG
    )
    done = state.delivery_complete_count
    if state.start_offset == UNSET_OFFSET or done == UNKNOWN_COUNT:
        return row
    end = await ctx.broker.end_offsets.find(topic, index)
    if isinstance(end, ErrorCode):
        return DescribeShareGroupOffsetsResponsePartition(
            index, error_code=int(end), error_message=end.sentence
        )
    row.lag = end - state.start_offset - done
    return row
