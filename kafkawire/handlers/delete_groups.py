"""DeleteGroups v0-3: forget groups without members, and their offsets.

v1 as v0; v2 flexible; v3 an error message for each group.
"""

from __future__ import annotations

from kafkawire.broker.read_only import check_commits
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.clients import client_of, divided_groups
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kafkawire.security.acls.model import Operation

MESSAGES_FROM = 3


async def delete_groups(ctx: RequestContext, req: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Each group with its own error: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
    check_commits(ctx.broker.config)
    req.groups_names, refused = await divided_groups(ctx, Operation.DELETE, req.groups_names)
    response = await ctx.broker.groups.delete_groups(client_of(ctx), ctx.version, req)
    caller, audit = ctx.caller, ctx.broker.security.audit
    for result in response.results:
        if not result.error_code:
            audit.record_change(caller, "group deleted", group=result.group_id)
        await ctx.give_way()
    response.results += await ctx.list_in_slices(map(_refuse_group, refused))
    for result in response.results if ctx.version >= MESSAGES_FROM else ():
        if result.error_code:
            result.error_message = ErrorCode(result.error_code).sentence
        await ctx.give_way()
    return response


def _refuse_group(group_id: str) -> DeletableGroupResult:
    return DeletableGroupResult(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
