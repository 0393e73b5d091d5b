"""The settings that make a topic a schedule topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping

TARGET_TOPIC = "schedule.target.topic"
TARGET_HEADER = "schedule.target.header"


def is_schedule(configs: Mapping[str, str]) -> bool:
    """Return whether these settings of a topic, its own, make it a schedule topic."""
    return bool(configs.get(TARGET_TOPIC) or configs.get(TARGET_HEADER))
