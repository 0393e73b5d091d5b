"""LeaveGroup v0-5: members leave, or a tool removes them.

v1 throttle time; v3 many members, by member id or instance id, each with its own error; v4
flexible; v5 reason (ignored). Not done: quotas.
"""

from __future__ import annotations

import asyncio

from kafkawire.groups.model.request import LEAVE
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

MANY_FROM = 3

MEMBERS_AT_ONCE = 64
"""Members that leave in one decision: half a millisecond."""


async def leave_group(ctx: RequestContext, req: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members. Before version 3 the only member's error is the response's."""
    if ctx.version < MANY_FROM:
        req.members = [MemberIdentity(member_id=req.member_id)]
    response = await _leave(ctx, req)
    if ctx.version < MANY_FROM and response.members:
        response.error_code = response.error_code or response.members[0].error_code
    return response


async def _leave(ctx: RequestContext, req: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove the members in portions, which the coordinator decides one after another."""
    asked: list[asyncio.Future[LeaveGroupResponse]] = []
    for at in range(0, len(req.members) or 1, MEMBERS_AT_ONCE):
        part = LeaveGroupRequest(
            group_id=req.group_id, members=req.members[at : at + MEMBERS_AT_ONCE]
        )
        asked.append(ctx.broker.groups.handle_request(LEAVE, client_of(ctx), ctx.version, part))
        await ctx.give_way()
    if any(not answer.done() for answer in asked):
        ctx.park()  # all members have left: the commits of pipelined requests are shared
    response = LeaveGroupResponse()
    for one in asked:
        answer = await one
        response.error_code = response.error_code or answer.error_code
        response.members += answer.members
    if response.error_code:
        response.members = []
    return response
