"""SaslAuthenticate: refused where it is not part of a log-in."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


async def sasl_authenticate(
    _: RequestContext, __: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """SaslAuthenticate v0-2: ILLEGAL_SASL_STATE, as in Kafka; see `sasl_handshake`."""
    return SaslAuthenticateResponse(
        ErrorCode.ILLEGAL_SASL_STATE,
        "SaslAuthenticate request received after successful authentication",
    )
