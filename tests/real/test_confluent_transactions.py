"""confluent-kafka (librdkafka): transactions that commit, abort, are fenced or time out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.real.conftest import MakeTopic
from tests.real.librdkafka import (
    consumers,  # noqa: F401  (a fixture, by name)
    produce,
    read,
)
from tests.real.members import wait_for

LIMIT_S = 60


@pytest.fixture
def make_producer(bootstrap: str, name: str) -> Callable[..., Producer]:
    def make(suffix: str = "", **config: Any) -> Producer:
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name + suffix,
            "linger.ms": 5,
            "log_level": 2,  # fenced and timed out producers log errors that are expected
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        producer = Producer(settings)
        producer.init_transactions(LIMIT_S)
        return producer

    return make


def send(producer: Producer, topic: str, *values: int, partition: int = 0) -> None:
    """Begin a transaction, and send its records."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, b"%d" % value, partition=partition)
    assert producer.flush(LIMIT_S) == 0


def ends(admin: AdminClient, topic: str, level: IsolationLevel) -> int:
    """Return the end of the first partition."""
    at = TopicPartition(topic, 0)
    found = admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=level)
    return int(found[at].result(60).offset)


def values(messages: list[Message]) -> list[int]:
    return [int(message.value()) for message in messages]


def test_committed_records_are_read_in_order(
    make_producer: Callable[..., Producer], make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(3)
    producer = make_producer()
    for number in range(20):
        producer.begin_transaction()
        for value in range(number * 30, number * 30 + 30):
            producer.produce(topic, b"%d" % value, partition=value % 3)
        if number % 4 == 3:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)
    committed = [value for value in range(600) if value // 30 % 4 != 3]
    found = read(make_consumer(name, topic, isolation_level="read_committed"), len(committed))
    assert sorted(values(found)) == committed
    for partition in range(3):
        ordered = values([m for m in found if m.partition() == partition])
        assert ordered == sorted(ordered)


def test_open_transaction_holds_back_readers_of_committed_records(
    make_producer: Callable[..., Producer],
    make_topic: MakeTopic,
    make_consumer: Any,
    bootstrap: str,
    admin: AdminClient,
    name: str,
) -> None:
    topic = make_topic()
    producer = make_producer()
    send(producer, topic, 1, 2)
    produce(bootstrap, topic, [{"value": b"3"}])
    assert ends(admin, topic, IsolationLevel.READ_UNCOMMITTED) == 3
    assert ends(admin, topic, IsolationLevel.READ_COMMITTED) == 0
    dirty = make_consumer(name + "-d", topic, isolation_level="read_uncommitted")
    assert values(read(dirty, 3)) == [1, 2, 3]
    clean = make_consumer(name + "-c", topic, isolation_level="read_committed")
    assert clean.consume(1, 0.5) == []
    producer.commit_transaction(LIMIT_S)
    assert values(read(clean, 3)) == [1, 2, 3]
    assert ends(admin, topic, IsolationLevel.READ_COMMITTED) == 4


def test_aborted_records_are_seen_by_dirty_readers_alone(
    make_producer: Callable[..., Producer], make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    producer = make_producer()
    send(producer, topic, 1)
    producer.abort_transaction(LIMIT_S)
    send(producer, topic, 2)
    producer.commit_transaction(LIMIT_S)
    clean = make_consumer(name + "-c", topic, isolation_level="read_committed")
    assert values(read(clean, 1)) == [2]
    dirty = make_consumer(name + "-d", topic, isolation_level="read_uncommitted")
    assert values(read(dirty, 2)) == [1, 2]


def copy(consumer: Consumer, producer: Producer, to: str, count: int) -> list[TopicPartition]:
    """Consume, transform and produce `count` records in a transaction, which stays open."""
    messages = read(consumer, count)
    producer.begin_transaction()
    for message in messages:
        value = b"%d" % (int(message.value()) * 2)
        producer.produce(to, value, partition=message.partition())
    positions: list[TopicPartition] = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), LIMIT_S)
    return positions


