"""RenewDelegationToken: a delegation token stays valid for longer (KIP-48)."""

from __future__ import annotations

from kafkawire.codec.errors import KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import NO_TIME, check_client, tokens_of
from kafkawire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def renew_delegation_token(
    ctx: RequestContext, req: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """RenewDelegationToken v1-2.

    v2 flexible. Allowed to the owner and the renewers of a token, as in Kafka.
    """
    try:
        check_client(ctx)
    except KafkaError as refused:
        return RenewDelegationTokenResponse(refused.code, NO_TIME)
    try:
        tokens = tokens_of(ctx)
        token = tokens.token_of(req.hmac)
        expires_ms = await tokens.renew(req.hmac, ctx.principal, req.renew_period_ms)
    except KafkaError as refused:
        return RenewDelegationTokenResponse(refused.code)
    ctx.broker.security.audit.changed(
        ctx.caller, "delegation token renewed", token=token.id, owner=str(token.owner)
    )
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
