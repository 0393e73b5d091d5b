"""DescribeTopicPartitions: topics page by page, so that an answer has a bound (KIP-966)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import missing_topic_error
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.nodes import Nodes, is_internal, is_replicated, topic_operations
from kafkawire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import PartitionInfo, TopicInfo


async def describe_topic_partitions(
    ctx: RequestContext, req: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """DescribeTopicPartitions v0.

    Topics are sorted by name; no topics in the request means all. A page ends at the smaller of
    ResponsePartitionLimit and max.request.partition.size.limit, and its cursor names the next
    partition. Not done: eligible leader replicas (acknowledged records are on disks; the lists are
    empty, never null, because Java's admin client fails on null).
    """
    start_name, start_index = "", 0
    if req.cursor is not None:
        start_name, start_index = req.cursor.topic_name, req.cursor.partition_index
    every = not req.topics
    catalog = ctx.broker.catalog.by_name
    sorted_names = catalog.in_order() if every else await _in_order(ctx, req)
    denied = await _find_denied_topics(ctx, sorted_names, logged=not every)
    if every and denied:
        sorted_names = await ctx.list_in_slices(name for name in sorted_names if name not in denied)
    start = bisect_left(sorted_names, start_name)
    limit = ctx.broker.config.max_request_partition_size_limit
    room = max(1, min(limit, req.response_partition_limit))
    names = sorted_names[start : start + room + 1] if every else sorted_names[start:]
    if req.cursor is not None and (
        req.cursor.partition_index < 0 or (not every and req.cursor.topic_name not in names)
    ):
        return await _refuse_request(ctx, req)  # the cursor must be a possible one

    page = _Page(Nodes(ctx), room, topic_operations(ctx))
    for name in names:
        await ctx.give_way()
        if name in denied:
            continue
        if page.room <= 0:
            page.response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = ctx.broker.catalog.with_source(catalog.get(name))
        if topic is None:  # or a view whose source was deleted
            page.add_missing(name)
        elif not page.add(topic, start_index if name == start_name else 0):
            break
    if not every:
        page.response.topics += await ctx.list_in_slices(
            map(_refuse_topic, await ctx.in_order(list(denied)))
        )
    return page.response


async def _find_denied_topics(ctx: RequestContext, names: list[str], *, logged: bool) -> set[str]:
    """Return the topics that the client may not describe."""
    denied: set[str] = set()
    for name in names if ctx.rights is not None else ():
        if not ctx.may_topic(Operation.DESCRIBE, name, logged=logged):
            denied.add(name)
        await ctx.give_way()
    return denied


def _refuse_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
    )


async def _in_order(ctx: RequestContext, req: DescribeTopicPartitionsRequest) -> list[str]:
    """Return each requested name once, in order: sorted in parts, which are then merged. Topics of
    other brokers are looked for."""
    distinct = await ctx.count_keys(topic.name for topic in req.topics)
    names = list(distinct)
    await ctx.empty_slowly(distinct)
    await ctx.find_topics(names)
    return await ctx.in_order(names)


async def _refuse_request(
    ctx: RequestContext, req: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return the error for each requested topic, because the message has no error of its own, as in
    Kafka."""
    topics = (
        DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
        for topic in req.topics
    )
    return DescribeTopicPartitionsResponse(topics=await ctx.list_in_slices(topics))


class _Page:
    """A response being built; `room`: how many partitions still fit."""

    def __init__(self, nodes: Nodes, room: int, operations: Callable[[str], int]) -> None:
        self.nodes = nodes
        self._operations = operations
        self.room = room
        self.response = DescribeTopicPartitionsResponse()

    def add(self, topic: TopicInfo, start: int) -> bool:
        """Add the partitions of `topic` from index `start`. Return False if not all fit, with the
        cursor set."""
        rows = topic.partitions[start : start + self.room]
        self.room -= len(rows)
        self.response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=topic.name,
                topic_id=topic.id,
                is_internal=topic.internal,
                partitions=[self._partition(row, is_replicated(topic)) for row in rows],
                topic_authorized_operations=self._operations(topic.name),
            )
        )
        after = start + len(rows)
        if after >= len(topic.partitions):
            return True
        self.response.next_cursor = Cursor(topic_name=topic.name, partition_index=after)
        return False

    def add_missing(self, name: str) -> None:
        self.response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=missing_topic_error(name),
                name=name,
                is_internal=is_internal(name),
                topic_authorized_operations=self._operations(name),
            )
        )

    def _partition(
        self, row: PartitionInfo, replicated: bool
    ) -> DescribeTopicPartitionsResponsePartition:
        reachable = row.leader in self.nodes.by_id
        replicas, in_sync = [row.leader], [row.leader]
        if replicated:
            replicas, in_sync = self.nodes.replicas(row.number, row.leader, replicated)
        return DescribeTopicPartitionsResponsePartition(
            partition_index=row.index,
            leader_id=row.leader if reachable else -1,
            leader_epoch=row.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=self.nodes.offline(replicas),
        )
