"""ConsumerGroupHeartbeat v0-1: a member of a KIP-848 group joins, reports what it owns, or leaves.

v1 a subscription by pattern, and the member id is the client's (KIP-1082). The feature and the
rights are checked here, in Kafka's order (KafkaApis), and everything else by the group:
kafkawire.groups.consumer.heartbeat.

Most heartbeats change nothing. They are answered without a task: each member sends one every few
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.codec.compile import encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import CONSUMER_HEARTBEAT, Client
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.handlers.exchange import Peer


async def consumer_group_heartbeat(
    ctx: RequestContext, req: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Answer after the commit of what the heartbeat changes; at once if it changes nothing."""
    code = await _find_refusal(ctx, req)
    if code is not ErrorCode.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=int(code))
    answer = ctx.broker.groups.handle_request(CONSUMER_HEARTBEAT, _client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    return await answer


def answer_unchanged(
    broker: Broker, peer: Peer, version: int, req: ConsumerGroupHeartbeatRequest
) -> bytes | None:
    """Answer a heartbeat that changes nothing (an AnswerNow of kafkawire.handlers.table). Hot."""
    if not broker.config.group_version:
        return None
    # A refusal is recorded where it is answered.
    if peer.rights is not None and not peer.rights.may(
        Operation.READ, ResourceKind.GROUP, req.group_id
    ):
        return None
    client = Client(peer.client_id, f"/{peer.client_host}")
    answer = broker.groups.consumer_heartbeat_now(client, req)
    return None if answer is None else encode(answer, version)


async def _find_refusal(ctx: RequestContext, req: ConsumerGroupHeartbeatRequest) -> ErrorCode:
    if not ctx.broker.config.group_version:
        return ErrorCode.UNSUPPORTED_VERSION
    if not ctx.may(Operation.READ, ResourceKind.GROUP, req.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if ctx.rights is not None:
        # Topics that match a pattern without this right are left out by the group.
        for name in dict.fromkeys(req.subscribed_topic_names or ()):
            if not ctx.may_topic(Operation.DESCRIBE, name):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await ctx.give_way()
    return ErrorCode.NONE


def _client_of(ctx: RequestContext) -> Client:
    client = client_of(ctx)
    if ctx.rights is None:
        return client
    return Client(
        client.id, client.host, lambda name: ctx.may_topic(Operation.DESCRIBE, name, logged=False)
    )
