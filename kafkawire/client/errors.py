"""What goes wrong between a client and a broker: each a sentence."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode


class ClientError(Exception):
    """It did not work; the text is one sentence."""


class Closed(ClientError):
    """The broker closed the connection instead of answering, or it broke."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        known = ErrorCode(code) if code in set(ErrorCode) else None
        name = known.name if known is not None else f"error {code}"
        sentence = message or (known.sentence if known is not None else "an unknown error.")
        super().__init__(f"{what}: the broker answered {name}: {sentence}")
        self.code = code


def check(what: str, code: int, message: str | None = None) -> None:
    """BrokerError unless `code` is 0."""
    if code:
        raise BrokerError(what, code, message)
