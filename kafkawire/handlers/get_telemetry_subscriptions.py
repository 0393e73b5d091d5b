"""GetTelemetrySubscriptions: which metrics a client is to push (KIP-714)."""

from __future__ import annotations

from kafkawire.codec.compression import OFFERED
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kafkawire.telemetry.service import Pusher
from kafkawire.telemetry.subscriptions import ClientDetails


async def get_telemetry_subscriptions(
    ctx: RequestContext, req: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """GetTelemetrySubscriptions v0.

    A client without an instance id gets one. No requested metrics means none, `*` all. ApiVersions
    lists this API and PushTelemetry while there is a client metrics subscription: Kafka lists them
    if a plugin takes the metrics. A request before the push interval is over gets
    THROTTLING_QUOTA_EXCEEDED.
    """
    granted = await ctx.broker.telemetry.grant(pusher_of(ctx), req.client_instance_id)
    if granted.error:
        return GetTelemetrySubscriptionsResponse(error_code=granted.error)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=granted.instance_id,
        subscription_id=granted.subscription_id,
        accepted_compression_types=list(OFFERED),
        push_interval_ms=granted.wanted.interval_ms,
        telemetry_max_bytes=ctx.broker.config.telemetry_max_bytes,
        delta_temporality=True,
        requested_metrics=list(granted.wanted.metrics),
    )


def pusher_of(ctx: RequestContext) -> Pusher:
    """Return the client of a request."""
    software = ctx.software
    details = ClientDetails(
        client_instance_id="",
        client_id=ctx.client_id,
        client_software_name=software.name,
        client_software_version=software.version,
        client_source_address=ctx.client_host,
        client_source_port=str(ctx.client_port),
    )
    return Pusher(details, ctx.is_gone)
