"""The table of every API a client can send to a broker (Kafka 4.4's broker listener).

Importing it imports no message, which would take longer than the rest of a start: a message module
is imported when one of its classes is first used. So `make docs` writes the versions that the
declarations give into the table here. Which of them this broker serves is decided by
`handlers.table`.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One API: its key, Kafka's name for it, and its versions."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int | None

    @property
    def module(self) -> str:
        """The module of `kafkawire.messages` that declares it."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        """2 (tagged fields) in flexible versions, else 1."""
        return 2 if self.flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """1 (tagged fields) in flexible versions, else 0; always 0 for ApiVersions (KIP-511)."""
        return 1 if self.flexible(version) and self.key != API_VERSIONS else 0


API_VERSIONS = 18

# Name, first and last version, first flexible version.
_DECLARED: dict[int, tuple[str, int, int, int | None]] = {
    # made by `make docs` from the declarations
    0: ("Produce", 3, 13, 9),
    1: ("Fetch", 4, 18, 12),
    2: ("ListOffsets", 1, 11, 6),
    3: ("Metadata", 0, 13, 9),
    8: ("OffsetCommit", 2, 10, 8),
    9: ("OffsetFetch", 1, 10, 6),
    10: ("FindCoordinator", 0, 6, 3),
    11: ("JoinGroup", 0, 9, 6),
    12: ("Heartbeat", 0, 4, 4),
    13: ("LeaveGroup", 0, 5, 4),
    14: ("SyncGroup", 0, 5, 4),
    15: ("DescribeGroups", 0, 6, 5),
    16: ("ListGroups", 0, 5, 3),
    17: ("SaslHandshake", 0, 1, None),
    18: ("ApiVersions", 0, 5, 3),
    19: ("CreateTopics", 2, 7, 5),
    20: ("DeleteTopics", 1, 6, 4),
    21: ("DeleteRecords", 0, 2, 2),
    22: ("InitProducerId", 0, 6, 2),
    23: ("OffsetForLeaderEpoch", 2, 4, 4),
    24: ("AddPartitionsToTxn", 0, 5, 3),
    25: ("AddOffsetsToTxn", 0, 4, 3),
    26: ("EndTxn", 0, 5, 3),
    27: ("WriteTxnMarkers", 1, 2, 1),
    28: ("TxnOffsetCommit", 0, 6, 3),
    29: ("DescribeAcls", 1, 3, 2),
    30: ("CreateAcls", 1, 3, 2),
    31: ("DeleteAcls", 1, 3, 2),
    32: ("DescribeConfigs", 1, 4, 4),
    33: ("AlterConfigs", 0, 2, 2),
    34: ("AlterReplicaLogDirs", 1, 2, 2),
    35: ("DescribeLogDirs", 1, 5, 2),
    36: ("SaslAuthenticate", 0, 2, 2),
    37: ("CreatePartitions", 0, 3, 2),
    38: ("CreateDelegationToken", 1, 3, 2),
    39: ("RenewDelegationToken", 1, 2, 2),
    40: ("ExpireDelegationToken", 1, 2, 2),
    41: ("DescribeDelegationToken", 1, 3, 2),
    42: ("DeleteGroups", 0, 3, 2),
    43: ("ElectLeaders", 0, 2, 2),
    44: ("IncrementalAlterConfigs", 0, 1, 1),
    45: ("AlterPartitionReassignments", 0, 1, 0),
    46: ("ListPartitionReassignments", 0, 0, 0),
    47: ("OffsetDelete", 0, 0, None),
    48: ("DescribeClientQuotas", 0, 1, 1),
    49: ("AlterClientQuotas", 0, 1, 1),
    50: ("DescribeUserScramCredentials", 0, 0, 0),
    51: ("AlterUserScramCredentials", 0, 0, 0),
    55: ("DescribeQuorum", 0, 2, 0),
    57: ("UpdateFeatures", 0, 2, 0),
    60: ("DescribeCluster", 0, 2, 0),
    61: ("DescribeProducers", 0, 0, 0),
    64: ("UnregisterBroker", 0, 0, 0),
    65: ("DescribeTransactions", 0, 0, 0),
    66: ("ListTransactions", 0, 2, 0),
    68: ("ConsumerGroupHeartbeat", 0, 1, 0),
    69: ("ConsumerGroupDescribe", 0, 1, 0),
    71: ("GetTelemetrySubscriptions", 0, 0, 0),
    72: ("PushTelemetry", 0, 0, 0),
    74: ("ListConfigResources", 0, 1, 0),
    75: ("DescribeTopicPartitions", 0, 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1, 0),
    77: ("ShareGroupDescribe", 1, 1, 0),
    78: ("ShareFetch", 1, 2, 0),
    79: ("ShareAcknowledge", 1, 2, 0),
    80: ("AddRaftVoter", 0, 1, 0),
    81: ("RemoveRaftVoter", 0, 0, 0),
    83: ("InitializeShareGroupState", 0, 0, 0),
    84: ("ReadShareGroupState", 0, 0, 0),
    85: ("WriteShareGroupState", 0, 1, 0),
    86: ("DeleteShareGroupState", 0, 0, 0),
    87: ("ReadShareGroupStateSummary", 0, 1, 0),
    88: ("StreamsGroupHeartbeat", 0, 1, 0),
    89: ("StreamsGroupDescribe", 0, 1, 0),
    90: ("DescribeShareGroupOffsets", 0, 1, 0),
    91: ("AlterShareGroupOffsets", 0, 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0, 0),
    93: ("StreamsGroupTopologyDescriptionUpdate", 0, 0, 0),
    94: ("UnregisterController", 0, 0, 0),
    10000: ("Tier", 0, 0, 0),
    10001: ("GroupActivity", 0, 0, 0),
    10002: ("DescribeSchedules", 0, 0, 0),
    # end of what is made
}

TIER, GROUP_ACTIVITY, DESCRIBE_SCHEDULES = 10000, 10001, 10002
APIS = {key: ApiSpec(key, *row) for key, row in _DECLARED.items() if key < TIER}
OWN = {key: ApiSpec(key, *row) for key, row in _DECLARED.items() if key >= TIER}
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
