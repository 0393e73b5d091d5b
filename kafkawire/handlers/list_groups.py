"""ListGroups v0-5: the groups this broker coordinates.

v1 throttle time; v3 flexible; v4 states in filter and answer; v5 types in filter and answer.
Not done: types other than classic (there are no such groups yet); authorization.
"""

from __future__ import annotations

from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


async def list_groups(ctx: RequestContext, req: ListGroupsRequest) -> ListGroupsResponse:
    """All groups that pass the filters; COORDINATOR_LOAD_IN_PROGRESS while any is loading."""
    return await ctx.broker.groups.list_groups(client_of(ctx), ctx.version, req)
