"""Settings of share groups."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.configs.group_config import ShareGroupSettings

DEFAULTS = ShareGroupSettings(45_000, 5_000, 1_000, 30_000, 5, 2_000)


def share_settings(**changed: Any) -> ShareGroupSettings:
    """The defaults, with changes."""
    return DEFAULTS._replace(**changed)
