"""Principals: the names of clients in access rules, quotas and the audit log."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""The kind of every principal of Kafka's own mechanisms."""


class Principal(NamedTuple):
    """A client as it was identified, written "kind:name"; names are compared exactly."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class TokenPrincipal(Principal):
    """The owner of a delegation token with which a client has logged in: equal to the owner."""

    __slots__ = ()


class Unidentified(Principal):
    """A client without a log-in or a certificate: equal to a user of its name."""

    __slots__ = ()


ANONYMOUS: Principal = Unidentified(USER, "ANONYMOUS")
"""Every client without a log-in or a certificate, as in Kafka. A user may have that name, too."""


def parse_principal(text: str) -> Principal:
    """Read "kind:name", split at the first colon. Raises ValueError if there is none."""
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(
            f"Could not parse principal from `{text}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    return Principal(kind, name)


MAX_NAME = 255
"""Characters of a user name; Kafka's rules and quotas have no longer ones in practice."""


def check_name(name: str) -> None:
    """Raise ValueError, with one sentence, unless a user may have this name."""
    if not name:
        raise ValueError("a user name must not be empty")
    if name == "*":
        raise ValueError("a user must not be named *, which means every user in access rules")
    if len(name) > MAX_NAME:
        raise ValueError(f"a user name has at most {MAX_NAME} characters, not {len(name)}")
    if not name.isprintable():
        raise ValueError("a user name must not contain control characters")
