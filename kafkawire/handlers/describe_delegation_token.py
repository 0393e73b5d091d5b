"""DescribeDelegationToken: the tokens of some owners (KIP-48, KIP-373)."""

from __future__ import annotations

from kafkawire.codec.errors import KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import check_client, principals_of, tokens_of
from kafkawire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.security.sasl.delegation import DelegationToken


async def describe_delegation_token(
    ctx: RequestContext, req: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """DescribeDelegationToken v1-3.

    v2 flexible; v3 the requester of each token. Without a list of owners all tokens, with an empty
    one none. Those that the client neither owns, requested nor may renew need rights, and are left
    out without them, as in Kafka. Expired tokens are shown until they are deleted.
    """
    try:
        check_client(ctx)
        tokens = tokens_of(ctx)
    except KafkaError as refused:
        return DescribeDelegationTokenResponse(refused.code)
    response = DescribeDelegationTokenResponse()
    if req.owners is not None and not req.owners:
        return response
    owners = await ctx.count_keys(principals_of(req.owners or ()))
    for token in tokens.tokens:
        if (not owners or token.concerns(owners)) and _may_see(ctx, token):
            response.tokens.append(_describe_token(token, tokens.secret_of(token.id)))
        await ctx.give_way()
    await ctx.empty_slowly(owners)
    return response


def _may_see(ctx: RequestContext, token: DelegationToken) -> bool:
    return (
        token.concerns((ctx.principal,))
        or ctx.may(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN, token.id, logged=False)
        or ctx.may(Operation.DESCRIBE_TOKENS, ResourceKind.USER, str(token.owner), logged=False)
    )


def _describe_token(token: DelegationToken, secret: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        *token.owner,
        *token.requester,
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.id,
        secret,
        [DescribedDelegationTokenRenewer(*each) for each in token.renewers],
    )
