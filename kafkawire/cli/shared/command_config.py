"""The file of settings with which commands reach a broker: --command-config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar

COMMAND_CONFIG_OPTION = "--command-config"
COMMAND_CONFIG: ContextVar[str] = ContextVar("command_config", default="")
"""The path of the file, set before each command; empty: there is none."""


def without_command_config(words: Sequence[str]) -> Iterator[str]:
    """Take --command-config FILE, an option of `kafkawire`, where Kafka's tools have it, too: after
    the command. Yield the other words."""
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            yield word
            break
        if name != COMMAND_CONFIG_OPTION:
            yield word
        else:
            COMMAND_CONFIG.set(value if equals else next(left, ""))
    yield from left
