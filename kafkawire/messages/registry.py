"""The table of every API a client can send to a broker (Kafka 4.4's broker listener).

A pure table: importing it imports no message; a message module is imported when one of its classes
is first asked for. Versions are what the declarations cover. Which of them this broker serves is
decided by `handlers.table`, not here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One API: its key, Kafka's name for it, the module that declares it, its versions."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int | None

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        """2 (tagged fields) in flexible versions, else 1."""
        return 2 if self.flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """1 (tagged fields) in flexible versions, else 0; always 0 for ApiVersions (KIP-511)."""
        return 1 if self.flexible(version) and self.key != API_VERSIONS else 0


API_VERSIONS = 18

APIS: dict[int, ApiSpec] = {
    0: ApiSpec(0, "Produce", "produce", 3, 13, 9),
    1: ApiSpec(1, "Fetch", "fetch", 4, 18, 12),
    2: ApiSpec(2, "ListOffsets", "list_offsets", 1, 11, 6),
    3: ApiSpec(3, "Metadata", "metadata", 0, 13, 9),
    8: ApiSpec(8, "OffsetCommit", "offset_commit", 2, 10, 8),
    9: ApiSpec(9, "OffsetFetch", "offset_fetch", 1, 10, 6),
    10: ApiSpec(10, "FindCoordinator", "find_coordinator", 0, 6, 3),
    11: ApiSpec(11, "JoinGroup", "join_group", 0, 9, 6),
    12: ApiSpec(12, "Heartbeat", "heartbeat", 0, 4, 4),
    13: ApiSpec(13, "LeaveGroup", "leave_group", 0, 5, 4),
    14: ApiSpec(14, "SyncGroup", "sync_group", 0, 5, 4),
    15: ApiSpec(15, "DescribeGroups", "describe_groups", 0, 6, 5),
    16: ApiSpec(16, "ListGroups", "list_groups", 0, 5, 3),
    17: ApiSpec(17, "SaslHandshake", "sasl_handshake", 0, 1, None),
    18: ApiSpec(18, "ApiVersions", "api_versions", 0, 5, 3),
    19: ApiSpec(19, "CreateTopics", "create_topics", 2, 7, 5),
    20: ApiSpec(20, "DeleteTopics", "delete_topics", 1, 6, 4),
    21: ApiSpec(21, "DeleteRecords", "delete_records", 0, 2, 2),
    22: ApiSpec(22, "InitProducerId", "init_producer_id", 0, 6, 2),
    23: ApiSpec(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4, 4),
    24: ApiSpec(24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    25: ApiSpec(25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    26: ApiSpec(26, "EndTxn", "end_txn", 0, 5, 3),
    27: ApiSpec(27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 1),
    28: ApiSpec(28, "TxnOffsetCommit", "txn_offset_commit", 0, 6, 3),
    29: ApiSpec(29, "DescribeAcls", "describe_acls", 1, 3, 2),
    30: ApiSpec(30, "CreateAcls", "create_acls", 1, 3, 2),
    31: ApiSpec(31, "DeleteAcls", "delete_acls", 1, 3, 2),
    32: ApiSpec(32, "DescribeConfigs", "describe_configs", 1, 4, 4),
    33: ApiSpec(33, "AlterConfigs", "alter_configs", 0, 2, 2),
    34: ApiSpec(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2, 2),
    35: ApiSpec(35, "DescribeLogDirs", "describe_log_dirs", 1, 5, 2),
    36: ApiSpec(36, "SaslAuthenticate", "sasl_authenticate", 0, 2, 2),
    37: ApiSpec(37, "CreatePartitions", "create_partitions", 0, 3, 2),
    38: ApiSpec(38, "CreateDelegationToken", "create_delegation_token", 1, 3, 2),
    39: ApiSpec(39, "RenewDelegationToken", "renew_delegation_token", 1, 2, 2),
    40: ApiSpec(40, "ExpireDelegationToken", "expire_delegation_token", 1, 2, 2),
    41: ApiSpec(41, "DescribeDelegationToken", "describe_delegation_token", 1, 3, 2),
    42: ApiSpec(42, "DeleteGroups", "delete_groups", 0, 3, 2),
    43: ApiSpec(43, "ElectLeaders", "elect_leaders", 0, 2, 2),
    44: ApiSpec(44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1),
    45: ApiSpec(45, "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1, 0),
    46: ApiSpec(46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0),
    47: ApiSpec(47, "OffsetDelete", "offset_delete", 0, 0, None),
    48: ApiSpec(48, "DescribeClientQuotas", "describe_client_quotas", 0, 1, 1),
    49: ApiSpec(49, "AlterClientQuotas", "alter_client_quotas", 0, 1, 1),
    50: ApiSpec(50, "DescribeUserScramCredentials", "describe_user_scram_credentials", 0, 0, 0),
    51: ApiSpec(51, "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0, 0),
    55: ApiSpec(55, "DescribeQuorum", "describe_quorum", 0, 2, 0),
    57: ApiSpec(57, "UpdateFeatures", "update_features", 0, 2, 0),
    60: ApiSpec(60, "DescribeCluster", "describe_cluster", 0, 2, 0),
    61: ApiSpec(61, "DescribeProducers", "describe_producers", 0, 0, 0),
    64: ApiSpec(64, "UnregisterBroker", "unregister_broker", 0, 0, 0),
    65: ApiSpec(65, "DescribeTransactions", "describe_transactions", 0, 0, 0),
    66: ApiSpec(66, "ListTransactions", "list_transactions", 0, 2, 0),
    68: ApiSpec(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 0),
    69: ApiSpec(69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0),
    71: ApiSpec(71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions", 0, 0, 0),
    72: ApiSpec(72, "PushTelemetry", "push_telemetry", 0, 0, 0),
    74: ApiSpec(74, "ListConfigResources", "list_config_resources", 0, 1, 0),
    75: ApiSpec(75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0),
    76: ApiSpec(76, "ShareGroupHeartbeat", "share_group_heartbeat", 1, 1, 0),
    77: ApiSpec(77, "ShareGroupDescribe", "share_group_describe", 1, 1, 0),
    78: ApiSpec(78, "ShareFetch", "share_fetch", 1, 2, 0),
    79: ApiSpec(79, "ShareAcknowledge", "share_acknowledge", 1, 2, 0),
    80: ApiSpec(80, "AddRaftVoter", "add_raft_voter", 0, 1, 0),
    81: ApiSpec(81, "RemoveRaftVoter", "remove_raft_voter", 0, 0, 0),
    83: ApiSpec(83, "InitializeShareGroupState", "initialize_share_group_state", 0, 0, 0),
    84: ApiSpec(84, "ReadShareGroupState", "read_share_group_state", 0, 0, 0),
    85: ApiSpec(85, "WriteShareGroupState", "write_share_group_state", 0, 1, 0),
    86: ApiSpec(86, "DeleteShareGroupState", "delete_share_group_state", 0, 0, 0),
    87: ApiSpec(87, "ReadShareGroupStateSummary", "read_share_group_state_summary", 0, 1, 0),
    88: ApiSpec(88, "StreamsGroupHeartbeat", "streams_group_heartbeat", 0, 1, 0),
    89: ApiSpec(89, "StreamsGroupDescribe", "streams_group_describe", 0, 1, 0),
    90: ApiSpec(90, "DescribeShareGroupOffsets", "describe_share_group_offsets", 0, 1, 0),
    91: ApiSpec(91, "AlterShareGroupOffsets", "alter_share_group_offsets", 0, 0, 0),
    92: ApiSpec(92, "DeleteShareGroupOffsets", "delete_share_group_offsets", 0, 0, 0),
    93: ApiSpec(
        93,
        "StreamsGroupTopologyDescriptionUpdate",
        "streams_group_topology_description_update",
        0,
        0,
        0,
    ),
    94: ApiSpec(94, "UnregisterController", "unregister_controller", 0, 0, 0),
}

TIER = 10000
OWN: dict[int, ApiSpec] = {TIER: ApiSpec(TIER, "Tier", "tier", 0, 0, 0)}
"""APIs of our own: no other Kafka serves them and ApiVersions does not name them. Kafka's keys are
far below."""


def spec_of(key: int) -> ApiSpec:
    """The row of a key, Kafka's or our own; KeyError for others."""
    return APIS.get(key) or OWN[key]


_classes: dict[tuple[int, str], type[Any]] = {}


def request_class(key: int) -> type[Any]:
    """The class of an API's request; KeyError for a key no client can send."""
    return _classes.get((key, "Request")) or _load(key, "Request")


def response_class(key: int) -> type[Any]:
    """The class of an API's response; KeyError for a key no client can send."""
    return _classes.get((key, "Response")) or _load(key, "Response")


def _load(key: int, kind: str) -> type[Any]:
    spec = spec_of(key)
    module = importlib.import_module(f"kafkawire.messages.{spec.module}")
    found: type[Any] = getattr(module, spec.name + kind)
    _classes[key, kind] = found
    return found
