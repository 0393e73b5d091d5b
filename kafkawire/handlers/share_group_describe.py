"""ShareGroupDescribe v1: state, epochs, members and assignments of share groups (KIP-932).

Groups that the client may not describe are the first of the answer, as in Kafka.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.clients import client_of, divided_groups
from kafkawire.handlers.consumer_group_describe import HIDDEN_TOPICS
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind


async def share_group_describe(
    ctx: RequestContext, req: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe each group once, with an error for each."""
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    refused: list[DescribedGroup] = []
    if ctx.rights is not None:
        req.group_ids, hidden = await divided_groups(ctx, Operation.DESCRIBE, req.group_ids)
        refused = await ctx.collect(map(_refuse_group, hidden))
    if "" in req.group_ids:
        req.group_ids = [group_id for group_id in req.group_ids if group_id]
        refused.append(DescribedGroup(error_code=int(ErrorCode.INVALID_GROUP_ID)))
    service = ctx.broker.groups
    response = await service.describe_share_groups(client_of(ctx), ctx.version, req)
    topics: dict[str, bool] = {}  # whether the client may describe them
    for at, group in enumerate(response.groups):
        if req.include_authorized_operations and not group.error_code:
            group.authorized_operations = ctx.authorized_operations(
                ResourceKind.GROUP, group.group_id
            )
        if ctx.rights is not None and not await _may_see(ctx, group, topics):
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


async def _may_see(ctx: RequestContext, group: DescribedGroup, topics: dict[str, bool]) -> bool:
    """Return whether the client may describe the topics of all assignments in a group."""
    for member in group.members:
        for each in member.assignment.topic_partitions:
            name = each.topic_name
            if name not in topics:
                topics[name] = ctx.may_topic(Operation.DESCRIBE, name)
            if not topics[name]:
                return False
            await ctx.give_way()
    return True
