"""Answers of a mechanism to a token of the client: another token, a log-in, or a failure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class LoggedIn(NamedTuple):
    """A completed log-in. `expires_ms`: when the credentials expire, in milliseconds since 1970;
    None: never. `by_token`: it is one with a delegation token of the user."""

    user: str
    expires_ms: int | None = None
    by_token: bool = False


class TokenReply(NamedTuple):
    """The token for the client, and the log-in that it completes."""

    token: bytes
    logged_in: LoggedIn | None = None


class LoginFailure(Exception):
    """A log-in is refused. The text is for the client; None: the general sentence of Kafka, which
    does not name the reason. `cause` is for the log, and contains no secret."""

    def __init__(self, text: str | None, cause: str) -> None:
        super().__init__(cause)
        self.text = text
        self.cause = cause


class Overloaded(Exception):
    """Too many log-ins wait for a thread: the connection is closed, and the client connects
    again."""


class Mechanism(Protocol):
    """The server's side of one log-in. `user`: the name that the client has given, if any yet."""

    @property
    def user(self) -> str: ...

    async def step(self, token: bytes) -> TokenReply:
        """Return the reply to a token. Raises LoginFailure or Overloaded."""
