"""The catalog: every topic, partition, broker, dynamic setting and finalized feature, in memory.

Changed only by the methods here: the topic service applies durable transactions of the metadata
store, in one step with the log, and the store itself adds brokers and leader epochs. Topics are
stored in columns (`directory`); a TopicInfo is a snapshot of one. Each change raises `version`,
which invalidates cached responses. `stored_version` is the version in SQL up to which changes are
applied; another process may have made later ones. Deleted topics are not in it. Pure; `tables.py`
has the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from kafkawire.codec.configs.features import FinalizedFeatures
from kafkawire.codec.configs.view_rules import VIEW_SOURCE
from kafkawire.metadata.directory import (
    Directory,
    LeadGroup,
    Location,
    PartitionInfo,
    TopicFacts,
    TopicInfo,
)

__all__ = [
    "ALL_BROKERS",
    "BROKER_RESOURCE",
    "CLIENT_METRICS_RESOURCE",
    "DECOMMISSIONING",
    "GROUP_RESOURCE",
    "TOPIC_RESOURCE",
    "BrokerInfo",
    "Catalog",
    "ConfigChange",
    "LeadGroup",
    "Location",
    "NewTopic",
    "PartitionInfo",
    "TopicInfo",
    "Topics",
    "alike_key",
]

K = TypeVar("K")

TOPIC_RESOURCE = 2  # Kafka's ConfigResource.Type
BROKER_RESOURCE = 4
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
DECOMMISSIONING = "broker.decommissioning"  # the setting of a broker that is to leave
ALL_BROKERS = ""  # the name of the resource whose settings are the default of every broker


@dataclass(slots=True)
class BrokerInfo:
    """One broker and its client addresses: listener name -> (host, port). `epoch`: one more at each
    start of the broker; brokers with the same `folder` write to one data folder."""

    node_id: int
    listeners: dict[str, tuple[str, int]]
    rack: str | None
    epoch: int = field(default=0, compare=False)
    folder: str | None = None


@dataclass(slots=True)
class NewTopic:
    """A validated topic to be created. `leaders[i]` leads partition i."""

    name: str
    leaders: list[int]
    configs: dict[str, str] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One dynamic setting of a topic or group (by name) or a broker (by number or ALL_BROKERS).

    `value` None removes the setting.
    """

    resource_type: int
    name: str
    key: str
    value: str | None


class Replicas(NamedTuple):
    """Node ids of the replicas of what a broker leads, and of those in sync; the leader first."""

    every: list[int]
    in_sync: list[int]


