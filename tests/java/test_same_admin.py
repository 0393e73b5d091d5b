"""Requests of admin tools to Apache Kafka without security and to ours: responses are compared."""

from __future__ import annotations

import time

import pytest

from kafkawire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from kafkawire.messages.describe_transactions import DescribeTransactionsRequest
from kafkawire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kafkawire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.messages.unregister_broker import UnregisterBrokerRequest
from tests.java.twins import Twins

BROKER = 4


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_match(twins: Twins, version: int) -> None:
    find = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
    twins.ask("DescribeAcls", find, version)
    rule = AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    twins.ask("CreateAcls", CreateAclsRequest([rule, rule]), version)
    gone = DeleteAclsFilter(1, None, 1, None, None, 1, 1)
    twins.ask("DeleteAcls", DeleteAclsRequest([gone]), version)


def test_scram_credential_requests_match(twins: Twins) -> None:
    for users in (None, [], ["a"], ["b", "b"]):
        rows = None if users is None else [UserName(name) for name in users]
        twins.ask("DescribeUserScramCredentials", DescribeUserScramCredentialsRequest(rows), 0)


def test_reassignment_and_transaction_requests_match(twins: Twins, topic: str) -> None:
    some = [
        ListPartitionReassignmentsTopics(topic, [0]),
        ListPartitionReassignmentsTopics("x", [3]),
    ]
    for rows in (None, some):
        request = ListPartitionReassignmentsRequest(10_000, rows)
        twins.ask("ListPartitionReassignments", request, 0)
    for version in (0, 1, 2):
        twins.ask("ListTransactions", ListTransactionsRequest(["Ongoing", "Odd"]), version)
    # NOT_COORDINATOR until Kafka has created __transaction_state, which no client has requested.
    asked = DescribeTransactionsRequest(["no-such"])
    twins.ask("DescribeTransactions", asked, 0, but=("error_code",))


@pytest.mark.parametrize("version", [1, 2])
def test_requests_for_unknown_folders_match(twins: Twins, topic: str, version: int) -> None:
    rows = [AlterReplicaLogDirTopic(topic, [0, 9]), AlterReplicaLogDirTopic("none", [0])]
    request = AlterReplicaLogDirsRequest([AlterReplicaLogDir("/no/such/folder", rows)])
    twins.ask("AlterReplicaLogDirs", request, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_requests_for_quorums_of_topics_match(twins: Twins, topic: str, version: int) -> None:
    request = DescribeQuorumRequest([TopicData(topic, [PartitionData(0), PartitionData(1)])])
    twins.ask("DescribeQuorum", request, version)


def test_requests_to_remove_unknown_brokers_match(twins: Twins) -> None:
    twins.ask("UnregisterBroker", UnregisterBrokerRequest(99), 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elect_leaders_requests_match(twins: Twins, topic: str, version: int) -> None:
    some = [TopicPartitions(topic, [0, 1, 7]), TopicPartitions("none", [0])]
    twins.ask("ElectLeaders", ElectLeadersRequest(0, some, 10_000), version)
    # Of all partitions each broker lists its topics, without partitions: none needs an election.
    every = ElectLeadersRequest(0, None, 10_000)
    kafka, ours = twins.ask("ElectLeaders", every, version, but=("replica_election_results",))
    for answer in (kafka, ours):
        found = {row.topic: row.partition_result for row in answer.replica_election_results}
        assert found[topic] == []
        assert not any(found.values())


def ask_until_same(twins: Twins, asked: DescribeConfigsRequest) -> None:
    """Compare settings of a broker: Kafka applies a change some time after its response."""
    for _ in range(600):
        try:
            twins.ask("DescribeConfigs", asked, 4, but=("synonyms",))
            return
        except AssertionError:
            time.sleep(0.1)
    twins.ask("DescribeConfigs", asked, 4, but=("synonyms",))


@pytest.mark.parametrize(
    ("name", "setting", "operation", "value"),
    [
        ("1", "background.threads", 0, "20"),
        ("1", "background.threads", 0, "x"),
        ("1", "background.threads", 0, "0"),
        ("", "background.threads", 0, "11"),
        ("1", "sasl.kerberos.min.time.before.relogin", 0, "58000"),
        ("", "sasl.kerberos.min.time.before.relogin", 0, "58000"),
        ("1", "no.such.setting", 0, "x"),
        ("1", "no.such.setting", 2, "x"),
        ("1", "no.such.setting", 1, None),
        ("1", "log.dirs", 0, "/x"),
        ("1", "log.dirs", 1, None),
        ("", "log.dirs", 1, None),
        ("1", "node.id", 1, None),
        ("", "node.id", 1, None),
        ("1", "auto.create.topics.enable", 1, None),
        ("1", "sasl.enabled.mechanisms", 1, None),
        ("", "sasl.enabled.mechanisms", 1, None),
        ("1", "ssl.keystore.location", 1, None),
        ("", "ssl.keystore.location", 1, None),
        ("1", "listener.name.plaintext.max.connections", 1, None),
        ("", "listener.name.plaintext.max.connections", 1, None),
        ("7", "node.id", 1, None),
        ("1", "advertised.listeners", 0, "PLAINTEXT://x:1"),
        ("1", "ssl.keystore.type", 0, "JKS"),
        ("1", "max.connections.per.ip", 0, "-1"),
        ("1", "message.max.bytes", 0, "many"),
        ("7", "background.threads", 0, "20"),
        ("x", "background.threads", 0, "20"),
    ],
)
def test_alter_broker_configs_requests_match(
    twins: Twins, name: str, setting: str, operation: int, value: str | None
) -> None:
    row = AlterableConfig(setting, operation, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, name, [row])])
    twins.ask("IncrementalAlterConfigs", request, 1)
    if operation == 0 and value in ("20", "11", "58000"):
        asked = DescribeConfigsRequest([DescribeConfigsResource(BROKER, name, [setting])])
        ask_until_same(twins, asked)
        reset = AlterableConfig(setting, 1, None)
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, name, [reset])])
        twins.ask("IncrementalAlterConfigs", request, 1)
