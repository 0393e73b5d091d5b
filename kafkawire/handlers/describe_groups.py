"""DescribeGroups v0-6: state, members and assignments of groups.

v1 throttle time; v3 authorized operations; v4 instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND
for a group that does not exist (before: its state is Dead).
Not done: authorization (every operation is allowed).
"""

from __future__ import annotations

from kafkawire.handlers.clients import GROUP_OPERATIONS, client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse


async def describe_groups(
    ctx: RequestContext, req: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group, with an error for each, in request order."""
    response = await ctx.broker.groups.describe_groups(client_of(ctx), ctx.version, req)
    if req.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
            await ctx.give_way()
    return response
