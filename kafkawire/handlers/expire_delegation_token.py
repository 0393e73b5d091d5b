"""ExpireDelegationToken: a delegation token ends earlier, or at once (KIP-48)."""

from __future__ import annotations

from kafkawire.codec.errors import KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import NO_TIME, check_client, tokens_of
from kafkawire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


async def expire_delegation_token(
    ctx: RequestContext, req: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """ExpireDelegationToken v1-2.

    v2 flexible. Allowed to the owner and the renewers of a token, as in Kafka. A negative period
    deletes the token at once; open sessions stay until their end.
    """
    try:
        check_client(ctx)
    except KafkaError as refused:
        return ExpireDelegationTokenResponse(refused.code, NO_TIME)
    try:
        tokens = tokens_of(ctx)
        token = tokens.token_of(req.hmac)
        expires_ms = await tokens.expire(req.hmac, ctx.principal, req.expiry_time_period_ms)
    except KafkaError as refused:
        return ExpireDelegationTokenResponse(refused.code)
    ctx.broker.security.audit.changed(
        ctx.caller, "delegation token expired", token=token.id, owner=str(token.owner)
    )
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
