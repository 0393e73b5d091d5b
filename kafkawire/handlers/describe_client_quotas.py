"""DescribeClientQuotas: no client has a quota (KIP-546)."""

from __future__ import annotations

from collections.abc import Generator

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_ENTITY_TYPES = frozenset(("user", "client-id", "ip"))
EXACT, DEFAULT, SPECIFIED = range(3)  # DescribeClientQuotasRequest's match types


async def describe_client_quotas(
    ctx: RequestContext, req: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas v0-1.

    v1 flexible. The filter is checked as in Kafka (ClientQuotaCache); nothing ever matches it.
    Not done: quotas.
    """
    try:
        await ctx.broker.env.slices.run(_check(req.components))
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    return DescribeClientQuotasResponse(error_message=None)


def _check(components: list[ComponentData]) -> Generator[None, None, None]:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if kind not in _ENTITY_TYPES:
            code = ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST
            raise KafkaError(code, f"Unsupported entity type {kind}" if kind else "Invalid "
                             "empty entity type.")  # fmt: skip
        if kind in seen:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter.",
            )
        seen.add(kind)
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown match type {component.match_type}",
            )
        yield None
    if "ip" in seen and len(seen) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be "
            "used with user or clientId filter component.",
        )
