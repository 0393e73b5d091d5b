"""ExpireDelegationToken: a delegation token ends earlier, or at once (KIP-48)."""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import change_end
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
    code, expires_ms = await change_end(
        ctx,
        req.hmac,
        lambda tokens: tokens.expire(req.hmac, ctx.principal, req.expiry_time_period_ms),
        "delegation token expired",
    )
    return ExpireDelegationTokenResponse(code, expires_ms)
