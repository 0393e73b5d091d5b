"""The lag of internal topics: the least `tiering.max.lag.ms` of any tiered topic.

After the loss of a disk, records in the remote tier are worth little without the offsets that
groups committed for them. So the limit that a topic sets for its records applies to
`__consumer_offsets` too. Only topics that set a lag of their own are tracked; all others have the
broker's, as internal topics do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.codec.configs.tier_rules import COPY_DISABLE, ENABLE
from kafkawire.metadata.catalog import Catalog, TopicInfo

LAG = "tiering.max.lag.ms"


class TierLags:
    """The smallest `tiering.max.lag.ms` of all tiered topics. `least_ms`: None if no tiered topic
    has a lag of its own."""

    __slots__ = ("_own", "least_ms")

    def __init__(self, catalog: Catalog) -> None:
        self._own: dict[bytes, int] = {}
        self.least_ms: int | None = None
        for topic_id, settings in catalog.configured():
            if LAG in settings:
                self.put(catalog.by_id[topic_id])

    def put(self, info: TopicInfo) -> bool:
        """Note a topic that is new or has changed settings; return whether the least lag
        changed."""
        lag_ms = None if info.internal else _lag_ms(info.configs)
        return self._set(info.id, lag_ms)

    def forget(self, topic_id: bytes) -> bool:
        """Forget a deleted topic; return whether the least lag changed."""
        return self._set(topic_id, None)

    def _set(self, topic_id: bytes, lag_ms: int | None) -> bool:
        before, least = self._own.pop(topic_id, None), self.least_ms
        if lag_ms is not None:
            self._own[topic_id] = lag_ms
        if before is not None and before == least:
            self.least_ms = min(self._own.values(), default=None)
        elif lag_ms is not None:
            self.least_ms = lag_ms if least is None else min(least, lag_ms)
        return self.least_ms != least


def _lag_ms(settings: Mapping[str, str]) -> int | None:
    """Return the lag that a topic's own settings set, None if it is not uploaded or sets none."""
    if LAG not in settings or settings.get(COPY_DISABLE, "").strip().lower() == "true":
        return None
    if settings.get(ENABLE, "").strip().lower() == "false":
        return None
    return int(settings[LAG])
