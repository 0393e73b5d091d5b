"""A request of every API that needs rights, what it answers without them, and the rights it needs.

The requests are about the topics "t" and "absent", the group "g" and the transactional id "x", and
change nothing that the others depend on. Used by the tests of the table of needs, and by the
comparison with Apache Kafka's authorizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kafkawire.codec.batches import build
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kafkawire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from kafkawire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.messages.describe_client_quotas import DescribeClientQuotasRequest, EntityData
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.describe_log_dirs import DescribeLogDirsRequest
from kafkawire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kafkawire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from kafkawire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from kafkawire.messages.describe_topic_partitions import TopicRequest as NamedTopic
from kafkawire.messages.describe_transactions import DescribeTransactionsRequest
from kafkawire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kafkawire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_config_resources import ListConfigResourcesRequest
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafkawire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.share_acknowledge import ShareAcknowledgeRequest
from kafkawire.messages.share_fetch import FetchPartition as ShareFetchPartition
from kafkawire.messages.share_fetch import FetchTopic as ShareFetchTopic
from kafkawire.messages.share_fetch import ShareFetchRequest
from kafkawire.messages.share_group_describe import ShareGroupDescribeRequest
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.messages.streams_group_describe import StreamsGroupDescribeRequest
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from kafkawire.messages.sync_group import SyncGroupRequest
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kafkawire.messages.unregister_broker import UnregisterBrokerRequest
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkawire.security.acls.model import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    WriteState,
)
from kafkawire.share.state.wire import format_message

TOPIC_CODE, GROUP_CODE, CLUSTER_CODE, TRANSACTION_CODE = 29, 30, 31, 53
RECENT_MS = int(time.time() * 1000) - 3_600_000
"""The timestamp of records: retention deletes old ones, also within a minute."""
REFUSALS = {TOPIC_CODE, GROUP_CODE, CLUSTER_CODE, TRANSACTION_CODE}
O, T, G, C, X = (  # noqa: E741
    Operation,
    ResourceKind.TOPIC,
    ResourceKind.GROUP,
    ResourceKind.CLUSTER,
    ResourceKind.TRANSACTIONAL_ID,
)
NAMES = {T: "t", G: "g", C: CLUSTER_NAME, X: "x"}
Need = tuple[Operation, ResourceKind]


class Case(NamedTuple):
    """`needs`: rights that are enough together. `request` gets the id of "t"."""

    key: int
    version: int
    code: int
    needs: tuple[Need, ...]
    request: Callable[[bytes], Any]
    title: str = ""
    but: tuple[str, ...] = ()
    """Fields in which Kafka's response to a refused request differs."""

    def __repr__(self) -> str:
        name = type(self.request(bytes(16))).__name__.removesuffix("Request")
        return f"{name}-{self.version}{'-' if self.title else ''}{self.title}"


def rule(
    operation: Operation,
    kind: ResourceKind,
    name: str = "",
    principal: str = "User:ANONYMOUS",
    host: str = "*",
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> Acl:
    """A rule about one of NAMES, or another resource."""
    made = int(kind), name or NAMES[kind], int(pattern), principal, host
    return Acl(*made, int(operation), int(permission))


def records(**head: int) -> bytes:
    return bytes(build([(None, b"v")], timestamp_ms=RECENT_MS, **head))


def produce(
    *topics: str | bytes, transactional_id: str | None = None, acks: int = -1, **head: int
) -> ProduceRequest:
    data = []
    for topic in topics:
        one = TopicProduceData(partition_data=[PartitionProduceData(0, records(**head))])
        if isinstance(topic, bytes):
            one.topic_id = topic
        else:
            one.name = topic
        data.append(one)
    return ProduceRequest(transactional_id, acks, 5_000, data)


def fetch(*topics: str | bytes, wait_ms: int = 0, offset: int = 0) -> FetchRequest:
    asked = []
    for topic in topics:
        one = FetchTopic(partitions=[FetchPartition(fetch_offset=offset)])
        one.partitions[0].partition_max_bytes = 1 << 20
        if isinstance(topic, bytes):
            one.topic_id = topic
        else:
            one.topic = topic
        asked.append(one)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=asked
    )