class Catalog:
    """All topics and brokers. `by_name` and `by_id` create a TopicInfo on access; see `directory`.
    `partitions` are counted without iteration. `silent`: brokers that are registered, but not alive
    as far as this process knows; SQL does not have them. `moves`: numbers of partitions
    that are to be moved, and the node id of the broker that is to lead each. `address_changes`:
    when this process saw the last change of a broker's addresses, in seconds of its clock.
    `replicas`: by leader, of topics with durability=replicated, as they were read last.
    `group_overrides`: the settings of groups that have some, by group id. `client_metrics`: those
    of client metrics subscriptions, by name; `client_metrics_version` grows with each change."""

    __slots__ = (
        "_directory", "_dotted", "address_changes", "broker_overrides", "brokers", "by_id",
        "by_name", "client_metrics", "client_metrics_version", "cluster_id", "features",
        "group_overrides", "moves", "replicas", "silent", "stored_version", "version",
    )  # fmt: skip

    def __init__(
        self, cluster_id: str, version: int = 0, directory: Directory | None = None
    ) -> None:
        self.cluster_id = cluster_id
        self.version = version
        self.stored_version = version
        self.brokers: dict[int, BrokerInfo] = {}
        self.address_changes: dict[int, float] = {}
        self.silent: frozenset[int] = frozenset()
        self.moves: dict[int, int] = {}
        self.replicas: dict[int, Replicas] = {}
        self.broker_overrides: dict[str, dict[str, str]] = {}
        self.group_overrides: dict[str, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        self.client_metrics_version = 0
        self.features = FinalizedFeatures()
        self._directory = directory or Directory()
        self.by_name: Topics[str] = Topics(self._directory, self._directory.rows_by_name)
        self.by_id: Topics[bytes] = Topics(self._directory, self._directory.rows_by_id)
        # Names with a dot, by their form with underscores: see `alike`.
        self._dotted = {alike_key(name): name for name in self.by_name if "." in name}

    @property
    def partitions(self) -> int:
        """Total number of partitions."""
        return self._directory.partitions

    def broker_configs(self, node_id: int) -> dict[str, str]:
        """Return the dynamic settings of a broker: its own override those of all brokers."""
        return {
            **self.broker_overrides.get(ALL_BROKERS, {}),
            **self.broker_overrides.get(str(node_id), {}),
        }

    def is_decommissioned(self, node_id: int) -> bool:
        """Return whether a broker is to leave the cluster. Not by a default of all brokers: none
        would be left that can take anything."""
        own = self.broker_overrides.get(str(node_id), {})
        return own.get(DECOMMISSIONING, "").lower() == "true"

    def list_decommissioned(self) -> list[int]:
        """Return the brokers that are to leave the cluster, in order."""
        return [node for node in sorted(self.brokers) if self.is_decommissioned(node)]

    def alike(self, name: str) -> str | None:
        """Return a topic whose name differs from `name` only in '.' and '_', if there is one."""
        key = alike_key(name)
        if key in self.by_name and key != name:
            return key
        other = self._dotted.get(key)
        return other if other != name else None

    def locate(self, number: int) -> Location | None:
        """Return the topic and index of a partition number; None if it does not exist."""
        return self._directory.locate(number)

    def name_of(self, number: int) -> str:
        """Return the name of a partition, as `topic-0`; its number if it does not exist."""
        found = self._directory.locate(number)
        return f"partition {number}" if found is None else f"{found.topic}-{found.index}"

    def leader_of(self, number: int) -> int | None:
        """Return the leader of a partition; None if it does not exist."""
        found = self._directory.locate(number)
        return None if found is None else found.leader

    def epoch_of(self, number: int) -> int | None:
        """Return the leader epoch of a partition; None if it does not exist."""
        found = self._directory.locate(number)
        return None if found is None else found.leader_epoch

    def last_number(self) -> int:
        """Return the greatest partition number."""
        return self._directory.last_number()

    def topic_revision(self) -> tuple[int, int]:
        """Return what differs after each creation and deletion of a topic, and when partitions are
        added."""
        return self._directory.changes, self._directory.partitions

    def topic_id(self, name: str) -> bytes | None:
        """Return the id of a topic, at constant cost; None if it does not exist."""
        row = self._directory.rows_by_name.get(name)
        return None if row is None else self._directory.id_of(row)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of a topic, at constant cost; None if it does not exist."""
        row = self._directory.rows_by_id.get(topic_id)
        return None if row is None else self._directory.name_of(row)

    def topic_size(self, name: str) -> int | None:
        """Return the number of partitions of a topic, for a view topic of its source; None if it
        does not exist."""
        size = self.by_name.size_of(name)
        if size == 0:
            return self._directory.size_of_source(self._directory.rows_by_name[name])
        return size

    def with_source(self, info: TopicInfo | None) -> TopicInfo | None:
        """Return a topic as its readers see it: a view topic has no partitions, and gets those of
        its source. None if that does not exist."""
        if info is None or info.partitions:
            return info
        source = self.by_name.get(info.configs.get(VIEW_SOURCE, ""))
        if source is None or not source.partitions:
            return None
        return replace(info, partitions=source.partitions)

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._directory.rows_by_name)

    def add_broker(self, info: BrokerInfo) -> None:
        """Add a broker, or update its addresses."""
        self.brokers[info.node_id] = info
        self.version += 1

    def update_broker(self, info: BrokerInfo, now_s: float) -> None:
        """Replace what is known of a broker, and note whether its addresses have changed."""
        known = self.brokers.get(info.node_id)
        if known is not None and known.listeners != info.listeners:
            self.address_changes[info.node_id] = now_s
        self.add_broker(info)

    def remove_broker(self, node_id: int) -> None:
        """Remove a broker that leads nothing."""
        self.brokers.pop(node_id, None)
        self.address_changes.pop(node_id, None)
        self.version += 1

    def living_others(self, node_id: int) -> set[int]:
        """Return the brokers that are alive, without one of them."""
        return self.brokers.keys() - self.silent - {node_id}

    def set_silent(self, nodes: frozenset[int]) -> None:
        """Set which brokers are not alive."""
        self.silent = nodes
        self.version += 1

    def set_replicas(self, replicas: dict[int, Replicas]) -> None:
        """Set the replicas of what each broker leads."""
        self.replicas = replicas
        self.version += 1

    def add_topic(self, info: TopicInfo) -> None:
        """Add a new topic; its name must be free."""
        assert info.name not in self.by_name, info.name
        self._directory.add(info)
        if "." in info.name:
            self._dotted[alike_key(info.name)] = info.name
        self.version += 1

    def remove_topic(self, topic_id: bytes) -> TopicInfo:
        """Remove and return a topic. KeyError if it does not exist."""
        info = self._directory.remove(self._directory.rows_by_id[topic_id])
        if "." in info.name:
            self._dotted.pop(alike_key(info.name), None)
        if self.moves:
            for partition in info.partitions:
                self.moves.pop(partition.number, None)
        self.version += 1
        return info

    def add_partitions(self, topic_id: bytes, added: Sequence[PartitionInfo]) -> None:
        """Add partitions of a topic, in index order."""
        row = self._directory.rows_by_id[topic_id]
        have = self._directory.partition_count(row)
        assert [info.index for info in added] == list(range(have, have + len(added))), added
        self._directory.add_partitions(row, added)
        self.version += 1

    def overrides_of(self, resource_type: int) -> dict[str, dict[str, str]]:
        """Return the settings of all resources of a type other than topics, by name."""
        if resource_type == GROUP_RESOURCE:
            return self.group_overrides
        if resource_type == CLIENT_METRICS_RESOURCE:
            return self.client_metrics
        return self.broker_overrides

    def apply_config(self, change: ConfigChange) -> None:
        """Apply a changed setting; no effect if its topic was deleted."""
        if change.resource_type == TOPIC_RESOURCE:
            row = self._directory.rows_by_name.get(change.name)
            if row is not None:
                self._directory.set_config(row, change.key, change.value)
        else:
            overrides = self.overrides_of(change.resource_type)
            settings = overrides.setdefault(change.name, {})
            if change.value is None:
                settings.pop(change.key, None)
            else:
                settings[change.key] = change.value
            if not settings and change.resource_type != BROKER_RESOURCE:
                del overrides[change.name]
            if change.resource_type == CLIENT_METRICS_RESOURCE:
                self.client_metrics_version += 1
        self.version += 1

    def finalize_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Apply new levels of features, stored under `epoch`."""
        self.features.finalize(levels, epoch)
        self.version += 1

    def set_leader_epochs(self, epochs: Mapping[int, int]) -> None:
        """Set new leader epochs (partition number -> epoch)."""
        self._directory.set_leader_epochs(epochs)
        self.version += 1

    def raise_leader_epochs(self, leader: int) -> None:
        """Increment the leader epoch of every partition that `leader` leads."""
        groups = [each for each in self._directory.groups() if each.leader == leader]
        self.set_groups([each._replace(epoch=each.epoch + 1) for each in groups])

    def groups(self) -> Sequence[LeadGroup]:
        """Return all lead groups."""
        return self._directory.groups()

    def group(self, group_id: int) -> LeadGroup | None:
        """Return a lead group; None if it does not exist."""
        return self._directory.group(group_id)

    def note_stored(self, version: int) -> None:
        """Note that a change made here has this version in SQL. If it is not the next one, another
        process made changes before it, which must be applied first."""
        if version == self.stored_version + 1:
            self.stored_version = version

    def note_version(self, version: int) -> None:
        """Note that all changes up to this version in SQL are applied."""
        self.stored_version = max(version, self.stored_version)

    def partitions_of_group(self, group_id: int) -> Iterator[int]:
        """Yield the partition numbers of a lead group. KeyError if it does not exist."""
        return self._directory.of_group(group_id)

    def leads(self, node_id: int) -> bool:
        """Return whether a broker leads any partition."""
        groups = [group.id for group in self.groups() if group.leader == node_id]
        return any(True for group in groups for _ in self.partitions_of_group(group))

    def sizes_of_group(self, group_id: int) -> Iterator[int]:
        """Yield numbers of partitions of a lead group, whose sum is that of all, each after about a
        millisecond. KeyError if it does not exist."""
        return self._directory.sizes_of_group(group_id)

    def set_groups(self, groups: Iterable[LeadGroup]) -> None:
        """Add lead groups, or set their leaders and epochs."""
        for group in groups:
            self._directory.set_group(group)
        self.version += 1

    def move_partition(self, number: int, group_id: int, base: int) -> None:
        """Move a partition to another lead group; `base`: its leader epoch minus that of the group.
        KeyError if there is no such group."""
        self._directory.move(number, group_id, base)
        self.version += 1

    def set_moves(self, targets: Mapping[int, int | None]) -> None:
        """Set the brokers that partitions are to be moved to; None: a move ends."""
        for number, target in targets.items():
            if target is None:
                self.moves.pop(number, None)
            else:
                self.moves[number] = target

    def list_configured(self) -> Iterator[tuple[bytes, Mapping[str, str]]]:
        """Yield the topics with overridden settings; see `Directory.list_configured`. The
        catalog must not change during the iteration."""
        return self._directory.list_configured()

    def described_in(self, topic_id: bytes) -> int:
        """Return the journal with the topic's newest catalog frame; 0 if unknown."""
        return self._directory.described_in(topic_id)

    def record_journal(self, topic_id: bytes, journal: int) -> None:
        """Record the journal of catalog frames; see `Directory.record_journal`. Responses to
        clients do not change."""
        self._directory.record_journal(topic_id, journal)

    def not_described(self) -> list[bytes]:
        """Return the topics without a known catalog frame."""
        return list(self._directory.not_described())


class Topics(Mapping[K, TopicInfo]):
    """Topics by name or by id. They must not change during an iteration."""

    __slots__ = ("_directory", "_in_order", "_rows")

    def __init__(self, directory: Directory, rows: dict[K, int]) -> None:
        self._directory = directory
        self._rows = rows
        self._in_order: tuple[int, list[K]] = (-1, [])

    def __getitem__(self, key: K) -> TopicInfo:
        return self._directory.info(self._rows[key])

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def in_order(self) -> list[K]:
        """Return the sorted keys, cached until topics are created or deleted, for paged
        responses."""
        changes, keys = self._in_order
        if changes != self._directory.changes:
            keys = sorted(self._rows)  # type: ignore[type-var]
            self._in_order = self._directory.changes, keys
        return keys

    def size_of(self, key: K) -> int | None:
        """Return the number of partitions of a topic; None if it does not exist."""
        row = self._rows.get(key)
        return None if row is None else self._directory.partition_count(row)

    def facts_of(self, key: K) -> TopicFacts:
        """Return a topic without its partitions, at constant cost. Raises KeyError."""
        return self._directory.facts(self._rows[key])

    def partition_of(self, key: K, index: int) -> PartitionInfo | None:
        """Return one partition of a topic, without creating a TopicInfo; None if it does not
        exist."""
        row = self._rows.get(key)
        return None if row is None else self._directory.partition(row, index)


def alike_key(name: str) -> str:
    """Return the key that names differing only in '.' and '_' share; they would collide in metric
    names, so only one may exist."""
    return name.replace(".", "_")
