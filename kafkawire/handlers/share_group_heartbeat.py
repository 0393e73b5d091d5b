"""ShareGroupHeartbeat v1: a member of a share group joins, reports that it lives, or leaves
(KIP-932).

The feature and the rights are checked here, in Kafka's order (KafkaApis), and everything else by
the group: kafkawire.groups.share.heartbeat.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.request import SHARE_HEARTBEAT
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind

MAX_MEMBER_ID_CHARS = 36
"""As in Kafka: clients make a UUID."""


async def share_group_heartbeat(
    ctx: RequestContext, req: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Answer after the commit of what the heartbeat changes; at once if it changes nothing."""
    try:
        await _check(ctx, req)
    except KafkaError as error:
        return ShareGroupHeartbeatResponse(error_code=int(error.code), error_message=error.message)
    await ctx.broker.load_share_states()  # it will need them
    answer = ctx.broker.groups.handle_request(SHARE_HEARTBEAT, client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    return await answer


async def _check(ctx: RequestContext, req: ShareGroupHeartbeatRequest) -> None:
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not ctx.may(Operation.READ, ResourceKind.GROUP, req.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not 0 < len(req.member_id) <= MAX_MEMBER_ID_CHARS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    if ctx.rights is not None:
        for name in dict.fromkeys(req.subscribed_topic_names or ()):
            if not ctx.may_topic(Operation.DESCRIBE, name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            await ctx.give_way()