def named(*names: str, create: bool = False, **fields: Any) -> MetadataRequest:
    asked = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(asked, allow_auto_topic_creation=create, **fields)


def list_offsets(*names: str) -> ListOffsetsRequest:
    asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)]) for name in names]
    return ListOffsetsRequest(-1, 0, asked)


def commit(*names: str) -> OffsetCommitRequest:
    asked = [
        OffsetCommitRequestTopic(name, partitions=[OffsetCommitRequestPartition(0, 1)])
        for name in names
    ]
    return OffsetCommitRequest("g", -1, topics=asked)


def offset_fetch(*names: str) -> OffsetFetchRequest:
    asked = [OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in names]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=asked or None)])


def add_partitions(*names: str) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name, [0]) for name in names]
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=7,
        v3_and_below_topics=topics,
    )


def txn_commit() -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(0, 1)
    return TxnOffsetCommitRequest(
        "x", "g", 7, 0, topics=[TxnOffsetCommitRequestTopic("t", partitions=[partition])]
    )


def describe_configs(*resources: tuple[int, str]) -> DescribeConfigsRequest:
    asked = [DescribeConfigsResource(kind, name, ["retention.ms"]) for kind, name in resources]
    return DescribeConfigsRequest(asked)


def alter_config(kind: int, name: str, setting: str, value: str) -> Any:
    row = AlterableConfig(setting, 0, value)
    return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [row])], True)


def share_state(kind: type[Any], *fields: Any) -> Callable[[bytes], Any]:
    """A request about the state of partition 0 of "t" for group "g"; `fields`: of its key."""
    return lambda topic_id: format_message([kind(SharePartitionKey("g", topic_id, 0), *fields)])


def _verify() -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic("t", [0])]
    return AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction("x", 7, 0, True, topics)])


