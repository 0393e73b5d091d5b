"""ApiVersions v0-5: which versions of which APIs are served, computed from the table.

v1 throttle; v3 is flexible and names the client's software; v4 allows features whose minimum is
0; v5 names the cluster and broker that the client means to reach (KIP-1242). The response header is
always v0, and an unsupported version is answered in v0 with UNSUPPORTED_VERSION and the row the
client needs for a retry (KIP-511), without parsing the request.

transaction.version is finalized at level 2 (KIP-890) unless UpdateFeatures changed it: clients that
know the level use the versions of Produce, EndTxn and TxnOffsetCommit that belong to it.

group.version is finalized at level 1 (KIP-848): Kafka's clients use the consumer group protocol if
the APIs are listed, which they are at each level.

share.version is finalized at level 2 (KIP-932, KIP-1191): share groups and their dead letters.
streams.version is finalized at level 1 (KIP-1071): streams groups.

Not done: the features of protocols that are not served (metadata.version and others).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kafkawire.codec.configs.features import FEATURES
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.table import ROWS, ApiRow
from kafkawire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from kafkawire.handlers.context import RequestContext

KEY = 18
TELEMETRY = (71, 72)
"""Listed only while there is a client metrics subscription: all clients use these APIs otherwise,
for nothing. Kafka lists them if it has a plugin that takes the metrics."""
FEATURES_FROM = 3
MINIMUM_ZERO_FROM = 4
"""Older clients fail on a supported feature whose minimum is 0 (KAFKA-17492)."""
IDENTITY_FROM = 5
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def api_versions(ctx: RequestContext, req: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return the rows and the features; INVALID_REQUEST if v3+ has no valid software name
    (KIP-511), REBOOTSTRAP_REQUIRED if v5 is meant for another broker."""
    if ctx.version >= 3 and not (
        _SOFTWARE.fullmatch(req.client_software_name)
        and _SOFTWARE.fullmatch(req.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if _is_misrouted(ctx, req):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    if ctx.version >= 3:
        ctx.software.set(req.client_software_name, req.client_software_version)
    hidden = () if ctx.broker.catalog.client_metrics else TELEMETRY
    rows = (row for row in ROWS if row.key not in hidden)
    response = ApiVersionsResponse(api_keys=[_version(row) for row in rows])
    if ctx.version >= FEATURES_FROM:
        features = ctx.broker.catalog.features
        response.finalized_features_epoch = features.epoch
        response.finalized_features = [
            FinalizedFeatureKey(name, level, level) for name, level in features.list_finalized()
        ]
    if ctx.version >= MINIMUM_ZERO_FROM:
        response.supported_features = [
            SupportedFeatureKey(each.name, each.minimum, each.maximum) for each in FEATURES.values()
        ]
    return response


def _is_misrouted(ctx: RequestContext, req: ApiVersionsRequest) -> bool:
    """Return whether a proxy, a load balancer or DNS has led a client to another broker than it
    means to reach. Before its first Metadata response it knows no cluster (KIP-1242)."""
    if ctx.version < IDENTITY_FROM or req.cluster_id is None:
        return False
    return (req.cluster_id, req.node_id) != (ctx.broker.cluster_id, ctx.broker.node_id)


def refuse_unsupported_version() -> ApiVersionsResponse:
    """The ApiVersions response to an unsupported version; encoded as v0 (KIP-511)."""
    rows = [_version(row) for row in ROWS if row.key == KEY]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=rows)


def _version(row: ApiRow) -> ApiVersion:
    least = row.min_version if row.advertised_min is None else row.advertised_min
    return ApiVersion(api_key=row.key, min_version=least, max_version=row.max_version)
