"""The file of settings with which commands reach a broker: --command-config."""

from __future__ import annotations

from contextvars import ContextVar

COMMAND_CONFIG_OPTION = "--command-config"
COMMAND_CONFIG: ContextVar[str] = ContextVar("command_config", default="")
"""The path of the file, set before each command; empty: there is none."""
