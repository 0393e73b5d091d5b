"""PLAIN (RFC 4616): user and password in one token, checked as Kafka's PlainSaslServer does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, TokenReply

PLAIN = "PLAIN"
_TOKENS = 3
_REFUSED = "Authentication failed: Invalid username or password"

Verify = Callable[[str, str], Awaitable[bool]]
"""Return whether this user has this password."""


class Plain:
    """One log-in with PLAIN. `verify` must take the same time for unknown users."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self.user = ""

    async def step(self, token: bytes) -> TokenReply:
        """Log the client in, or raise LoginFailure."""
        authorization, user, password = _parts(token)
        self.user = user
        if not user:
            raise LoginFailure("Authentication failed: username not specified", "no user name")
        if not password:
            raise LoginFailure("Authentication failed: password not specified", "no password")
        if not await self._verify(user, password):
            raise LoginFailure(_REFUSED, "unknown user or wrong password")
        if authorization not in ("", user):
            raise LoginFailure(
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
                "the authorization id is not the user name",
            )
        return TokenReply(b"", LoggedIn(user))


def _parts(token: bytes) -> list[str]:
    try:
        parts = token.decode().split("\0", _TOKENS)
    except UnicodeDecodeError:
        raise LoginFailure(_REFUSED, "the token is not UTF-8") from None
    if len(parts) != _TOKENS:
        text = f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(parts)}"
        raise LoginFailure(text, f"a token with {len(parts)} parts")
    return parts
