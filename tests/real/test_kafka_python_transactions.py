"""kafka-python: transactions that commit, abort or are fenced, with offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

from tests.real.conftest import MakeTopic
from tests.real.members import wait_for

READ_ALL_S = 60.0


@pytest.fixture
def make_producer(bootstrap: str, name: str) -> Iterator[Callable[..., KafkaProducer]]:
    made: list[KafkaProducer] = []

    def make(**config: Any) -> KafkaProducer:
        settings = {"bootstrap_servers": bootstrap, "transactional_id": name, **config}
        made.append(KafkaProducer(**settings))
        made[-1].init_transactions()
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=5)


def read_committed(bootstrap: str, topic: str) -> list[int]:
    """Read all committed records of the first partition."""
    at = TopicPartition(topic, 0)
    settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
    found: list[int] = []
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, **settings)) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        end = consumer.end_offsets([at])[at]

        def done() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                found.extend(int(record.value) for record in records)
            return bool(consumer.position(at) >= end)

        wait_for(done, READ_ALL_S)
    return found


def send(producer: KafkaProducer, topic: str, *values: int) -> None:
    """Begin a transaction, and send its records."""
    producer.begin_transaction()
    for value in values:
        producer.send(topic, b"%d" % value, partition=0)
    producer.flush()


def test_commit_and_abort(
    make_producer: Callable[..., KafkaProducer], make_topic: MakeTopic, bootstrap: str
) -> None:
    topic = make_topic()
    producer = make_producer()
    for number in range(10):
        send(producer, topic, *range(number * 10, number * 10 + 10))
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = [value for value in range(100) if value // 10 % 3 != 2]
    assert read_committed(bootstrap, topic) == expected


def test_consume_transform_produce(
    make_producer: Callable[..., KafkaProducer],
    make_topic: MakeTopic,
    bootstrap: str,
    name: str,
) -> None:
    source, sink = make_topic(), make_topic(1, "-out")
    at = TopicPartition(source, 0)
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as plain:
        for value in range(40):
            plain.send(source, b"%d" % value, partition=0)
        plain.flush()
    producer = make_producer()
    for number in range(5):  # the second and the fourth are aborted
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        with closing(
            KafkaConsumer(
                bootstrap_servers=bootstrap, group_id=name, max_poll_records=10, **settings
            )
        ) as consumer:
            consumer.assign([at])
            records = read(consumer, 10)
            send(producer, sink, *(int(record.value) * 2 for record in records))
            offsets = {at: OffsetAndMetadata(records[-1].offset + 1, "", -1)}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if number in (1, 3):
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert read_committed(bootstrap, sink) == [value * 2 for value in range(30)]


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    def done() -> bool:
        for records in consumer.poll(timeout_ms=500).values():
            found.extend(records)
        return len(found) == count

    wait_for(done)
    return found


def test_second_producer_fences_the_first(
    make_producer: Callable[..., KafkaProducer], make_topic: MakeTopic, bootstrap: str
) -> None:
    topic = make_topic()
    zombie = make_producer()
    send(zombie, topic, 1)
    heir = make_producer()
    send(heir, topic, 2)
    heir.commit_transaction()
    with pytest.raises(KafkaError):
        zombie.commit_transaction()
    assert read_committed(bootstrap, topic) == [2]


def test_transaction_past_its_timeout_is_aborted(
    make_producer: Callable[..., KafkaProducer], make_topic: MakeTopic, bootstrap: str
) -> None:
    topic = make_topic()
    at = TopicPartition(topic, 0)
    late = make_producer(transaction_timeout_ms=1000)
    send(late, topic, 1)
    settings = {"isolation_level": "read_committed"}
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, **settings)) as consumer:
        wait_for(lambda: consumer.end_offsets([at])[at] == 2)
    with pytest.raises(KafkaError):
        late.commit_transaction()
    again = make_producer()
    send(again, topic, 2)
    again.commit_transaction()
    assert read_committed(bootstrap, topic) == [2]
