"""GetTelemetrySubscriptions (key 71): GetTelemetrySubscriptions"""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, uuid


@request(key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsRequest:
    """GetTelemetrySubscriptionsRequest"""

    client_instance_id: uuid = ZERO_UUID
    unknown_tags: UnknownTags = None


@response(key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsResponse:
    """GetTelemetrySubscriptionsResponse"""

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
