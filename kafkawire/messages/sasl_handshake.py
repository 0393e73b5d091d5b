"""SaslHandshake (key 17): SaslHandshake"""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import int16


@request(key=17, versions=(0, 1), flexible_from=None)
class SaslHandshakeRequest:
    """SaslHandshakeRequest"""

    mechanism: str = ""


@response(key=17, versions=(0, 1), flexible_from=None)
class SaslHandshakeResponse:
    """SaslHandshakeResponse"""

    error_code: int16 = 0
    mechanisms: list[str] = []
