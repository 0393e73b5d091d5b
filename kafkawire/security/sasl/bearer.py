"""OAUTHBEARER (RFC 7628): a client logs in with a token of an issuer.

As in Kafka's OAuthBearerSaslServer: a refused token is answered without an error by a JSON object
with its status; the client acknowledges it with one byte 0x01, and only then the log-in fails. The
token itself is checked by `tokens.TokenValidator`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, TokenReply

OAUTHBEARER = "OAUTHBEARER"

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_CLIENT = re.compile(
    rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)")
_ACKNOWLEDGED = b"\x01"


class TokenRefused(Exception):
    """A token is not valid; `status` is one of RFC 7628, the text is for the log."""

    def __init__(self, cause: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(cause)
        self.status = status
        self.scope = scope


Validate = Callable[[str], Awaitable[LoggedIn]]
"""Return the log-in of a token, or raise TokenRefused."""


class Bearer:
    """One log-in with OAUTHBEARER."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self.user = ""  # a token that is refused names none
        self._refused: tuple[str, str] | None = None  # JSON for the client, cause for the log

    async def step(self, token: bytes) -> TokenReply:
        """Log the client in, or describe the refusal and fail after the acknowledgement."""
        if self._refused is not None:
            raise LoginFailure(*self._refused)
        authorization, text = _parse_message(token)
        try:
            logged_in = await self._validate(text)
        except TokenRefused as refused:
            found = {"status": refused.status}
            if refused.scope is not None:
                found["scope"] = refused.scope
            body = json.dumps(found, separators=(",", ":"))
            self._refused = body, str(refused)
            return TokenReply(body.encode())
        if authorization not in ("", logged_in.user):
            raise LoginFailure(
                f"Authentication failed: Client requested an authorization id ({authorization}) "
                f"that is different from the token's principal name ({logged_in.user})",
                "the authorization id is not the token's principal",
            )
        return TokenReply(b"", logged_in)


def _parse_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token."""
    if message == _ACKNOWLEDGED:
        raise LoginFailure(None, "an acknowledgement without a refused token")
    try:
        found = _CLIENT.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise LoginFailure(None, "a message that is not OAUTHBEARER's")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01")[:-1])
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise LoginFailure(None, "no bearer token")
    authorization = found["authorization"] or ""
    return authorization.replace("=2C", ",").replace("=3D", "="), auth["token"]
