"""The brokers of a cluster, moves of partitions, features and the quorum; one broker with its
settings and log levels. Of any Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.configs import DEFAULT, SOURCES
from kafkawire.client.connection import CLIENT_ID, ClientConnection
from kafkawire.client.errors import UnknownBroker, check
from kafkawire.client.offsets import Partition
from kafkawire.client.placement import list_reassignments
from kafkawire.client.tier import tier_command
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ListPage, attempt, page_of
from kafkawire.console.views.snapshot import ClusterSnapshot, NodeState
from kafkawire.messages.registry import API_VERSIONS, APIS

DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, DESCRIBE_QUORUM = 32, 35, 55
TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE = 2, 4, 8
"""Kafka's ConfigResource.Type."""
MAX_TOPICS = 20
"""The largest topics of a broker that are shown."""


class BrokerRow(NamedTuple):
    """A broker. `alive`: None if the cluster does not say; `leads`: partitions; `holds`: replicas
    of partitions, of which `out_of_sync` are not in sync. `state` None: it is not alive."""

    node: int
    state: NodeState | None
    alive: bool | None
    controller: bool
    leads: int
    holds: int
    out_of_sync: int


class UnwellPartition(NamedTuple):
    """A partition without a leader (-1), or with a replica that is not in sync."""

    partition: Partition
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]


class MoveRow(NamedTuple):
    """A move that has not ended."""

    partition: Partition
    replicas: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]


class FeatureRow(NamedTuple):
    """A feature: the versions that a broker supports, and the one in use, None if it is off."""

    name: str
    lowest: int
    highest: int
    finalized: int | None


class QuorumRow(NamedTuple):
    """A voter or observer of the metadata log. `lag`: records that it does not have."""

    node: int
    voter: bool
    leader: bool
    log_end: int
    lag: int
    caught_up_ms: int | None


class ClusterState(NamedTuple):
    """A cluster. `refused`: sentences on what the broker did not answer."""

    brokers: Sequence[BrokerRow]
    unwell: ListPage[UnwellPartition]
    moves: ListPage[MoveRow]
    features: Sequence[FeatureRow]
    quorum: Sequence[QuorumRow]
    refused: Sequence[str]


class SettingRow(NamedTuple):
    """A setting. `value` and `default`: None if they are not shown; `fixed`: only changed by a
    restart."""

    name: str
    value: str | None
    source: str
    default: str | None
    fixed: bool


class ShownSettings(NamedTuple):
    """The settings of a resource that are shown, of `total`."""

    rows: Sequence[SettingRow]
    total: int


class ApiVersionRow(NamedTuple):
    """An API that a broker serves, with its versions; `name` is empty if it is not known here."""

    key: int
    name: str
    lowest: int
    highest: int


class LogDirState(NamedTuple):
    """A log directory: bytes of its partitions, of the volume and free there, None if the broker
    does not say; and its largest topics."""

    path: str
    size_bytes: int
    total_bytes: int | None
    free_bytes: int | None
    topics: Sequence[tuple[str, int]]
    error: str


class BrokerDetail(NamedTuple):
    """One broker. `quotas`: kafkawire.handlers.tier._list_quota_use; None of another Kafka."""

    row: BrokerRow
    settings: ShownSettings
    loggers: Sequence[tuple[str, str | None]]
    log_dirs: Sequence[LogDirState]
    apis: Sequence[ApiVersionRow]
    quotas: Sequence[Mapping[str, Any]] | None
    refused: Sequence[str]


def describe_cluster(cluster: Cluster, snapshot: ClusterSnapshot, page: int = 1) -> ClusterState:
    """Return the brokers of a cluster, and pages `page` of its moves and unwell partitions."""
    refused: list[str] = []
    registered = attempt(refused, lambda: find_registered_brokers(cluster.first))
    unwell = [
        UnwellPartition((topic.name, row.partition), row.leader, row.replicas, row.in_sync)
        for topic in snapshot.topics.values()
        for row in topic.partitions
        if row.leader < 0 or len(row.in_sync) < len(row.replicas)
    ]
    moves = attempt(refused, lambda: _list_moves(cluster)) or []
    return ClusterState(
        list_brokers(snapshot, registered or {}),
        page_of(unwell, page),
        page_of(moves, page),
        attempt(refused, lambda: _list_features(cluster.first)) or [],
        attempt(refused, lambda: _list_quorum(cluster)) or [],
        refused,
    )


def list_brokers(snapshot: ClusterSnapshot, registered: dict[int, bool]) -> list[BrokerRow]:
    """Return all brokers; `registered`: whether each is alive. Pure."""
    leads, holds, out_of_sync = Counter[int](), Counter[int](), Counter[int]()
    for topic in snapshot.topics.values():
        for row in topic.partitions:
            leads[row.leader] += 1
            holds.update(row.replicas)
            out_of_sync.update(set(row.replicas) - set(row.in_sync))
    states = {each.node: each for each in snapshot.nodes}
    return [
        BrokerRow(
            node, states.get(node), registered.get(node), node == snapshot.controller, leads[node],
            holds[node], out_of_sync[node],
        )
        for node in sorted(states.keys() | registered.keys())
    ]  # fmt: skip


def _list_moves(cluster: Cluster) -> list[MoveRow]:
    return [
        MoveRow((name, row.partition_index), row.replicas, row.adding_replicas,
                row.removing_replicas)
        for name, row in list_reassignments(cluster)
    ]  # fmt: skip