_JOIN = [JoinGroupRequestProtocol("range", b"")]
_ACL = AclCreation(2, "other", 3, "User:b", "*", 3, 3)
_FILTER = DeleteAclsFilter(2, "other", 3, "User:b", "*", 3, 3)
CASES = (
    Case(0, 9, TOPIC_CODE, ((O.WRITE, T),), lambda _: produce("t")),
    Case(0, 13, TOPIC_CODE, ((O.WRITE, T),), lambda topic_id: produce(topic_id), "id"),
    Case(0, 9, TOPIC_CODE, ((O.WRITE, T),), lambda _: produce(*["t"] * 40), "long"),
    Case(
        0, 9, TRANSACTION_CODE, ((O.WRITE, X), (O.WRITE, T)),
        lambda _: produce(
            "t", transactional_id="x", attributes=16, producer_id=7, producer_epoch=0,
            base_sequence=0,
        ),
        "transactional",
    ),
    Case(1, 12, TOPIC_CODE, ((O.READ, T),), lambda _: fetch("t")),
    Case(1, 13, TOPIC_CODE, ((O.READ, T),), lambda topic_id: fetch(topic_id), "id"),
    Case(1, 12, TOPIC_CODE, ((O.READ, T),), lambda _: fetch(*["t"] * 70), "long"),
    Case(2, 7, TOPIC_CODE, ((O.DESCRIBE, T),), lambda _: list_offsets("t")),
    Case(3, 12, TOPIC_CODE, ((O.DESCRIBE, T),), lambda _: named("t")),
    Case(8, 8, GROUP_CODE, ((O.READ, G), (O.READ, T)), lambda _: commit("t")),
    Case(9, 8, GROUP_CODE, ((O.DESCRIBE, G), (O.DESCRIBE, T)), lambda _: offset_fetch("t")),
    Case(
        9, 1, GROUP_CODE, ((O.DESCRIBE, G), (O.DESCRIBE, T)),
        lambda _: OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])]),
    ),
    Case(
        10, 4, GROUP_CODE, ((O.DESCRIBE, G),),
        lambda _: FindCoordinatorRequest(coordinator_keys=["g"]),
    ),
    Case(
        10, 4, TRANSACTION_CODE, ((O.DESCRIBE, X),),
        lambda _: FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), "transaction",
    ),
    Case(10, 3, GROUP_CODE, ((O.DESCRIBE, G),), lambda _: FindCoordinatorRequest("g")),
    Case(
        11, 7, GROUP_CODE, ((O.READ, G),),
        lambda _: JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", _JOIN),
    ),
    Case(12, 4, GROUP_CODE, ((O.READ, G),), lambda _: HeartbeatRequest("g", 1, "m")),
    Case(13, 4, GROUP_CODE, ((O.READ, G),), lambda _: LeaveGroupRequest("g", "",
         [MemberIdentity("m")])),
    Case(14, 4, GROUP_CODE, ((O.READ, G),), lambda _: SyncGroupRequest("g", 1, "m")),
    Case(15, 5, GROUP_CODE, ((O.DESCRIBE, G),), lambda _: DescribeGroupsRequest(["g"])),
    Case(
        68, 1, GROUP_CODE, ((O.READ, G), (O.DESCRIBE, T)),
        # It leaves, as in the other two kinds of groups: a member would have the topic, which the
        # next case has no right to describe.
        lambda _: ConsumerGroupHeartbeatRequest("g", "m", -1, subscribed_topic_names=["t"]),
    ),
    Case(83, 0, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), share_state(InitializeState, 1, 0)),
    Case(84, 0, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), share_state(ReadState, 0)),
    Case(85, 1, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), share_state(WriteState, 1, 0, 0, 0, ())),
    Case(86, 0, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), share_state(DeleteState)),
    Case(87, 1, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), share_state(ReadSummary)),
    Case(
        76, 1, GROUP_CODE, ((O.READ, G), (O.DESCRIBE, T)),
        lambda _: ShareGroupHeartbeatRequest("g", "m", -1, subscribed_topic_names=["t"]),
    ),
    Case(
        78, 2, GROUP_CODE, ((O.READ, G), (O.READ, T)),
        lambda topic_id: ShareFetchRequest(
            "g", "m", max_records=1, topics=[ShareFetchTopic(topic_id, [ShareFetchPartition(0)])]
        ),
    ),
    Case(79, 2, GROUP_CODE, ((O.READ, G),), lambda _: ShareAcknowledgeRequest("g", "m", 1)),
    Case(77, 1, GROUP_CODE, ((O.DESCRIBE, G),), lambda _: ShareGroupDescribeRequest(["g"])),
    Case(
        88, 1, GROUP_CODE, ((O.READ, G), (O.DESCRIBE, T)),
        lambda _: StreamsGroupHeartbeatRequest(
            "g", "m", -1, rebalance_timeout_ms=1, topology=Topology(0, [Subtopology("0", ["t"])]),
            active_tasks=[], standby_tasks=[], warmup_tasks=[],
        ),
    ),
    Case(89, 1, GROUP_CODE, ((O.DESCRIBE, G),), lambda _: StreamsGroupDescribeRequest(["g"])),
    Case(
        90, 1, GROUP_CODE, ((O.DESCRIBE, G), (O.DESCRIBE, T)),
        lambda _: DescribeShareGroupOffsetsRequest(
            [
                DescribeShareGroupOffsetsRequestGroup(
                    "g", [DescribeShareGroupOffsetsRequestTopic("t", [0])]
                )
            ]
        ),
    ),
    Case(
        91, 0, GROUP_CODE, ((O.READ, G), (O.READ, T)),
        lambda _: AlterShareGroupOffsetsRequest(
            "g",
            [
                AlterShareGroupOffsetsRequestTopic(
                    "t", [AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        ),
        but=("responses[t].topic_id",),  # Kafka shows the client that the topic exists
    ),
    Case(
        92, 0, GROUP_CODE, ((O.DELETE, G),),  # there is no such group
        lambda _: DeleteShareGroupOffsetsRequest("g", [DeleteShareGroupOffsetsRequestTopic("t")]),
    ),
    Case(69, 1, GROUP_CODE, ((O.DESCRIBE, G),), lambda _: ConsumerGroupDescribeRequest(["g"])),
    Case(
        19, 7, TOPIC_CODE, ((O.CREATE, C),),
        lambda _: CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5_000, True),
    ),
    Case(
        19, 4, TOPIC_CODE, ((O.CREATE, T),),
        lambda _: CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5_000, True),
    ),
    Case(
        20, 5, TOPIC_CODE, ((O.DESCRIBE, T), (O.DELETE, C)),
        lambda _: DeleteTopicsRequest(topic_names=["absent"], timeout_ms=5_000),
    ),
    Case(
        21, 2, TOPIC_CODE, ((O.DELETE, T),),
        lambda _: DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])],
                                       5_000),
    ),
    Case(22, 4, CLUSTER_CODE, ((O.IDEMPOTENT_WRITE, C),), lambda _: InitProducerIdRequest(None)),
    Case(22, 4, CLUSTER_CODE, ((O.WRITE, T),), lambda _: InitProducerIdRequest(None), "any topic"),
    Case(
        22, 4, TRANSACTION_CODE, ((O.WRITE, X),), lambda _: InitProducerIdRequest("x", 5_000),
        "transaction",
    ),
    Case(
        23, 4, TOPIC_CODE, ((O.DESCRIBE, T),),
        lambda _: OffsetForLeaderEpochRequest(
            -1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])]
        ),
    ),
    Case(24, 3, TRANSACTION_CODE, ((O.WRITE, X), (O.WRITE, T)), lambda _: add_partitions("t")),
    Case(24, 4, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),), lambda _: _verify()),
    Case(
        25, 3, TRANSACTION_CODE, ((O.WRITE, X), (O.READ, G)),
        lambda _: AddOffsetsToTxnRequest("x", 7, 0, "g"),
    ),
    Case(26, 3, TRANSACTION_CODE, ((O.WRITE, X),), lambda _: EndTxnRequest("x", 7, 0, True)),
    Case(
        27, 1, CLUSTER_CODE, ((O.ALTER, C),),
        lambda _: WriteTxnMarkersRequest(
            [WritableTxnMarker(7, 0, False, [WritableTxnMarkerTopic("absent", [0])])]
        ),
    ),
    Case(
        27, 1, CLUSTER_CODE, ((O.CLUSTER_ACTION, C),),
        lambda _: WriteTxnMarkersRequest(
            [WritableTxnMarker(7, 0, False, [WritableTxnMarkerTopic("absent", [0])])]
        ),
        "action",
    ),
    Case(28, 3, TRANSACTION_CODE, ((O.WRITE, X), (O.READ, G), (O.READ, T)), lambda _: txn_commit()),
    Case(
        29, 2, CLUSTER_CODE, ((O.DESCRIBE, C),),
        lambda _: DescribeAclsRequest(2, "other", 3, None, None, 1, 1),
    ),
    Case(30, 2, CLUSTER_CODE, ((O.ALTER, C),), lambda _: CreateAclsRequest([_ACL])),
    Case(31, 2, CLUSTER_CODE, ((O.ALTER, C),), lambda _: DeleteAclsRequest([_FILTER])),
    Case(32, 4, TOPIC_CODE, ((O.DESCRIBE_CONFIGS, T),), lambda _: describe_configs((2, "t"))),
    Case(32, 4, CLUSTER_CODE, ((O.DESCRIBE_CONFIGS, C),), lambda _: describe_configs((4, "1"))),
    Case(
        33, 2, TOPIC_CODE, ((O.ALTER_CONFIGS, T),),
        lambda _: AlterConfigsRequest([OldResource(2, "t", [])], True),
    ),
    Case(
        34, 2, CLUSTER_CODE, ((O.ALTER, C),),
        lambda _: AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir("/", [AlterReplicaLogDirTopic("t", [0])])]
        ),
    ),
    Case(35, 4, CLUSTER_CODE, ((O.DESCRIBE, C),), lambda _: DescribeLogDirsRequest([])),
    Case(
        37, 3, TOPIC_CODE, ((O.ALTER, T),),
        lambda _: CreatePartitionsRequest([CreatePartitionsTopic("t", 9, None)], 5_000, True),
    ),
    Case(42, 2, GROUP_CODE, ((O.DELETE, G),), lambda _: DeleteGroupsRequest(["g"])),
    Case(
        43, 2, CLUSTER_CODE, ((O.ALTER, C),),
        lambda _: ElectLeadersRequest(0, [TopicPartitions("t", [0])]),
    ),
    Case(
        44, 1, TOPIC_CODE, ((O.ALTER_CONFIGS, T),),
        lambda _: alter_config(2, "t", "retention.ms", "9000000000000"), "topic",
    ),
    Case(
        44, 1, CLUSTER_CODE, ((O.ALTER_CONFIGS, C),),
        lambda _: alter_config(4, "1", "background.threads", "11"), "broker",
    ),
    Case(45, 1, CLUSTER_CODE, ((O.ALTER, C),),
         lambda _: AlterPartitionReassignmentsRequest(5_000, True, [])),
    Case(46, 0, CLUSTER_CODE, ((O.DESCRIBE, C),),
         lambda _: ListPartitionReassignmentsRequest(5_000, None)),
    Case(
        47, 0, GROUP_CODE, ((O.DELETE, G),),
        lambda _: OffsetDeleteRequest(
            "g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]
        ),
    ),
    Case(48, 1, CLUSTER_CODE, ((O.DESCRIBE_CONFIGS, C),), lambda _: DescribeClientQuotasRequest()),
    Case(
        49, 1, CLUSTER_CODE, ((O.ALTER_CONFIGS, C),),
        lambda _: AlterClientQuotasRequest(
            [EntryData([EntityData("user", "b")], [OpData("request_percentage", 5.0)])], True
        ),
    ),
    Case(
        50, 0, CLUSTER_CODE, ((O.DESCRIBE, C),),
        lambda _: DescribeUserScramCredentialsRequest([UserName("b")]),
    ),
    Case(
        51, 0, CLUSTER_CODE, ((O.ALTER, C),),
        lambda _: AlterUserScramCredentialsRequest([ScramCredentialDeletion("b", 1)]),
    ),
    Case(55, 2, CLUSTER_CODE, ((O.DESCRIBE, C),),
         lambda _: DescribeQuorumRequest([TopicData("__cluster_metadata", [PartitionData(0)])])),
    Case(
        57, 1, CLUSTER_CODE, ((O.ALTER, C),),
        lambda _: UpdateFeaturesRequest(5_000, [FeatureUpdateKey("no.such", 1)], True),
    ),
    Case(61, 0, TOPIC_CODE, ((O.READ, T),),
         lambda _: DescribeProducersRequest([TopicRequest("t", [0])])),
    Case(64, 0, CLUSTER_CODE, ((O.ALTER, C),), lambda _: UnregisterBrokerRequest(7)),
    Case(65, 0, TRANSACTION_CODE, ((O.DESCRIBE, X),), lambda _: DescribeTransactionsRequest(["x"])),
    Case(74, 1, CLUSTER_CODE, ((O.DESCRIBE_CONFIGS, C),), lambda _: ListConfigResourcesRequest()),
    Case(75, 0, TOPIC_CODE, ((O.DESCRIBE, T),),
         lambda _: DescribeTopicPartitionsRequest([NamedTopic("t")])),
)  # fmt: skip


def codes(message: Any) -> set[int]:
    """All error codes of a response."""
    return set(_codes(message))


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _codes(each)
    for name in getattr(type(value), "__slots__", ()):
        found = getattr(value, name)
        if "error_code" in name:
            yield found
        else:
            yield from _codes(found)
