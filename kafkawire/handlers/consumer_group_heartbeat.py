"""ConsumerGroupHeartbeat v0-1: a member of a KIP-848 group joins, reports what it owns, or leaves.

v1 a subscription by pattern, and the member id is the client's (KIP-1082). The checks of a request
by itself are here, in Kafka's order (KafkaApis, GroupCoordinatorService); the group decides on the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.request import CONSUMER_HEARTBEAT, Client
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind

OWN_ID_FROM = 1
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
"""Epochs of a member that joins, leaves, or is static and will return."""


async def consumer_group_heartbeat(
    ctx: RequestContext, req: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Answer after the commit of what the heartbeat changes; at once if it changes nothing."""
    code = await _find_refusal(ctx, req)
    if code is not ErrorCode.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=int(code))
    try:
        check_heartbeat(req, ctx.version, ctx.broker.config.group_consumer_assignors)
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=int(error.code), error_message=error.message
        )
    answer = ctx.broker.groups.submit(CONSUMER_HEARTBEAT, _client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    return await answer


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


def check_heartbeat(
    req: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """Raise KafkaError, with Kafka's text, if the fields of a request do not fit together."""
    epoch = req.member_epoch
    if version >= OWN_ID_FROM or epoch > 0 or epoch == LEAVE:
        _check_not_blank(req.member_id, "MemberId")
    _check_not_blank(req.group_id, "GroupId")
    _check_not_blank(req.instance_id, "InstanceId")
    _check_not_blank(req.rack_id, "RackId")
    if epoch == JOIN:
        if req.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if req.topic_partitions is None or req.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if req.subscribed_topic_names is None and req.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == LEAVE_FOR_A_WHILE:
        if req.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    if req.server_assignor is not None and req.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {req.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _check_not_blank(text: str | None, field: str) -> None:
    # What Java's trim() leaves.
    if text is not None and not any(each > " " for each in text):
        raise _invalid(f"{field} can't be empty.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
