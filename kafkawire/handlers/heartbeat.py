"""Heartbeat v0-4: a member is alive, and hears whether its group is rebalancing.

v1 throttle time; v3 static members; v4 flexible.
Not done: quotas.
"""

from __future__ import annotations

from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def heartbeat(ctx: RequestContext, req: HeartbeatRequest) -> HeartbeatResponse:
    """Answered at once, unless something of its partition is waiting for a commit."""
    return await ctx.broker.groups.heartbeat(client_of(ctx), ctx.version, req)
