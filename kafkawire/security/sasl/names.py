"""Names of users that would be confused with others in rules or in the log."""

from __future__ import annotations

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
