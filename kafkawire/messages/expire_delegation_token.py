"""ExpireDelegationToken (key 40): a delegation token ends sooner."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=40, versions=(1, 2), flexible_from=2)
class ExpireDelegationTokenRequest:
    """A token's secret, and when it ends; negative means now."""

    hmac: bytes = b""
    expiry_time_period_ms: int64 = 0
    unknown_tags: UnknownTags = None


@response(key=40, versions=(1, 2), flexible_from=2)
class ExpireDelegationTokenResponse:
    """When the token will end."""

    error_code: int16 = 0
    expiry_timestamp_ms: int64 = 0
    throttle_time_ms: int32 = 0
    unknown_tags: UnknownTags = None
