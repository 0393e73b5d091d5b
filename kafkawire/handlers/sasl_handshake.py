"""SaslHandshake: refused where it is not part of a log-in."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def sasl_handshake(_: RequestContext, __: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """SaslHandshake v0-1.

    On a listener without SASL, on a session without a limit, or within a second of the
    last time that one was begun again:
    ILLEGAL_SASL_STATE without mechanisms, as in Kafka. A log-in is served by
    `server.sasl_connection`.
    """
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
