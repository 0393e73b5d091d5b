"""RenewDelegationToken (key 39): a delegation token lives longer."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=39, versions=(1, 2), flexible_from=2)
class RenewDelegationTokenRequest:
    """A token's secret, and for how much longer."""

    hmac: bytes = b""
    renew_period_ms: int64 = 0
    unknown_tags: UnknownTags = None


@response(key=39, versions=(1, 2), flexible_from=2)
class RenewDelegationTokenResponse:
    """When the token will end."""

    error_code: int16 = 0
    expiry_timestamp_ms: int64 = 0
    throttle_time_ms: int32 = 0
    unknown_tags: UnknownTags = None
