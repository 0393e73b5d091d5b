"""ListConfigResources: resources with settings (KIP-1142; v0 was ListClientMetricsResources)."""

from __future__ import annotations

from kafkawire.broker.overrides import ResourceType
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_KNOWN = frozenset(int(kind) for kind in ResourceType)


async def list_config_resources(
    ctx: RequestContext, req: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | list[Buffer]:
    """ListConfigResources v0-1.

    v0 lists client metrics subscriptions only; v1 takes resource types, none meaning all of them;
    an unknown type is UNSUPPORTED_VERSION. Groups are listed if they have settings of their own.
    """
    wanted = set(req.resource_types) or _KNOWN
    if ctx.version == 0:
        wanted = {ResourceType.CLIENT_METRICS}
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    catalog = ctx.broker.catalog
    brokers = [str(node_id) for node_id in catalog.brokers]
    names = {
        ResourceType.TOPIC: list(catalog.by_name),
        ResourceType.BROKER: brokers,
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.GROUP: list(catalog.group_overrides),
        ResourceType.CLIENT_METRICS: list(catalog.client_metrics),
    }
    listed = {kind: names[kind] for kind in ResourceType if kind in wanted}
    return await encode_list_in_slices(
        ctx.broker.env,
        ListConfigResourcesResponse(),
        ctx.version,
        ConfigResource,
        (
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, of_kind in listed.items()
            for name in of_kind
        ),
        sum(map(len, listed.values())),
    )
