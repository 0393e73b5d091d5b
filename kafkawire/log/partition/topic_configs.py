"""The typed settings of topics: one object for all topics without settings of their own.

Pure; kafkawire.log.partition.loader owns one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig, resolve_topic
from kafkawire.codec.configs.tier_rules import COPY_DISABLE, ENABLE
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import Catalog, TopicInfo

# The lag of internal topics: the least `tiering.max.lag.ms` of any tiered topic.
#
# After the loss of a disk, records in the remote tier are worth little without the offsets that
# groups committed for them. So the limit that a topic sets for its records applies to
# `__consumer_offsets` too. Only topics that set a lag of their own are tracked; all others have the
# broker's, as internal topics do. Pure.

LAG = "tiering.max.lag.ms"


class TierLags:
    """The smallest `tiering.max.lag.ms` of all tiered topics. `least_ms`: None if no tiered topic
    has a lag of its own."""

    __slots__ = ("_own", "least_ms")

    def __init__(self, catalog: Catalog) -> None:
        self._own: dict[bytes, int] = {}
        self.least_ms: int | None = None
        for topic_id, settings in catalog.list_configured():
            if LAG in settings:
                self.put(catalog.by_id[topic_id])

    def put(self, info: TopicInfo) -> bool:
        """Note a topic that is new or has changed settings; return whether the least lag
        changed."""
        lag_ms = None if info.internal else _lag_ms(info.configs)
        return self._set(info.id, lag_ms)

    def remove_topic(self, topic_id: bytes) -> bool:
        """Remove a deleted topic; return whether the least lag changed."""
        return self._set(topic_id, None)

    def _set(self, topic_id: bytes, lag_ms: int | None) -> bool:
        before, least = self._own.pop(topic_id, None), self.least_ms
        if lag_ms is not None:
            self._own[topic_id] = lag_ms
        # Only then all others matter.
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


TOPICS_PER_STEP = 20
"""Topics whose settings are computed per event-loop iteration: 40 us each."""


class TopicConfigs:
    """The settings objects of topics that have settings of their own and have been used. Internal
    topics have one each: their `tiering.max.lag.ms` is at most the least of any tiered topic."""

    def __init__(self, catalog: Catalog, broker: BrokerConfig) -> None:
        self._catalog = catalog
        self._broker = broker
        self._shared = resolve_topic({}, broker.texts)
        self._own: dict[bytes, TopicConfig] = {}
        self._internal: set[bytes] = set()
        self._lags = TierLags(catalog)

    def config_of_topic(self, topic_id: bytes) -> TopicConfig:
        own = self._own.get(topic_id)
        if own is not None:
            return own
        info = self._catalog.by_id.get(topic_id)
        if info is None or not (info.configs or info.internal):
            return self._shared
        own = self._own[topic_id] = resolve_topic(info.configs, self._broker.texts)
        if info.internal:
            self._internal.add(topic_id)
            self._cap(own)
        return own

    def topic_changed(self, info: TopicInfo, loaded: Iterable[Partition]) -> None:
        """Apply changed settings of a topic; `loaded` are its partitions in memory."""
        # In place: partitions hold this object, and see the change with the next record.
        own = self._own.get(info.id)
        if own is not None:
            self._update(info, own)
            return
        # Its first own setting: the partitions get an object of their own.
        config = self.config_of_topic(info.id)
        for partition in loaded:
            partition.config = config

    def broker_changed(self) -> Iterator[None]:
        """Apply changed defaults of the broker, in short steps."""
        self._shared.update({}, self._broker.texts)
        yield None
        for done, (topic_id, own) in enumerate(list(self._own.items()), 1):
            info = self._catalog.by_id.get(topic_id)
            if info is not None:
                self._update(info, own)
            if done % TOPICS_PER_STEP == 0:
                yield None

    def note_lags(self, infos: Iterable[TopicInfo]) -> list[TopicInfo]:
        """Note the lags of topics that are new or changed; return the internal topics in memory
        whose settings have changed by that."""
        return self._follow(any([self._lags.put(info) for info in infos]))

    def remove_topic(self, topic_id: bytes) -> list[TopicInfo]:
        """Remove a deleted topic; returns the same as `note_lags`."""
        self._own.pop(topic_id, None)
        self._internal.discard(topic_id)
        return self._follow(self._lags.remove_topic(topic_id))

    def _follow(self, changed: bool) -> list[TopicInfo]:
        infos = [self._catalog.by_id.get(each) for each in self._internal] if changed else []
        found = [info for info in infos if info is not None]
        for info in found:
            self._update(info, self._own[info.id])
        return found

    def _update(self, info: TopicInfo, own: TopicConfig) -> None:
        own.update(info.configs, self._broker.texts)
        if info.internal:
            self._cap(own)

    def _cap(self, config: TopicConfig) -> None:
        if self._lags.least_ms is not None:
            config.tier_lag_ms = min(config.tier_lag_ms, self._lags.least_ms)
