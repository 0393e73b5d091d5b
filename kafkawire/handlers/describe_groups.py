"""DescribeGroups v0-6: state, members and assignments of groups.

v1 throttle time; v3 authorized operations; v4 instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND
for a group that does not exist (before: its state is Dead).
Groups that the client may not describe are the first of the answer, as in Kafka.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.clients import client_of, divided_groups
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind


async def describe_groups(
    ctx: RequestContext, req: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group, with an error for each, in request order."""
    refused: list[DescribedGroup] = []
    if ctx.rights is not None:
        req.groups, hidden = await divided_groups(ctx, Operation.DESCRIBE, req.groups)
        refused = await ctx.list_in_slices(map(_refuse_group, hidden))
    response = await ctx.broker.groups.describe_groups(client_of(ctx), ctx.version, req)
    if req.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = ctx.authorized_operations(
                    ResourceKind.GROUP, group.group_id
                )
            await ctx.give_way()
    response.groups[:0] = refused
    return response


def _refuse_group(group_id: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