def test_consume_transform_produce(
    make_producer: Callable[..., Producer],
    make_topic: MakeTopic,
    make_consumer: Any,
    bootstrap: str,
    name: str,
) -> None:
    source, sink = make_topic(2), make_topic(2, "-out")
    produce(bootstrap, source, [{"value": b"%d" % i, "partition": i % 2} for i in range(100)])
    producer = make_producer()
    consumer = make_consumer(name, source)
    for _ in range(3):
        copy(consumer, producer, sink, 20)
        producer.commit_transaction(LIMIT_S)
    copy(consumer, producer, sink, 20)
    producer.abort_transaction(LIMIT_S)
    consumer.close()
    again = make_consumer(name, source)  # from the offsets of the last commit
    for _ in range(2):
        copy(again, producer, sink, 20)
        producer.commit_transaction(LIMIT_S)
    found = read(make_consumer(name + "-r", sink, isolation_level="read_committed"), 100)
    assert sorted(values(found)) == [i * 2 for i in range(100)]
    at = [TopicPartition(source, p) for p in range(2)]
    assert [row.offset for row in again.committed(at, 20)] == [50, 50]


def test_second_producer_fences_the_first(
    make_producer: Callable[..., Producer], make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    zombie = make_producer()
    send(zombie, topic, 1)
    heir = make_producer()  # ends the open transaction
    send(heir, topic, 2)
    heir.commit_transaction(LIMIT_S)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(LIMIT_S)
    error = caught.value.args[0]
    assert error.fatal()
    assert error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    clean = make_consumer(name, topic, isolation_level="read_committed")
    assert values(read(clean, 1)) == [2]


def test_transaction_past_its_timeout_is_aborted(
    make_producer: Callable[..., Producer],
    make_topic: MakeTopic,
    make_consumer: Any,
    admin: AdminClient,
    name: str,
) -> None:
    topic = make_topic()
    late = make_producer(transaction_timeout_ms=1000)
    send(late, topic, 1)
    wait_for(lambda: ends(admin, topic, IsolationLevel.READ_COMMITTED) == 2)
    with pytest.raises(KafkaException) as caught:
        late.commit_transaction(LIMIT_S)
    assert caught.value.args[0].fatal()  # librdkafka cannot go on after its epoch was raised
    again = make_producer()
    send(again, topic, 2)
    again.commit_transaction(LIMIT_S)
    clean = make_consumer(name, topic, isolation_level="read_committed")
    assert values(read(clean, 1)) == [2]


def test_group_of_another_generation_cannot_commit_offsets(
    make_producer: Callable[..., Producer],
    make_topic: MakeTopic,
    make_consumer: Any,
    bootstrap: str,
    name: str,
) -> None:
    """The offsets of a member that was removed from its group are refused (KIP-447)."""
    source, sink = make_topic(), make_topic(1, "-out")
    produce(bootstrap, source, [{"value": b"%d" % i} for i in range(10)])
    removed = make_consumer(name, source)
    read(removed, 5)
    group = removed.consumer_group_metadata()
    at = [TopicPartition(source, 0, 5)]
    removed.close()
    producer = make_producer()
    send(producer, sink, 1)
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction(at, group, LIMIT_S)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(LIMIT_S)
    send(producer, sink, 2)
    producer.commit_transaction(LIMIT_S)
    clean = make_consumer(name + "-r", sink, isolation_level="read_committed")
    assert values(read(clean, 1)) == [2]


def test_many_producers_at_once(
    make_producer: Callable[..., Producer], make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(4)
    producers = [make_producer(f"-{number}") for number in range(6)]
    for round_number in range(5):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            for partition in range(4):
                value = number * 100 + round_number * 10 + partition
                producer.produce(topic, b"%d" % value, partition=partition)
        for number, producer in enumerate(producers):
            if (number + round_number) % 3:
                producer.commit_transaction(LIMIT_S)
            else:
                producer.flush(LIMIT_S)  # otherwise librdkafka may end what it has not begun: 48
                producer.abort_transaction(LIMIT_S)
    committed = sorted(
        number * 100 + round_number * 10 + partition
        for number in range(6)
        for round_number in range(5)
        for partition in range(4)
        if (number + round_number) % 3
    )
    found = read(make_consumer(name, topic, isolation_level="read_committed"), len(committed))
    assert sorted(values(found)) == committed
