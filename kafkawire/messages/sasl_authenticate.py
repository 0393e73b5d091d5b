"""SaslAuthenticate (key 36): one step of a SASL exchange."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since
from kafkawire.codec.types import UnknownTags, int16, int64


@request(key=36, versions=(0, 2), flexible_from=2)
class SaslAuthenticateRequest:
    """Bytes of the mechanism."""

    auth_bytes: bytes = b""
    unknown_tags: UnknownTags = None


@response(key=36, versions=(0, 2), flexible_from=2)
class SaslAuthenticateResponse:
    """Bytes of the mechanism. v1 adds how long the session lasts (KIP-368)."""

    error_code: int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: Annotated[int64, since(1)] = 0
    unknown_tags: UnknownTags = None
