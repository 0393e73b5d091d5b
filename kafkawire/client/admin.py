"""Changes to topics and groups: partitions added, records deleted, committed offsets deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import TOPIC, settings
from kafkawire.client.errors import ClientError, check
from kafkawire.client.offsets import EARLIEST, LATEST, Partition, list_offsets, partition_text

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
CREATE_PARTITIONS, DELETE_GROUPS, OFFSET_DELETE = 37, 42, 47
UNREGISTER_BROKER = 64
"""ConfigSource.TOPIC_CONFIG: set on the topic itself."""
TIMEOUT_MS = 30_000


class TopicResult(NamedTuple):
    """Result of a topic: an error code (0: none) and its text."""

    code: int
    message: str | None


def topic_settings(cluster: Cluster, topic: str) -> dict[str, str | None]:
    """Return the settings of a topic that are set on itself, sorted."""
    rows = settings(cluster, (TOPIC, topic))
    return {row["name"]: row["value"] for row in rows if row["source"] == "topic"}


def effective_setting(cluster: Cluster, topic: str, name: str) -> str:
    """Return the value of a setting that a topic has, from itself or by default; "" if the broker
    does not return it. ClientError."""
    rows = settings(cluster, (TOPIC, topic), [name])
    return next((row["value"] or "" for row in rows if row["name"] == name), "")


def create_topic(
    cluster: Cluster,
    topic: str,
    partitions: int,
    settings: Mapping[str, str | None],
    *,
    replicas: int = -1,
    validate_only: bool = False,
) -> None:
    """Create a topic; -1 stands for the broker's default. BrokerError."""
    from kafkawire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    configs = [CreatableTopicConfig(*item) for item in settings.items()]
    row = CreatableTopic(topic, partitions, replicas, [], configs)
    asked = CreateTopicsRequest(topics=[row], validate_only=validate_only)
    answer = cluster.request(CREATE_TOPICS, asked).topics[0]
    check(f"topic {topic}", answer.error_code, answer.error_message)


def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, TopicResult]:
    """Delete topics and all their records."""
    from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    asked = DeleteTopicsRequest(topics=[], topic_names=list(names), timeout_ms=TIMEOUT_MS)
    if cluster.first.version(DELETE_TOPICS) >= 6:
        asked.topics = [DeleteTopicState(name=name) for name in names]
        asked.topic_names = []
    answer = cluster.request(DELETE_TOPICS, asked)
    return {row.name: TopicResult(row.error_code, row.error_message) for row in answer.responses}


def delete_group(cluster: Cluster, group: str) -> None:
    """Delete an empty group and its committed offsets. BrokerError."""
    from kafkawire.messages.delete_groups import DeleteGroupsRequest

    asked = DeleteGroupsRequest(groups_names=[group])
    result = cluster.coordinator(group).request(DELETE_GROUPS, asked).results[0]
    check(f"group {group}", result.error_code, result.error_message)


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


def plan_deletion(
    cluster: Cluster, led_by: Mapping[Partition, int], at_ms: int | None, offset: int | None
) -> dict[Partition, tuple[int, int]]:
    """Return the log start offset of each partition and a new one, which is inside its log: that of
    the first record since `at_ms`, `offset`, or the log end if both are None. Nothing is left where
    no record is as new as `at_ms`. ClientError for a partition without a leader."""
    starts = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
    ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
    found: dict[Partition, int] = {}
    if at_ms is not None:
        found = list_offsets(cluster, dict.fromkeys(led_by, at_ms), led_by)
    plan: dict[Partition, tuple[int, int]] = {}
    for place in sorted(led_by):
        if place not in ends:
            raise ClientError(f"{partition_text(place)} has no leader")
        wanted = ends[place] if offset is None else offset
        if at_ms is not None:
            wanted = found[place] if found.get(place, -1) >= 0 else ends[place]
        plan[place] = starts[place], min(max(wanted, starts[place]), ends[place])
    return plan


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
