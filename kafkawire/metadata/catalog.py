"""The catalog: every topic, partition, broker and dynamic setting, as objects in memory.

Read by everybody above; changed by few: the topic service applies what a transaction of the
metadata store has made durable, in one step with the log, and the store itself enters brokers and
leader epochs. Each change raises `version`, so that answers cached as bytes know when they are
stale. Deleted topics are not in it. Pure; the rows behind it are in `tables.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TOPIC_RESOURCE = 2  # Kafka's ConfigResource.Type
BROKER_RESOURCE = 4
ALL_BROKERS = ""  # the name of the resource whose settings are the default of every broker


@dataclass(slots=True)
class PartitionInfo:
    """One partition. `number` is ours and never given again, `index` is Kafka's partition."""

    number: int
    index: int
    leader: int  # a node id
    leader_epoch: int


@dataclass(slots=True)
class TopicInfo:
    """One topic. `partitions[i].index == i`; `configs` are its own settings as texts."""

    id: bytes
    name: str
    internal: bool
    partitions: list[PartitionInfo]
    configs: dict[str, str]


@dataclass(slots=True)
class BrokerInfo:
    """One broker and where clients reach it: listener name -> (host, port)."""

    node_id: int
    listeners: dict[str, tuple[str, int]]
    rack: str | None


@dataclass(slots=True)
class NewTopic:
    """A topic to be made, already checked. `leaders[i]` leads partition i."""

    name: str
    leaders: list[int]
    configs: dict[str, str] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One dynamic setting of a topic (by name) or a broker (by number or ALL_BROKERS).

    `value` None takes the setting away.
    """

    resource_type: int
    name: str
    key: str
    value: str | None


@dataclass(slots=True)
class Catalog:
    """What exists. `by_name` and `by_id` hold the same TopicInfo objects."""

    cluster_id: str
    version: int = 0
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    by_name: dict[str, TopicInfo] = field(default_factory=dict)
    by_id: dict[bytes, TopicInfo] = field(default_factory=dict)
    broker_overrides: dict[str, dict[str, str]] = field(default_factory=dict)

    def broker_configs(self, node_id: int) -> dict[str, str]:
        """The dynamic settings of a broker: its own win over those of all brokers."""
        return {
            **self.broker_overrides.get(ALL_BROKERS, {}),
            **self.broker_overrides.get(str(node_id), {}),
        }

    def add_broker(self, info: BrokerInfo) -> None:
        """Enters a broker, or its new addresses."""
        self.brokers[info.node_id] = info
        self.version += 1

    def add_topic(self, info: TopicInfo) -> None:
        """Enters a new topic; its name must be free."""
        assert info.name not in self.by_name, info.name
        self.by_name[info.name] = info
        self.by_id[info.id] = info
        self.version += 1

    def remove_topic(self, topic_id: bytes) -> TopicInfo:
        """Takes a topic out and returns it."""
        info = self.by_id.pop(topic_id)
        del self.by_name[info.name]
        self.version += 1
        return info

    def add_partitions(self, topic_id: bytes, added: Iterable[PartitionInfo]) -> None:
        """Enters further partitions of a topic, in order of their index."""
        partitions = self.by_id[topic_id].partitions
        for partition in added:
            assert partition.index == len(partitions), partition
            partitions.append(partition)
        self.version += 1

    def apply_config(self, change: ConfigChange) -> None:
        """Enters a changed setting; of a topic that is gone: nothing."""
        if change.resource_type == TOPIC_RESOURCE:
            info = self.by_name.get(change.name)
            settings = {} if info is None else info.configs
        else:
            settings = self.broker_overrides.setdefault(change.name, {})
        if change.value is None:
            settings.pop(change.key, None)
        else:
            settings[change.key] = change.value
        self.version += 1

    def set_leader_epochs(self, epochs: Mapping[int, int]) -> None:
        """Enters new leader epochs (partition number -> epoch)."""
        for info in self.by_id.values():
            for partition in info.partitions:
                if partition.number in epochs:
                    partition.leader_epoch = epochs[partition.number]
        self.version += 1
