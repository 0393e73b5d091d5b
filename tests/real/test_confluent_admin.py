"""confluent-kafka (librdkafka): the whole admin client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.real.conftest import START_MS, MakeTopic
from tests.real.librdkafka import (
    code_of,
    consumers,  # noqa: F401  (a fixture, by name)
    produce,
    read,
)
from tests.real.members import wait_for


def test_admin_topics(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, 3, 1)], validate_only=True)[name].result(60)
    assert name not in admin.list_topics(timeout=60).topics
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(60)
    futures = admin.create_topics([NewTopic(name, 3, 1)])
    assert code_of(futures[name]) == KafkaError.TOPIC_ALREADY_EXISTS
    described = admin.describe_topics(TopicCollection([name]))[name].result(60)
    assert [p.id for p in described.partitions] == [0, 1, 2]
    assert not described.is_internal
    admin.create_partitions([NewPartitions(name, 5)])[name].result(60)
    wait_for(lambda: len(admin.list_topics(name, timeout=60).topics[name].partitions) == 5)
    futures = admin.create_partitions([NewPartitions(name, 4)])
    assert code_of(futures[name]) == KafkaError.INVALID_PARTITIONS
    admin.delete_topics([name])[name].result(60)
    wait_for(lambda: name not in admin.list_topics(timeout=60).topics)
    assert code_of(admin.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (("bad/name", 1, 1, {}), KafkaError.TOPIC_EXCEPTION),
        (("n" * 250, 1, 1, {}), KafkaError.TOPIC_EXCEPTION),
        ((None, 0, 1, {}), KafkaError.INVALID_PARTITIONS),
        ((None, 1, 7, {}), KafkaError.INVALID_REPLICATION_FACTOR),
        ((None, 1, 1, {"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
        ((None, 1, 1, {"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        ((None, 1, 1, {"cleanup.policy": "burn"}), KafkaError.INVALID_CONFIG),
    ],
)
def test_invalid_topics_are_refused(admin: AdminClient, name: str, new: Any, code: int) -> None:
    topic = new[0] or name
    futures = admin.create_topics([NewTopic(topic, new[1], new[2], config=new[3])])
    assert code_of(futures[topic]) == code


def test_admin_configs(admin: AdminClient, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic(retention_ms="86400000")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = describe(admin, resource)
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("86400000", False)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].is_default) == ("delete", True)
    change: list[tuple[str, str | None, AlterConfigOpType]] = [
        ("retention.ms", "3600000", AlterConfigOpType.SET),
        ("max.message.bytes", "2000", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    ]
    alter(admin, resource, change)
    found = describe(admin, resource)
    assert found["retention.ms"].value == "3600000"
    assert sorted(found["cleanup.policy"].value.split(",")) == ["compact", "delete"]
    alter(admin, resource, [("retention.ms", None, AlterConfigOpType.DELETE)])
    found = describe(admin, resource)
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("604800000", True)
    bad = ConfigResource(ResourceType.TOPIC, topic)
    bad.add_incremental_config(
        ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)
    )
    assert code_of(admin.incremental_alter_configs([bad])[bad]) == KafkaError.INVALID_CONFIG


def test_changed_setting_takes_effect_at_once(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    row = [{"key": b"k", "value": b"v" * 5000}]
    assert produce(bootstrap, topic, row) == [0]
    resource = ConfigResource(ResourceType.TOPIC, topic)
    alter(admin, resource, [("max.message.bytes", "2000", AlterConfigOpType.SET)])
    with pytest.raises(KafkaException) as caught:
        produce(bootstrap, topic, row)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_broker_configs_are_described(admin: AdminClient) -> None:
    (node,) = admin.list_topics(timeout=60).brokers
    found = describe(admin, ConfigResource(ResourceType.BROKER, str(node)))
    assert found["num.partitions"].value == "1"
    assert found["offsets.topic.num.partitions"].value == "50"


def describe(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    found = admin.describe_configs([resource])[resource].result(60)
    assert isinstance(found, dict)
    return found


def alter(
    admin: AdminClient,
    resource: ConfigResource,
    changes: list[tuple[str, str | None, AlterConfigOpType]],
) -> None:
    resource = ConfigResource(resource.restype, resource.name)
    for setting, value, operation in changes:
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        resource.add_incremental_config(entry)
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_admin_groups(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(2)
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in (0, 0, 1)])
    member = make_consumer(name, topic, client_id="somebody")
    read(member, 3)
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([name])[name].result(60)
    assert (described.state, described.is_simple_consumer_group) == (
        ConsumerGroupState.STABLE,
        False,
    )
    assert described.partition_assignor == "range"
    (only,) = described.members
    assert (only.client_id, len(only.assignment.topic_partitions)) == ("somebody", 2)
    assert name in listed(admin, {ConsumerGroupState.STABLE})
    assert name not in listed(admin, {ConsumerGroupState.EMPTY})
    assert code_of(admin.delete_consumer_groups([name])[name]) == KafkaError.NON_EMPTY_GROUP
    member.close()
    assert name in listed(admin, {ConsumerGroupState.EMPTY})
    asked = ConsumerGroupTopicPartitions(name)
    found = admin.list_consumer_group_offsets([asked])[name].result(60).topic_partitions
    assert {(at.partition, at.offset) for at in found} == {(0, 2), (1, 1)}
    back = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([back])[name].result(60)
    assert [m.offset() for m in read(make_consumer(name, topic), 1)] == [1]


def test_groups_are_deleted(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"x"}])
    simple = make_consumer(name)
    simple.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    simple.close()
    assert name in listed(admin, set())
    admin.delete_consumer_groups([name])[name].result(60)
    assert name not in listed(admin, set())
    assert code_of(admin.delete_consumer_groups([name])[name]) == KafkaError.GROUP_ID_NOT_FOUND


def listed(admin: AdminClient, states: set[ConsumerGroupState]) -> set[str]:
    found = admin.list_consumer_groups(states=states).result(60)
    assert not found.errors
    return {group.group_id for group in found.valid}


def test_list_offsets_and_delete_records(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    stamps = [START_MS, START_MS + 900, START_MS + 100]
    produce(bootstrap, topic, [{"value": b"x", "timestamp": t} for t in stamps])
    at = TopicPartition(topic, 0)
    assert offset_at(admin, at, OffsetSpec.earliest()) == 0
    assert offset_at(admin, at, OffsetSpec.latest()) == 3
    assert offset_at(admin, at, OffsetSpec.max_timestamp()) == 1
    assert offset_at(admin, at, OffsetSpec.for_timestamp(START_MS + 500)) == 1
    deleted = admin.delete_records([TopicPartition(topic, 0, 2)])[at].result(60)
    assert deleted.low_watermark == 2
    assert offset_at(admin, at, OffsetSpec.earliest()) == 2
    futures = admin.delete_records([TopicPartition(topic, 0, 9)])
    assert code_of(futures[at]) == KafkaError.OFFSET_OUT_OF_RANGE


def offset_at(admin: AdminClient, at: TopicPartition, spec: OffsetSpec) -> int:
    return int(admin.list_offsets({at: spec})[at].result(60).offset)


def test_describe_cluster(admin: AdminClient) -> None:
    found = admin.describe_cluster().result(60)
    assert len(found.cluster_id) == 22
    assert len(found.nodes) == 1
    assert found.controller is not None
