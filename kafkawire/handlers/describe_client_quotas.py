"""DescribeClientQuotas: the quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Generator

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kafkawire.security.acls.model import Operation
from kafkawire.security.quotas.alterations import ENTITY_TYPES, IP
from kafkawire.security.quotas.rules import Component

EXACT, DEFAULT, SPECIFIED = range(3)  # DescribeClientQuotasRequest's match types
_MATCHES = {EXACT: "EXACT", DEFAULT: "DEFAULT", SPECIFIED: "SPECIFIED"}


async def describe_client_quotas(
    ctx: RequestContext, req: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas v0-1.

    v1 flexible. The filter is checked as in Kafka (ClientQuotasImage.describe).
    """
    if not ctx.may_cluster(Operation.DESCRIBE_CONFIGS):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeClientQuotasResponse(
            error_code=code, error_message=code.sentence, entries=None
        )
    try:
        await ctx.broker.env.slices.run(_check(req.components))
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    response = DescribeClientQuotasResponse()
    assert response.entries is not None
    wanted = (
        Component(each.entity_type, each.match_type != SPECIFIED, each.match)
        for each in req.components
    )
    for found in ctx.broker.quotas.rules.matches(wanted, strict=req.strict):
        if found is not None:
            entity, values = found
            response.entries.append(
                EntryData(
                    entity=[
                        EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                    ],
                    values=[ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
        await ctx.give_way()
    return response


def _check(components: list[ComponentData]) -> Generator[None, None, None]:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in seen:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        seen.add(kind)
        _check_match(component)
        yield None
    if IP in seen and len(seen) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )


def _check_match(component: ComponentData) -> None:
    match = _MATCHES.get(component.match_type)
    if match is None:
        raise _invalid(f"Unknown match type {component.match_type}")
    if component.match is None and component.match_type == EXACT:
        raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if component.match is not None and component.match_type != EXACT:
        raise _invalid(f"Request specified MATCH_TYPE_{match}, but also specified a match string.")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
