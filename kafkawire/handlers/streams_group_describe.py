"""StreamsGroupDescribe v0-1: state, epochs, topology, members and tasks of streams groups
(KIP-1071).

v1 the assignor (KIP-1357), and the description of the topology (KIP-1331), which this broker never
has: its status says so. Groups that the client may not describe are the first of the answer, as in
Kafka.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.clients import client_of, divided_groups
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    Topology,
)
from kafkawire.security.acls.model import Operation, ResourceKind

HIDDEN_TOPICS = (
    "The described group uses topics that the client is not authorized to describe."  # Kafka's
)
NOT_STORED = 1
"""The status of a topology's description that no plugin keeps (Kafka: NOT_STORED)."""


async def streams_group_describe(
    ctx: RequestContext, req: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Describe each group once, with an error for each."""
    if not ctx.broker.config.streams_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    refused: list[DescribedGroup] = []
    if ctx.rights is not None:
        req.group_ids, hidden = await divided_groups(ctx, Operation.DESCRIBE, req.group_ids)
        refused = await ctx.collect(map(_refuse_group, hidden))
    if "" in req.group_ids:
        req.group_ids = [group_id for group_id in req.group_ids if group_id]
        refused.append(DescribedGroup(error_code=int(ErrorCode.INVALID_GROUP_ID)))
    service = ctx.broker.groups
    response = await service.describe_streams_groups(client_of(ctx), ctx.version, req)
    topics: dict[str, bool] = {}  # whether the client may describe them
    for at, group in enumerate(response.groups):
        if not group.error_code:
            if req.include_authorized_operations:
                group.authorized_operations = ctx.authorized_operations(
                    ResourceKind.GROUP, group.group_id
                )
            if req.include_topology_description:
                group.topology_description_status = NOT_STORED
        if ctx.rights is not None and not await _may_see(ctx, group.topology, topics):
            response.groups[at] = DescribedGroup(
                group_id=group.group_id,
                error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                error_message=HIDDEN_TOPICS,
            )
        await ctx.give_way()
    response.groups[:0] = refused
    return response


def _refuse_group(group_id: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))


async def _may_see(ctx: RequestContext, topology: Topology | None, topics: dict[str, bool]) -> bool:
    """Return whether the client may describe all topics of a topology."""
    for each in (None if topology is None else topology.subtopologies) or ():
        infos = (*each.repartition_source_topics, *each.state_changelog_topics)
        names = (*each.source_topics, *each.repartition_sink_topics, *(i.name for i in infos))
        for name in names:
            if name not in topics:
                topics[name] = ctx.may_topic(Operation.DESCRIBE, name)
            if not topics[name]:
                return False
            await ctx.give_way()
    return True
