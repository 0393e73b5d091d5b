"""SyncGroup v0-5: the leader sends assignments, and every member gets its own; see
kafkawire.groups.classic.sync.

v1 throttle time; v3 static members; v4 flexible; v5 protocol type and name, mandatory.
Not done: quotas.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import SYNC
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_FROM = 5


async def sync_group(ctx: RequestContext, req: SyncGroupRequest) -> SyncGroupResponse:
    """Sync a group. A follower waits for its leader: until then the connection can serve other
    requests."""
    if ctx.version >= PROTOCOL_FROM and (req.protocol_type is None or req.protocol_name is None):
        return SyncGroupResponse(error_code=int(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    answer = ctx.broker.groups.handle_request(SYNC, client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    return await answer
