"""JoinGroup v0-9: join or rejoin a classic group; kafkawire.groups.classic.join has the rules.

v1 rebalance timeout (before: the session timeout); v4 new members must rejoin with their assigned
id; v5 static members; v6 flexible; v7 protocol type in the answer, name nullable; v8 reason
(ignored); v9 SkipAssignment. Not done: joining a group of the new consumer protocol (there are none
yet).
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import JOIN
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kafkawire.security.acls.model import Operation, ResourceKind

REBALANCE_TIMEOUT_FROM = 1

MAX_PROTOCOLS = 100
"""Maximum number of protocols of one member: clients list a few assignors, and each is compared
with those of every other member."""
NULL_PROTOCOL_FROM = 7


async def join_group(ctx: RequestContext, req: JoinGroupRequest) -> JoinGroupResponse:
    """Join a group. The response may take as long as the round: until then the connection can serve
    other requests."""
    if ctx.version < REBALANCE_TIMEOUT_FROM:
        req.rebalance_timeout_ms = req.session_timeout_ms
    refused = 0
    if not ctx.may(Operation.READ, ResourceKind.GROUP, req.group_id):
        refused, req.member_id = int(ErrorCode.GROUP_AUTHORIZATION_FAILED), ""
    elif len(req.protocols) > MAX_PROTOCOLS:
        refused = int(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if refused:
        return JoinGroupResponse(
            error_code=refused,
            member_id=req.member_id,
            protocol_name=None if ctx.version >= NULL_PROTOCOL_FROM else "",
        )
    answer = ctx.broker.groups.handle_request(JOIN, client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    response = await answer
    if ctx.version < NULL_PROTOCOL_FROM:
        response.protocol_name = response.protocol_name or ""
    elif response.error_code:
        response.protocol_name = None
    return response
