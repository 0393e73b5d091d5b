"""Who may use the APIs of delegation tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.security.principals import Principal, TokenPrincipal, Unidentified
from kafkawire.security.sasl.delegation import DelegationTokens

NO_TIME = -1
"""A time in the response to a refused request."""


class NamedPrincipal(Protocol):
    """A principal in a request."""

    principal_type: str
    principal_name: str


def check_client(ctx: RequestContext) -> None:
    """Raise KafkaError unless the client has logged in, or has a certificate, and not with a token:
    a token must not create others, which would outlive it."""
    if isinstance(ctx.principal, Unidentified | TokenPrincipal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def tokens_of(ctx: RequestContext) -> DelegationTokens:
    """Return the tokens of the broker. Raises KafkaError if there are none."""
    tokens = ctx.broker.security.tokens
    if tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return tokens


def principals_of(items: Iterable[NamedPrincipal]) -> Iterable[Principal]:
    """Yield the principals in a request."""
    return (Principal(each.principal_type, each.principal_name) for each in items)


async def change_end(
    ctx: RequestContext,
    hmac: bytes,
    change: Callable[[DelegationTokens], Awaitable[int]],
    event: str,
) -> tuple[int, int]:
    """Change when a token ends, and write `event` into the audit log; return the error code and the
    new end."""
    try:
        check_client(ctx)
    except KafkaError as refused:
        return refused.code, NO_TIME
    try:
        tokens = tokens_of(ctx)
        token = tokens.token_of(hmac)
        expires_ms = await change(tokens)
    except KafkaError as refused:
        return refused.code, 0
    ctx.broker.security.audit.record_change(
        ctx.caller, event, token=token.id, owner=str(token.owner)
    )
    await ctx.broker.security.wait_until_enforced()
    return ErrorCode.NONE, expires_ms
