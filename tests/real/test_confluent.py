"""confluent-kafka (librdkafka): produce, groups of every kind, the whole admin client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
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

from kafkawire.testing.broker import BrokerProcess
from tests.real.conftest import START_MS, MakeTopic
from tests.real.members import Member, wait_for, wait_for_shares

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def make_consumer(bootstrap: str) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(group: str, *topics: str, **config: Any) -> Consumer:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 10_000,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        made.append(Consumer(settings))
        if topics:
            made[-1].subscribe(list(topics))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def produce(bootstrap: str, topic: str, rows: list[dict[str, Any]], **config: Any) -> list[int]:
    """Send `rows` and wait; the offsets, in the order of the answers. Raises the first error."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())

    for row in rows:
        producer.produce(topic, on_delivery=delivered, **row)
    assert producer.flush(30) == 0
    if errors:
        raise KafkaException(errors[0])
    return offsets


def read(consumer: Consumer, count: int, timeout_s: float = 30) -> list[Message]:
    found: list[Message] = []
    end = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < end:
        found += sound(consumer.consume(count - len(found), 0.2))
    assert len(found) == count
    return found


def sound(messages: list[Message]) -> list[Message]:
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
    return messages


def poll(consumer: Consumer) -> list[Message]:
    return sound(consumer.consume(100, 0.1))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_codecs_and_acks(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str, codec: str, acks: str
) -> None:
    topic = make_topic()
    rows = [{"value": b"value %d " % i * 30, "key": b"%d" % i} for i in range(200)]
    produce(bootstrap, topic, rows, compression_type=codec, acks=acks)
    found = read(make_consumer(name, topic), 200)
    assert [(m.offset(), m.key(), m.value()) for m in found] == [
        (i, row["key"], row["value"]) for i, row in enumerate(rows)
    ]


def test_idempotence_with_many_batches_in_flight(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(2)
    rows = [{"value": b"%d" % i, "key": b"%d" % (i % 7)} for i in range(3000)]
    produce(bootstrap, topic, rows, enable_idempotence=True, batch_num_messages=20, linger_ms=0)
    found = read(make_consumer(name, topic), 3000)
    assert sorted(int(m.value()) for m in found) == list(range(3000))
    for key in {m.key() for m in found}:
        ordered = [int(m.value()) for m in found if m.key() == key]
        assert ordered == sorted(ordered)


def test_headers_nulls_and_timestamps(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    rows: list[dict[str, Any]] = [
        {"key": b"k", "value": None, "timestamp": START_MS},
        {"key": None, "value": b"", "headers": headers, "timestamp": START_MS + 1},
    ]
    produce(bootstrap, topic, rows)
    first, second = read(make_consumer(name, topic), 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", None, START_MS)
    assert (second.key(), second.value(), second.headers()) == (None, b"", headers)


def test_a_compacted_topic_wants_keys(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(cleanup_policy="compact")
    assert produce(bootstrap, topic, [{"key": b"k", "value": b"v"}]) == [0]
    with pytest.raises(KafkaException) as caught:
        produce(bootstrap, topic, [{"value": b"v"}])
    assert caught.value.args[0].code() == KafkaError.INVALID_RECORD


def test_timestamps_outside_the_bounds(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(message_timestamp_before_max_ms="10000")
    now = int(time.time() * 1000)
    assert produce(bootstrap, topic, [{"value": b"v", "timestamp": now}]) == [0]
    with pytest.raises(KafkaException) as caught:
        produce(bootstrap, topic, [{"value": b"v", "timestamp": now - 60_000}])
    assert caught.value.args[0].code() == KafkaError.INVALID_TIMESTAMP


def test_many_partitions(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(200)
    rows = [{"value": b"%d" % i, "partition": i % 200} for i in range(1000)]
    produce(bootstrap, topic, rows)
    found = read(make_consumer(name, topic), 1000)
    assert {(m.partition(), m.offset()) for m in found} == {
        (p, o) for p in range(200) for o in range(5)
    }


def test_commit_resume_and_metadata(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(20)])
    first = make_consumer(name, topic)
    read(first, 7)
    first.commit(offsets=[TopicPartition(topic, 0, 7, metadata="seven")], asynchronous=False)
    (committed,) = first.committed([TopicPartition(topic, 0)], 10)
    assert (committed.offset, committed.metadata) == (7, "seven")
    first.close()
    assert [m.offset() for m in read(make_consumer(name, topic), 13)] == list(range(7, 20))


def test_offsets_for_times_and_watermarks(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    start = START_MS
    rows = [{"value": b"x", "timestamp": start + i * 10} for i in range(100)]
    produce(bootstrap, topic, rows, batch_num_messages=9)
    consumer = make_consumer(name)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (0, 100)
    for asked, offset in ((start, 0), (start + 1, 1), (start + 555, 56), (start + 991, -1)):
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, asked)], 10)
        assert found.offset == offset
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert read(consumer, 1)[0].offset() == 0


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str, strategy: str
) -> None:
    topic = make_topic(6)
    config = {"partition_assignment_strategy": strategy}
    members = [Member(make_consumer(name, topic, **config), poll) for _ in range(3)]
    wait_for_shares(members, [2, 2, 2])
    members.append(Member(make_consumer(name, topic, **config), poll))
    wait_for_shares(members, [1, 1, 2, 2])
    for _ in range(3):
        members.pop().leave()
    wait_for_shares(members, [6])
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in range(6)])
    wait_for(lambda: len(members[0].records) == 6)
    members.pop().leave()


