"""Rules for the settings of access rules. Pure."""

from __future__ import annotations

from kafkawire.codec.configs.parse import ConfigError


def super_users(text: str) -> frozenset[str]:
    """Read super.users: principals separated by ";", which a distinguished name does not contain.
    Raises ConfigError."""
    found = [each.strip() for each in text.split(";")]
    for each in found:
        if each and ":" not in each:
            raise ConfigError(
                "super.users", text, f'{each!r} has no colon; write User:NAME, separated by ";"'
            )
    return frozenset(filter(None, found))
