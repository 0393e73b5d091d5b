"""CreateDelegationToken: a password that expires, for the workers of a client (KIP-48, KIP-373)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.delegation import NO_TIME, check_client, principals_of, tokens_of
from kafkawire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.security.principals import USER, Principal
from kafkawire.security.sasl.delegation import MAX_RENEWERS, DelegationToken


async def create_delegation_token(
    ctx: RequestContext, req: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """CreateDelegationToken v1-3.

    v2 flexible; v3 tokens for other owners. Refused in the order of Kafka's checks: a client
    without a log-in or with a token, one without rights for the owner, renewers that are no users,
    a broker without a secret key. Unlike in Kafka there may be 10,000 tokens, 1,000 of one
    requester, with 50 renewers each, and names are those that a log-in may have.
    """
    owner = ctx.principal
    if req.owner_principal_name:
        owner = Principal(req.owner_principal_type or "", req.owner_principal_name)
    try:
        _check(ctx, req, owner)
    except KafkaError as refused:
        return _response(ctx, owner, refused.code, NO_TIME)
    try:
        token = await _create(ctx, req, owner)
    except KafkaError as refused:
        return _response(ctx, owner, refused.code, 0)
    response = _response(ctx, owner, ErrorCode.NONE, token.issued_ms)
    response.expiry_timestamp_ms, response.max_timestamp_ms = token.expires_ms, token.max_ms
    response.token_id, response.hmac = token.id, tokens_of(ctx).secret_of(token.id)
    return response


def _check(ctx: RequestContext, req: CreateDelegationTokenRequest, owner: Principal) -> None:
    check_client(ctx)
    if owner != ctx.principal and not ctx.may(
        Operation.CREATE_TOKENS, ResourceKind.USER, str(owner)
    ):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(each.principal_type != USER for each in req.renewers[: MAX_RENEWERS + 1]):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)


async def _create(
    ctx: RequestContext, req: CreateDelegationTokenRequest, owner: Principal
) -> DelegationToken:
    tokens = tokens_of(ctx)
    renewers = tuple(principals_of(req.renewers[: MAX_RENEWERS + 1]))  # one more is refused
    token = await tokens.create(
        Principal(*owner), Principal(*ctx.principal), renewers, req.max_lifetime_ms
    )
    ctx.broker.security.audit.record_change(
        ctx.caller, "delegation token created", token=token.id, owner=str(token.owner)
    )
    await ctx.broker.security.wait_until_enforced()
    return token


def _response(
    ctx: RequestContext, owner: Principal, code: ErrorCode, time_ms: int
) -> CreateDelegationTokenResponse:
    """Return a response for a token that ends when it is issued."""
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=ctx.principal.kind,
        token_requester_principal_name=ctx.principal.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )
