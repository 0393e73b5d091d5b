"""PushTelemetry (key 72): a client delivers metrics."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, uuid


@request(key=72, versions=(0, 0), flexible_from=0)
class PushTelemetryRequest:
    """OTLP metrics, perhaps compressed."""

    client_instance_id: uuid = ZERO_UUID
    subscription_id: int32 = 0
    terminating: bool = False
    compression_type: int8 = 0
    metrics: bytes = b""
    unknown_tags: UnknownTags = None


@response(key=72, versions=(0, 0), flexible_from=0)
class PushTelemetryResponse:
    """An error code."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None
