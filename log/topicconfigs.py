"""The typed settings of topics: one object for all topics without settings of their own.

A partition holds the object of its topic, and a change is made in place, so that whoever holds it
sees it with the next record. A topic that gets its first own setting gets an object of its own,
and its partitions are given that. Pure; log.loader owns one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafkawire.codec.configs import BrokerConfig, TopicConfig, resolve_topic
from kafkawire.metadata.catalog import Catalog, TopicInfo
from log.partition import Partition

TOPICS_PER_STEP = 20
"""Topics whose settings are worked out before the loop gets its turn: 40 us each."""


class TopicConfigs:
    """Objects by topic, of those topics that have settings and have been asked for."""

    def __init__(self, catalog: Catalog, broker: BrokerConfig) -> None:
        self._catalog = catalog
        self._broker = broker
        self._shared = resolve_topic({}, broker.texts)
        self._own: dict[bytes, TopicConfig] = {}

    def of(self, topic_id: bytes) -> TopicConfig:
        """The object of a topic."""
        own = self._own.get(topic_id)
        if own is not None:
            return own
        info = self._catalog.by_id.get(topic_id)
        if info is None or not info.configs:
            return self._shared
        own = self._own[topic_id] = resolve_topic(info.configs, self._broker.texts)
        return own

    def topic_changed(self, info: TopicInfo, loaded: Iterable[Partition]) -> None:
        """A topic's settings are other ones; `loaded` are its partitions in memory."""
        own = self._own.get(info.id)
        if own is not None:
            own.update(info.configs, self._broker.texts)
            return
        config = self.of(info.id)
        for partition in loaded:
            partition.config = config

    def broker_changed(self) -> Iterator[None]:
        """The broker's defaults are other ones; a step is short."""
        self._shared.update({}, self._broker.texts)
        yield None
        for done, (topic_id, own) in enumerate(list(self._own.items()), 1):
            info = self._catalog.by_id.get(topic_id)
            if info is not None:
                own.update(info.configs, self._broker.texts)
            if done % TOPICS_PER_STEP == 0:
                yield None

    def forget(self, topic_id: bytes) -> None:
        """The topic is deleted."""
        self._own.pop(topic_id, None)
