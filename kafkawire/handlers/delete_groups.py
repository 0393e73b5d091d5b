"""DeleteGroups v0-2: forget groups without members, and their offsets.

v1 as v0; v2 flexible.
Not done: error messages per group (v3, not served).
"""

from __future__ import annotations

from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse


async def delete_groups(ctx: RequestContext, req: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Each group with its own error: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
    return await ctx.broker.groups.delete_groups(client_of(ctx), ctx.version, req)
