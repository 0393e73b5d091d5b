"""Rules of the settings of view topics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.row import Value

VIEW_SOURCE = "view.source.topic"
VIEW_FILTER = "view.filter"


def check_view(values: Mapping[str, Value], before: Mapping[str, str] | None) -> None:
    """Raise ConfigError unless the settings of a view topic fit together; `before`: the settings of
    an existing topic, None for a new one."""
    source, text = str(values[VIEW_SOURCE]), str(values[VIEW_FILTER])
    if before is not None and source != before.get(VIEW_SOURCE, ""):
        why = "a topic is created as a view, and its source is fixed then; create another topic"
        raise ConfigError(VIEW_SOURCE, source, why)
    if text and not source:
        raise ConfigError(VIEW_FILTER, text, f"{VIEW_SOURCE} is not set, and it needs that")
