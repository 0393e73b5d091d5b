"""Settings as DescribeConfigs shows them: value, where it comes from, and its defaults.

Pure: converts the layers of settings to entries. The handler selects the resource and encodes
entries. The order of synonyms is Kafka's (ConfigHelper.configSynonyms): this broker, the cluster,
the command line, the default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from kafkawire.broker.overrides import Layers
from kafkawire.codec.configs.client_metrics_rows import CLIENT_METRICS_CONFIGS
from kafkawire.codec.configs.listeners import default_name, listener_row
from kafkawire.codec.configs.pending import pending_row
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    Config,
    ConfigType,
    broker_names,
    text_of,
    topic_default,
    validate,
)
from kafkawire.codec.configs.unsupported import foreign_row

# Kafka's static settings that are options of `kafkawire serve` here; admin tools read them.
_FIXED = {
    row.name: row
    for row in (
        Config(
            "advertised.listeners", ConfigType.LIST, None, "The addresses that clients connect to."
        ),
        Config("broker.id", ConfigType.INT, None, "The number of this broker: node.id."),
        Config("log.dirs", ConfigType.LIST, None, "The data folder of this broker."),
    )
}


DECOMPRESSED = "max.decompressed.message.bytes"
"""An internal setting of Kafka: listed only where it is set."""


class ConfigSource(IntEnum):
    """Sources of a value (Kafka: DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


MIN_INSYNC = "min.insync.replicas"


class Synonym(NamedTuple):
    """The value of one layer."""

    name: str
    text: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting of one resource."""

    name: str
    text: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    about: str
    synonyms: list[Synonym]


def list_as_kafka(layers: Layers) -> Layers:
    """Return the layers as Kafka 4.1 and newer lists them: its controller stores the default of
    min.insync.replicas for all brokers (KIP-966)."""
    value = layers.static.get(MIN_INSYNC, text_of(BROKER_CONFIGS[MIN_INSYNC].default) or "")
    return layers._replace(of_cluster={MIN_INSYNC: value, **layers.of_cluster})


def topic_entries(
    overrides: Mapping[str, str], layers: Layers, names: Collection[str] | None
) -> list[ConfigEntry]:
    """Return the settings of a topic with `overrides`; `names` None: all of them."""
    broker = layers.merge_settings()
    return [
        _topic_entry(row, overrides, layers, broker)
        for row in TOPIC_CONFIGS.values()
        if (names is None or row.name in names)
        and (row.name != DECOMPRESSED or row.name in overrides)
    ]


def _topic_entry(
    row: Config, overrides: Mapping[str, str], layers: Layers, broker: Mapping[str, str]
) -> ConfigEntry:
    synonyms = [synonym for name in broker_names(row) for synonym in _layers_of(name, layers)]
    synonyms.sort(key=lambda synonym: synonym.source)  # stable: finer units stay first
    if row.name in overrides:
        text: str | None = overrides[row.name]
        synonyms.insert(0, Synonym(row.name, _hide_password(row, text), ConfigSource.TOPIC))
    else:
        text = text_of(topic_default(row, broker))
    return _entry(row, text, synonyms, read_only=not row.dynamic)


def group_entries(
    overrides: Mapping[str, str], layers: Layers, names: Collection[str] | None
) -> list[ConfigEntry]:
    """Return the settings of a group with `overrides`, as they are stored; `names` None: all of
    them. The effective value can differ: see kafkawire.codec.configs.group_config."""
    entries = []
    for row in GROUP_CONFIGS.values():
        if names is not None and row.name not in names:
            continue
        # Some have no default in the broker's settings.
        synonyms = list(_layers_of(row.broker_name, layers)) if row.broker_name else []
        if row.name in overrides:
            own: str | None = overrides[row.name]
            if row.type is ConfigType.LIST:  # Kafka shows it without spaces
                own = text_of(validate(row, overrides[row.name]))
            synonyms.insert(0, Synonym(row.name, own, ConfigSource.GROUP))
        text = synonyms[0].text if synonyms else text_of(row.default)
        entries.append(_entry(row, text, synonyms, read_only=False))
    return entries


def client_metrics_entries(
    overrides: Mapping[str, str], names: Collection[str] | None
) -> list[ConfigEntry]:
    """Return the settings of a client metrics subscription with `overrides`, which need not exist;
    `names` None: all of them. As in Kafka a default is not a synonym."""
    entries = []
    for row in CLIENT_METRICS_CONFIGS.values():
        if names is None or row.name in names:
            text = text_of(row.default)
            synonyms: list[Synonym] = []
            if row.name in overrides:  # parsed: Kafka shows it without spaces
                text = text_of(validate(row, overrides[row.name]))
                synonyms = [Synonym(row.name, text, ConfigSource.CLIENT_METRICS)]
            entries.append(_entry(row, text, synonyms, read_only=False))
    return entries


def broker_entries(
    layers: Layers, names: Collection[str] | None, fixed: Mapping[str, str]
) -> list[ConfigEntry]:
    """Return the settings of this broker: the effective ones, `fixed` ones (by name) decided at
    start, those of single listeners, and unknown ones that a client has set."""
    entries = [
        _entry(row, text, [Synonym(row.name, text, ConfigSource.STATIC_BROKER)], read_only=True)
        for row, text in ((_FIXED[name], text) for name, text in fixed.items())
        if names is None or row.name in names
    ]
    for row in BROKER_CONFIGS.values():
        if names is not None and row.name not in names:
            continue
        synonyms = list(_layers_of(row.name, layers))
        if row.name == DECOMPRESSED and synonyms[0].source is ConfigSource.DEFAULT:
            continue
        text = synonyms[0].text if synonyms else text_of(row.default)
        entries.append(_entry(row, text, synonyms, read_only=not row.dynamic))
    more = dict.fromkeys((*layers.of_broker, *layers.of_cluster, *layers.static))
    for name in more:
        if name not in BROKER_CONFIGS and (names is None or name in names):
            row, synonyms = _row(name), list(_layers_of(name, layers))
            entries.append(_entry(row, synonyms[0].text, synonyms, read_only=not row.dynamic))
    return entries


def cluster_entries(layers: Layers, names: Collection[str] | None) -> list[ConfigEntry]:
    """Return the settings of all brokers at run time; as in Kafka only those that are set."""
    entries = []
    for name, text in layers.of_cluster.items():
        if names is None or name in names:
            row = _row(name)
            synonyms = [
                Synonym(name, _hide_password(row, text), ConfigSource.DYNAMIC_DEFAULT_BROKER)
            ]
            entries.append(_entry(row, text, synonyms, read_only=not row.dynamic))
    return entries


def _row(name: str) -> Config:
    row = BROKER_CONFIGS.get(name) or listener_row(name) or pending_row(name)
    return row or foreign_row(name)


def _layers_of(name: str, layers: Layers) -> Iterator[Synonym]:
    row, default = _row(name), default_name(name)
    for texts, source in (
        (layers.of_broker, ConfigSource.DYNAMIC_BROKER),
        (layers.of_cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (layers.static, ConfigSource.STATIC_BROKER),
    ):
        for each in dict.fromkeys((name, default)):
            if each in texts:
                yield Synonym(each, _hide_password(row, texts[each]), source)
    if row.default is not None:
        yield Synonym(default, _hide_password(row, text_of(row.default)), ConfigSource.DEFAULT)


def _entry(
    row: Config, text: str | None, synonyms: list[Synonym], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        row.name,
        _hide_password(row, text),
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only,
        _sensitive(row),
        row.type,
        row.about,
        synonyms,
    )


def _sensitive(row: Config) -> bool:
    """Return whether a setting is a secret; as in Kafka, one of unknown type is."""
    return row.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)


def _hide_password(row: Config, text: str | None) -> str | None:
    """Return the value to show; passwords are hidden in every layer."""
    return None if _sensitive(row) else text