def _read_versions(connection: ClientConnection) -> Any:
    from kafkawire.messages.api_versions import ApiVersionsRequest

    asked = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="0")
    answer = connection.request(API_VERSIONS, asked)
    check("ApiVersions", answer.error_code)
    return answer


def _list_features(connection: ClientConnection) -> list[FeatureRow]:
    answer = _read_versions(connection)
    levels = {row.name: row.max_version_level for row in answer.finalized_features}
    return [
        FeatureRow(row.name, row.min_version, row.max_version, levels.get(row.name))
        for row in sorted(answer.supported_features, key=lambda row: row.name)
    ]


def _list_quorum(cluster: Cluster) -> list[QuorumRow]:
    from kafkawire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData

    asked = DescribeQuorumRequest([TopicData("__cluster_metadata", [PartitionData(0)])])
    answer = cluster.request(DESCRIBE_QUORUM, asked)
    check("metadata quorum", answer.error_code, answer.error_message)
    ((partition,),) = (topic.partitions for topic in answer.topics)
    check("metadata quorum", partition.error_code, partition.error_message)
    leader = partition.leader_id
    states = [(True, each) for each in partition.current_voters]
    states += [(False, each) for each in partition.observers]
    end = max((each.log_end_offset for _, each in states if each.replica_id == leader), default=0)
    return [
        QuorumRow(
            each.replica_id, voter, each.replica_id == leader, each.log_end_offset,
            max(0, end - each.log_end_offset),
            each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
        )
        for voter, each in sorted(states, key=lambda state: (not state[0], state[1].replica_id))
    ]  # fmt: skip


def describe_broker(
    cluster: Cluster,
    own: OwnBroker,
    snapshot: ClusterSnapshot,
    node: int,
    text: str = "",
    every: bool = False,
) -> BrokerDetail:
    """Return one broker; `text` and `every`: see filter_settings. UnknownBroker if the cluster does
    not have it or it is not alive."""
    row = next((row for row in list_brokers(snapshot, {}) if row.node == node), None)
    if row is None:
        raise UnknownBroker(f"the cluster has no broker {node} that is alive")
    refused: list[str] = []
    at = cluster.node(node)
    known = attempt(refused, lambda: read_settings(at, BROKER_RESOURCE, str(node))) or []
    loggers = attempt(refused, lambda: read_settings(at, LOGGER_RESOURCE, str(node))) or []
    versions = _read_versions(at)
    quotas = attempt([], lambda: own.ask(cluster, node, lambda at: tier_command(at, "quotas")))
    return BrokerDetail(
        row,
        filter_settings(known, text, every),
        [(each.name, each.value) for each in loggers],
        attempt(refused, lambda: read_log_dirs(at)) or [],
        [
            ApiVersionRow(
                each.api_key,
                APIS[each.api_key].name if each.api_key in APIS else "",
                each.min_version,
                each.max_version,
            )
            for each in sorted(versions.api_keys, key=lambda each: each.api_key)
        ],
        None if quotas is None else quotas["use"],
        refused,
    )


def filter_settings(rows: Sequence[SettingRow], text: str, every: bool) -> ShownSettings:
    """Return the settings whose names contain `text`; without it and `every`, those that do not
    have their default. Pure."""
    wanted = text.strip().casefold()
    found = [
        each
        for each in rows
        if (every or wanted or each.source != SOURCES[DEFAULT]) and wanted in each.name.casefold()
    ]
    return ShownSettings(found, len(rows))


def read_settings(at: ClientConnection, kind: int, name: str) -> list[SettingRow]:
    """Return all settings of a resource, by name. Settings of a broker come from itself."""
    from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    asked = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)], True)
    (result,) = at.request(DESCRIBE_CONFIGS, asked).results
    check(f"settings of {name}", result.error_code, result.error_message)
    return [
        SettingRow(
            row.name,
            None if row.is_sensitive else row.value,
            SOURCES.get(row.config_source, str(row.config_source)),
            None if row.is_sensitive else _default_of(row),
            row.read_only,
        )
        for row in sorted(result.configs, key=lambda row: row.name)
    ]


def _default_of(row: Any) -> str | None:
    if row.config_source == DEFAULT:
        return str(row.value or "")
    found = (str(each.value or "") for each in row.synonyms if each.source == DEFAULT)
    return next(found, None)


def read_log_dirs(at: ClientConnection) -> list[LogDirState]:
    """Return the log directories of a broker. BrokerError."""
    from kafkawire.messages.describe_log_dirs import DescribeLogDirsRequest

    answer = at.request(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
    check("log directories", answer.error_code)
    return [_log_dir(row) for row in answer.results]


def _log_dir(row: Any) -> LogDirState:
    sizes: Counter[str] = Counter()
    for topic in row.topics:
        sizes[topic.name] += sum(each.partition_size for each in topic.partitions)
    error = ErrorCode(row.error_code).sentence if row.error_code in set(ErrorCode) else ""
    return LogDirState(
        row.log_dir,
        sizes.total(),
        _none_if_negative(row.total_bytes),
        _none_if_negative(row.usable_bytes),
        sizes.most_common(MAX_TOPICS),
        error if row.error_code else "",
    )


def _none_if_negative(number: int) -> int | None:
    return number if number >= 0 else None
