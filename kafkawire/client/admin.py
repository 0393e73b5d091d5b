"""Changes to topics and groups: partitions added, records deleted, committed offsets deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.offsets import Partition

CREATE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, OFFSET_DELETE = (
    19,
    21,
    32,
    37,
    47,
)
UNREGISTER_BROKER = 64
TOPIC_RESOURCE = 2
OWN_SOURCE = 1
"""ConfigSource.TOPIC_CONFIG: set on the topic itself."""
TIMEOUT_MS = 30_000


class TopicResult(NamedTuple):
    """Result of a topic: an error code (0: none) and its text."""

    code: int
    message: str | None


def topic_settings(cluster: Cluster, topic: str) -> dict[str, str | None]:
    """Return the settings of a topic that are set on itself, sorted."""
    from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(TOPIC_RESOURCE, topic, None)
    asked = DescribeConfigsRequest(resources=[resource])
    result = cluster.request(DESCRIBE_CONFIGS, asked).results[0]
    check(f"settings of topic {topic}", result.error_code, result.error_message)
    return {
        row.name: row.value
        for row in sorted(result.configs, key=lambda row: row.name)
        if row.config_source == OWN_SOURCE
    }


def effective_setting(cluster: Cluster, topic: str, name: str) -> str:
    """Return the value of a setting that a topic has, from itself or by default; "" if the broker
    does not return it."""
    from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(TOPIC_RESOURCE, topic, [name])
    asked = DescribeConfigsRequest(resources=[resource])
    result = cluster.request(DESCRIBE_CONFIGS, asked).results[0]
    rows = () if result.error_code else result.configs
    return next((row.value or "" for row in rows if row.name == name), "")


def create_topic(
    cluster: Cluster, topic: str, partitions: int, settings: Mapping[str, str | None]
) -> None:
    """Create a topic with the broker's default replication factor. BrokerError."""
    from kafkawire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    configs = [CreatableTopicConfig(*item) for item in settings.items()]
    row = CreatableTopic(topic, partitions, -1, [], configs)
    answer = cluster.request(CREATE_TOPICS, CreateTopicsRequest(topics=[row])).topics[0]
    check(f"topic {topic}", answer.error_code, answer.error_message)


def create_partitions(
    cluster: Cluster, totals: Mapping[str, int], *, validate_only: bool = False
) -> dict[str, TopicResult]:
    """Raise the number of partitions of each topic to its total."""
    from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

    topics = [CreatePartitionsTopic(name, total, None) for name, total in totals.items()]
    asked = CreatePartitionsRequest(topics, TIMEOUT_MS, validate_only)
    answer = cluster.request(CREATE_PARTITIONS, asked)
    return {row.name: TopicResult(row.error_code, row.error_message) for row in answer.results}


def delete_records(
    cluster: Cluster, before: Mapping[Partition, int], led_by: Mapping[Partition, int]
) -> dict[Partition, tuple[int, int]]:
    """Delete the records before an offset of each partition (-1: the high watermark); return error
    code and new log start offset. Partitions without a leader are left out."""
    from kafkawire.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    by_node: dict[int, dict[str, list[Any]]] = {}
    for (topic, index), offset in before.items():
        node = led_by.get((topic, index), -1)
        if node >= 0:
            rows = by_node.setdefault(node, {}).setdefault(topic, [])
            rows.append(DeleteRecordsPartition(index, offset))
    found: dict[Partition, tuple[int, int]] = {}
    for node, topics in by_node.items():
        asked = DeleteRecordsRequest(
            [DeleteRecordsTopic(name, rows) for name, rows in topics.items()], TIMEOUT_MS
        )
        for topic in cluster.node(node).request(DELETE_RECORDS, asked).topics:
            for row in topic.partitions:
                found[topic.name, row.partition_index] = (row.error_code, row.low_watermark)
    return found


def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[Partition]
) -> dict[Partition, int]:
    """Delete the committed offsets of a group; return error codes by partition. BrokerError if
    none was deleted: an unknown group, or an active one that is not of consumers."""
    from kafkawire.messages.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(index))
    rows = [OffsetDeleteRequestTopic(*item) for item in topics.items()]
    asked = OffsetDeleteRequest(group_id=group, topics=rows)
    answer = cluster.coordinator(group).request(OFFSET_DELETE, asked)
    check(f"group {group}", answer.error_code)
    return {
        (topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }


def remove_broker(cluster: Cluster, node_id: int) -> None:
    """Remove the registration of a broker that does not come back. BrokerError."""
    from kafkawire.messages.unregister_broker import UnregisterBrokerRequest

    answer = cluster.request(UNREGISTER_BROKER, UnregisterBrokerRequest(node_id))
    check(f"broker {node_id} is not removed", answer.error_code, answer.error_message)
