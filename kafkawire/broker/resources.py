"""Settings as DescribeConfigs shows them: value, where it comes from, and what stands behind it.

Pure: from the layers of settings to entries; which resource was asked for and how an entry looks
on the wire is the handler's. The order of synonyms is Kafka's (ConfigHelper.configSynonyms):
this broker, the cluster, the command line, the default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from kafkawire.broker.overrides import Layers
from kafkawire.codec.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    Config,
    ConfigType,
    broker_names,
    text_of,
    topic_default,
)


class Source(IntEnum):
    """Where a value comes from (Kafka: DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class Synonym(NamedTuple):
    """One layer a value could have come from."""

    name: str
    text: str | None
    source: Source


class Entry(NamedTuple):
    """One setting of one resource."""

    name: str
    text: str | None
    source: Source
    read_only: bool
    sensitive: bool
    type: ConfigType
    about: str
    synonyms: list[Synonym]


def topic_entries(
    overrides: Mapping[str, str], layers: Layers, names: Collection[str] | None
) -> list[Entry]:
    """The settings of a topic that has `overrides`; `names` None: all of them."""
    broker = layers.merged()
    return [
        _topic_entry(row, overrides, layers, broker)
        for row in TOPIC_CONFIGS.values()
        if names is None or row.name in names
    ]


def _topic_entry(
    row: Config, overrides: Mapping[str, str], layers: Layers, broker: Mapping[str, str]
) -> Entry:
    synonyms = [synonym for name in broker_names(row) for synonym in _layers_of(name, layers)]
    synonyms.sort(key=lambda synonym: synonym.source)  # stable: finer units stay in front
    if row.name in overrides:
        text: str | None = overrides[row.name]
        synonyms.insert(0, Synonym(row.name, _shown(row, text), Source.TOPIC))
    else:
        text = text_of(topic_default(row, broker))
    return _entry(row, text, synonyms, read_only=False)


def broker_entries(layers: Layers, names: Collection[str] | None) -> list[Entry]:
    """The settings in force on this broker."""
    entries = []
    for row in BROKER_CONFIGS.values():
        if names is not None and row.name not in names:
            continue
        synonyms = list(_layers_of(row.name, layers))
        text = synonyms[0].text if synonyms else text_of(row.default)
        entries.append(_entry(row, text, synonyms, read_only=not row.dynamic))
    return entries


def cluster_entries(layers: Layers, names: Collection[str] | None) -> list[Entry]:
    """The settings given to all brokers at run time; Kafka shows only those that are set."""
    entries = []
    for name, text in layers.of_cluster.items():
        row = BROKER_CONFIGS.get(name)
        if row is not None and (names is None or name in names):
            synonyms = [Synonym(name, _shown(row, text), Source.DYNAMIC_DEFAULT_BROKER)]
            entries.append(_entry(row, text, synonyms, read_only=not row.dynamic))
    return entries


def _layers_of(name: str, layers: Layers) -> Iterator[Synonym]:
    row = BROKER_CONFIGS[name]
    for texts, source in (
        (layers.of_broker, Source.DYNAMIC_BROKER),
        (layers.of_cluster, Source.DYNAMIC_DEFAULT_BROKER),
        (layers.static, Source.STATIC_BROKER),
    ):
        if name in texts:
            yield Synonym(name, _shown(row, texts[name]), source)
    if row.default is not None:
        yield Synonym(name, _shown(row, text_of(row.default)), Source.DEFAULT)


def _entry(row: Config, text: str | None, synonyms: list[Synonym], *, read_only: bool) -> Entry:
    return Entry(
        row.name,
        _shown(row, text),
        synonyms[0].source if synonyms else Source.DEFAULT,
        read_only,
        _sensitive(row),
        row.type,
        row.about,
        synonyms,
    )


def _sensitive(row: Config) -> bool:
    return row.type is ConfigType.PASSWORD


def _shown(row: Config, text: str | None) -> str | None:
    """A password is never shown, wherever it stands."""
    return None if _sensitive(row) else text
