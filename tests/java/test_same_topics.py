"""Topics, settings, the cluster in Apache Kafka and in ours: each response compared by field.

Fields that are not compared are given with the request as `but`: the list of differences in
responses.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kafkawire.messages import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    metadata,
)
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.java.twins import Twins, create

SETTING = create_topics.CreatableTopicConfig


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_partitions": 0},
        {"num_partitions": -2},
        {"num_partitions": -1, "replication_factor": -1},
        {"replication_factor": 0},
        {"replication_factor": 3},
        {"name": ""},
        {"name": "."},
        {"name": "a/b"},
        {"name": "n" * 250},
        {"configs": [SETTING(name="no.such", value="1")]},
        {"configs": [SETTING(name="retention.ms", value="soon")]},
        {"configs": [SETTING(name="retention.ms", value="-5")]},
        {"configs": [SETTING(name="retention.ms", value=" 5 ")]},
        {"configs": [SETTING(name="retention.ms", value=None)]},
        {"configs": [SETTING(name="cleanup.policy", value="burn")]},
        {"configs": [SETTING(name="min.insync.replicas", value="0")]},
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [2, 5, 7])
def test_create_topics_matches(twins: Twins, fields: dict[str, Any], version: int) -> None:
    name = fields.get("name", f"c-{uuid.uuid4().hex[:8]}")
    rest = {key: value for key, value in fields.items() if key != "name"}
    kafka, _ = twins.ask("CreateTopics", create(name, **rest), version)
    if not kafka.topics[0].error_code:
        twins.ask("CreateTopics", create(name, **rest), version)


def test_create_topics_with_a_duplicate_matches(twins: Twins) -> None:
    one, other = (f"c-{uuid.uuid4().hex[:8]}" for _ in range(2))
    request = create(one)
    request.topics += create(other).topics + create(one).topics
    twins.ask("CreateTopics", request, 7)


def test_describe_topic_configs_matches(twins: Twins, topic: str) -> None:
    """Synonyms apart: Kafka leaves out some broker settings a topic's default comes from."""
    for version in (1, 4):
        place = describe_configs.DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=None
        )
        request = describe_configs.DescribeConfigsRequest(resources=[place])
        twins.ask("DescribeConfigs", request, version)


@pytest.mark.parametrize("place", [(4, "99"), (4, "x"), (2, ""), (2, "none"), (99, "q")])
def test_describe_configs_of_missing_resources_matches(
    twins: Twins, place: tuple[int, str]
) -> None:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=place[0], resource_name=place[1], configuration_keys=["zzz"]
    )
    twins.ask("DescribeConfigs", describe_configs.DescribeConfigsRequest(resources=[resource]), 4)


@pytest.mark.parametrize("version", [0, 1, 4, 7, 8, 9, 10, 12, 13])
def test_metadata_matches(twins: Twins, topic: str, version: int) -> None:
    names = [topic, "bad/name"] if version < 4 else [topic, "bad/name", "not-there"]
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=n) for n in names],
        allow_auto_topic_creation=version < 4,  # in earlier versions the request creates a topic
        include_topic_authorized_operations=version >= 8,
        include_cluster_authorized_operations=8 <= version <= 10,
    )
    twins.ask("Metadata", request, version)


def test_describe_cluster_and_topic_partitions_match(twins: Twins, topic: str) -> None:
    for version in (0, 1, 2):
        ask = DescribeClusterRequest(include_cluster_authorized_operations=True)
        twins.ask("DescribeCluster", ask, version)
    rows = [TopicRequest(name=n) for n in (topic, "not-there")]
    request = DescribeTopicPartitionsRequest(topics=rows, response_partition_limit=1)
    twins.ask("DescribeTopicPartitions", request, 0)


def test_create_partitions_matches(twins: Twins, topic: str) -> None:
    def asked(count: int, *nodes: int) -> Any:
        rows = [create_partitions.CreatePartitionsAssignment(broker_ids=[n]) for n in nodes]
        row = create_partitions.CreatePartitionsTopic(
            name=topic, count=count, assignments=rows or None
        )
        return create_partitions.CreatePartitionsRequest(topics=[row], timeout_ms=10_000)

    for request in (asked(1), asked(2), asked(0), asked(-1), asked(3), asked(5, 1, 1), asked(6, 9)):
        twins.ask("CreatePartitions", request, 3)


@pytest.mark.parametrize(
    ("setting", "operation", "value"),
    [
        ("retention.ms", 0, "50000000"),
        ("retention.ms", 0, "soon"),
        ("retention.ms", 0, None),
        ("retention.ms", 2, "5"),
        ("no.such", 0, "1"),
        ("no.such", 1, None),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"),
    ],
)
def test_incremental_alter_configs_matches(
    twins: Twins, topic: str, setting: str, operation: int, value: str | None
) -> None:
    row = incremental_alter_configs.AlterableConfig(
        name=setting, config_operation=operation, value=value
    )
    # Of two errors, a wrong setting and a missing topic, each broker reports another.
    for name in (topic, "none") if value == "50000000" else (topic,):
        place = incremental_alter_configs.AlterConfigsResource(
            resource_type=2, resource_name=name, configs=[row]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[place])
        twins.ask("IncrementalAlterConfigs", request, 1)


def test_delete_topics_matches(twins: Twins, topic: str) -> None:
    for names in (
        ["none", "none-2", "none-3"],
        ["none", "none", "x"],
        [topic, "none"],
        [topic],
        [""],
    ):
        request = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
        twins.ask("DeleteTopics", request, 5)
