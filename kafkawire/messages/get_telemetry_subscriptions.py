"""GetTelemetrySubscriptions (key 71): which metrics the broker wants from a client."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, uuid


@request(key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsRequest:
    """The client's instance id, zero at first (KIP-714)."""

    client_instance_id: uuid = ZERO_UUID
    unknown_tags: UnknownTags = None


@response(key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsResponse:
    """Metrics to send, the interval and the accepted compression types."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    client_instance_id: uuid = ZERO_UUID
    subscription_id: int32 = 0
    accepted_compression_types: list[int8] = []
    push_interval_ms: int32 = 0
    telemetry_max_bytes: int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = []
    unknown_tags: UnknownTags = None
