"""PushTelemetry: a client delivers its metrics (KIP-714)."""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.get_telemetry_subscriptions import pusher_of
from kafkawire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kafkawire.telemetry.instances import TelemetryPush


async def push_telemetry(ctx: RequestContext, req: PushTelemetryRequest) -> PushTelemetryResponse:
    """PushTelemetry v0.

    The latencies of the client in it are shown on the metrics page until its next push; other
    metrics are ignored. Errors in Kafka's order: INVALID_REQUEST for a reserved instance id or
    after the client's last push, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID,
    UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, INVALID_RECORD.
    """
    push = TelemetryPush(
        req.client_instance_id,
        req.subscription_id,
        req.terminating,
        req.compression_type,
        bytes(req.metrics),
    )
    error = await ctx.broker.telemetry.accept(pusher_of(ctx), push)
    return PushTelemetryResponse(error_code=error)