def test_a_member_that_dies_is_missed(make_topic: MakeTopic, make_consumer: Any, name: str) -> None:
    """One whose process stops polling is out when max.poll.interval.ms is over."""
    topic = make_topic(2)
    dead = make_consumer(name, topic, max_poll_interval_ms=6000, session_timeout_ms=6000)
    wait_for(lambda: not poll(dead) and len(dead.assignment()) == 2)
    living = Member(make_consumer(name, topic), poll)
    wait_for_shares([living], [2])
    living.leave()


def test_a_static_member_returns_without_a_rebalance(
    admin: AdminClient, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(4)
    statics = [
        Member(make_consumer(name, topic, group_instance_id=f"i{i}", client_id=f"c{i}"), poll)
        for i in range(2)
    ]
    wait_for_shares(statics, [2, 2])
    held = statics[0].assigned
    before = members_of(admin, name)
    statics[0].leave()  # a static member leaves no word
    again = Member(make_consumer(name, topic, group_instance_id="i0", client_id="c0"), poll)
    wait_for(lambda: again.assigned == held)
    after = members_of(admin, name)
    assert set(after) == {"i0", "i1"}
    assert after["i1"] == before["i1"]  # the other kept its member id, ours is new
    assert after["i0"] != before["i0"]
    for member in (again, statics[1]):
        member.leave()


def members_of(admin: AdminClient, group: str) -> dict[str, str]:
    described = admin.describe_consumer_groups([group])[group].result(20)
    return {m.group_instance_id: m.member_id for m in described.members}


def test_a_second_static_member_of_one_id_fences_the_first(
    make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(1)
    first = Member(make_consumer(name, topic, group_instance_id="one"), poll)
    wait_for_shares([first], [1])
    second = Member(make_consumer(name, topic, group_instance_id="one"), poll)
    wait_for(lambda: first.error is not None)
    assert isinstance(first.error, KafkaException)
    assert first.error.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    wait_for_shares([second], [1])
    second.leave()


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(20)
    return int(caught.value.args[0].code())


def test_admin_topics(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, 3, 1)], validate_only=True)[name].result(20)
    assert name not in admin.list_topics(timeout=10).topics
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(20)
    futures = admin.create_topics([NewTopic(name, 3, 1)])
    assert code_of(futures[name]) == KafkaError.TOPIC_ALREADY_EXISTS
    described = admin.describe_topics(TopicCollection([name]))[name].result(20)
    assert [p.id for p in described.partitions] == [0, 1, 2]
    assert not described.is_internal
    admin.create_partitions([NewPartitions(name, 5)])[name].result(20)
    wait_for(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 5)
    futures = admin.create_partitions([NewPartitions(name, 4)])
    assert code_of(futures[name]) == KafkaError.INVALID_PARTITIONS
    admin.delete_topics([name])[name].result(20)
    wait_for(lambda: name not in admin.list_topics(timeout=10).topics)
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
def test_topics_that_cannot_be(admin: AdminClient, name: str, new: Any, code: int) -> None:
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


def test_a_changed_setting_counts_at_once(
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
    (node,) = admin.list_topics(timeout=10).brokers
    found = describe(admin, ConfigResource(ResourceType.BROKER, str(node)))
    assert found["num.partitions"].value == "1"
    assert found["offsets.topic.num.partitions"].value == "50"


def describe(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    found = admin.describe_configs([resource])[resource].result(20)
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
    admin.incremental_alter_configs([resource])[resource].result(20)


def test_admin_groups(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(2)
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in (0, 0, 1)])
    member = make_consumer(name, topic, client_id="somebody")
    read(member, 3)
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([name])[name].result(20)
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
    found = admin.list_consumer_group_offsets([asked])[name].result(20).topic_partitions
    assert {(at.partition, at.offset) for at in found} == {(0, 2), (1, 1)}
    back = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([back])[name].result(20)
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
    admin.delete_consumer_groups([name])[name].result(20)
    assert name not in listed(admin, set())
    assert code_of(admin.delete_consumer_groups([name])[name]) == KafkaError.GROUP_ID_NOT_FOUND


def listed(admin: AdminClient, states: set[ConsumerGroupState]) -> set[str]:
    found = admin.list_consumer_groups(states=states).result(20)
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
    deleted = admin.delete_records([TopicPartition(topic, 0, 2)])[at].result(20)
    assert deleted.low_watermark == 2
    assert offset_at(admin, at, OffsetSpec.earliest()) == 2
    futures = admin.delete_records([TopicPartition(topic, 0, 9)])
    assert code_of(futures[at]) == KafkaError.OFFSET_OUT_OF_RANGE


def offset_at(admin: AdminClient, at: TopicPartition, spec: OffsetSpec) -> int:
    return int(admin.list_offsets({at: spec})[at].result(20).offset)


def test_describe_cluster(admin: AdminClient) -> None:
    found = admin.describe_cluster().result(20)
    assert len(found.cluster_id) == 22
    assert len(found.nodes) == 1
    assert found.controller is not None


def test_a_transactional_producer_is_told_why_not(
    ours_only: BrokerProcess, bootstrap: str, name: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(20)
    error = caught.value.args[0]
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error.fatal()


def test_an_unknown_topic_without_auto_creation(make_consumer: Any, name: str) -> None:
    consumer = make_consumer(name, name, allow_auto_create_topics=False)
    message = None
    end = time.monotonic() + 20
    while message is None and time.monotonic() < end:
        message = consumer.poll(0.2)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
