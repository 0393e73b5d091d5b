"""SaslHandshake (key 17): a client names its SASL mechanism."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import int16


@request(key=17, versions=(0, 1), flexible_from=None)
class SaslHandshakeRequest:
    """The mechanism. After v0 raw tokens follow, after v1 SaslAuthenticate."""

    mechanism: str = ""


@response(key=17, versions=(0, 1), flexible_from=None)
class SaslHandshakeResponse:
    """An error, and the mechanisms that are enabled."""

    error_code: int16 = 0
    mechanisms: list[str] = []
