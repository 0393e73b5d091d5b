"""Errors between a client and a broker; each text is one sentence."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode


class ClientError(Exception):
    """A request failed; the text is one sentence."""


class Closed(ClientError):
    """The connection failed, or the broker closed it instead of answering."""


class NoAnswer(ClientError):
    """The broker did not accept a connection, or did not answer in time."""


class Unsupported(ClientError):
    """The broker does not have a request; it was not sent."""


class UnknownBroker(ClientError):
    """The cluster's metadata names a broker, as a leader for example, that it does not list now:
    the broker is restarting, or the metadata is stale."""


class LoginRefused(ClientError):
    """The broker refused user and password; another attempt is refused, too."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        known = ErrorCode(code) if code in set(ErrorCode) else None
        name = known.name if known is not None else f"error {code}"
        sentence = message or (known.sentence if known is not None else "an unknown error.")
        super().__init__(f"{what}: the broker answered {name}: {sentence}")
        self.code = code


def check(what: str, code: int, message: str | None = None) -> None:
    """Raise BrokerError unless `code` is 0."""
    if code:
        raise BrokerError(what, code, message)
