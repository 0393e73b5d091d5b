"""RenewDelegationToken: a delegation token stays valid for longer (KIP-48)."""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import change_end
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
    code, expires_ms = await change_end(
        ctx,
        req.hmac,
        lambda tokens: tokens.renew(req.hmac, ctx.principal, req.renew_period_ms),
        "delegation token renewed",
    )
    return RenewDelegationTokenResponse(code, expires_ms)
