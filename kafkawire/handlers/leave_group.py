"""LeaveGroup v0-5: members leave, or a tool removes them.

v1 throttle time; v3 many members, by member id or instance id, each with its own error; v4
flexible; v5 reason (noted by nobody).
Not done: quotas.
"""

from __future__ import annotations

from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)

MANY_FROM = 3


async def leave_group(ctx: RequestContext, req: LeaveGroupRequest) -> LeaveGroupResponse:
    """Before version 3 the one member's error is the answer's."""
    if ctx.version < MANY_FROM:
        req.members = [MemberIdentity(member_id=req.member_id)]
    response = await ctx.broker.groups.leave_group(client_of(ctx), ctx.version, req)
    if ctx.version < MANY_FROM and response.members:
        response.error_code = response.error_code or response.members[0].error_code
    return response
