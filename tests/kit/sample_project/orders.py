"""Tests of a shop's order events with kafka-python, confluent-kafka and aiokafka: producers,
consumer groups, admin clients, transactions, and a broker that restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.admin import NewTopic as PythonTopic
from kafka.structs import OffsetAndMetadata

from kafkawire.testing import BrokerProcess

pytestmark = pytest.mark.filterwarnings("ignore")

TOPIC = "orders"
TIMEOUT_S = 30.0


def server(broker: BrokerProcess) -> str:
    return broker.bootstrap


def create(broker: BrokerProcess, partitions: int, name: str = TOPIC) -> None:
    admin = AdminClient({"bootstrap.servers": server(broker)})
    for future in admin.create_topics([NewTopic(name, partitions)]).values():
        future.result(TIMEOUT_S)


def produce(broker: BrokerProcess, values: list[bytes], topic: str = TOPIC) -> None:
    producer = KafkaProducer(bootstrap_servers=server(broker))
    for value in values:
        producer.send(topic, value, key=value)
    producer.flush(TIMEOUT_S)
    producer.close()


@contextmanager
def python_consumer(broker: BrokerProcess, *topics: str, **options: Any) -> Iterator[Any]:
    consumer = KafkaConsumer(
        *topics,
        bootstrap_servers=server(broker),
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
        **options,
    )
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def confluent_consumer(broker: BrokerProcess, **options: str) -> Iterator[Consumer]:
    dotted = {name.replace("_", "."): value for name, value in options.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": server(broker),
            "group.id": "shop",
            "auto.offset.reset": "earliest",
            **dotted,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        yield consumer
    finally:
        consumer.close()


def taken(consumer: Consumer, count: int) -> list[bytes]:
    """Return the values of the next `count` messages."""
    values: list[bytes] = []
    while len(values) < count:
        (message,) = consumer.consume(1, TIMEOUT_S)
        assert message.error() is None
        values.append(message.value())
    return values


def test_produce_and_consume(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"1", b"2", b"3"])
    with python_consumer(kafkawire_broker, TOPIC) as consumer:
        assert [next(consumer).value for _ in range(3)] == [b"1", b"2", b"3"]


def test_group_resumes_at_its_commit(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"1", b"2"])
    group = {"group_id": "shop", "enable_auto_commit": False}
    with python_consumer(kafkawire_broker, TOPIC, **group) as consumer:
        record = next(consumer)
        partition = PythonPartition(TOPIC, record.partition)
        consumer.commit({partition: OffsetAndMetadata(record.offset + 1, "", -1)})
    with python_consumer(kafkawire_broker, TOPIC, **group) as consumer:
        assert next(consumer).value == b"2"


def test_two_members_share_partitions(kafkawire_broker: BrokerProcess) -> None:
    create(kafkawire_broker, 4)
    with confluent_consumer(kafkawire_broker) as one, confluent_consumer(kafkawire_broker) as two:
        while {len(one.assignment()), len(two.assignment())} != {2}:
            one.poll(0.1)  # kafka-python's polls must be longer than a rebalance takes
            two.poll(0.1)
        indexes = {each.partition for each in (*one.assignment(), *two.assignment())}
        assert indexes == set(range(4))


def test_admin_creates_and_deletes_topics(kafkawire_broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server(kafkawire_broker))
    admin.create_topics([PythonTopic("a", 2, 1), PythonTopic("b", 1, 1)])
    assert set(admin.list_topics()) == {"a", "b"}
    admin.delete_topics(["a"])
    assert set(admin.list_topics()) == {"b"}
    admin.close()


def test_a_key_stays_in_its_partition(kafkawire_broker: BrokerProcess) -> None:
    create(kafkawire_broker, 6)
    producer = KafkaProducer(bootstrap_servers=server(kafkawire_broker))
    futures = [producer.send(TOPIC, b"v", key=b"customer-7") for _ in range(10)]
    assert len({future.get(TIMEOUT_S).partition for future in futures}) == 1
    producer.close()


def test_headers_and_timestamps(kafkawire_broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=server(kafkawire_broker))
    headers = [("source", b"web")]
    producer.send(TOPIC, b"v", headers=headers, timestamp_ms=1_700_000_000_000).get(TIMEOUT_S)
    producer.close()
    with python_consumer(kafkawire_broker, TOPIC) as consumer:
        record = next(consumer)
    assert (list(record.headers), record.timestamp) == (headers, 1_700_000_000_000)


def test_delivery_reports(kafkawire_broker: BrokerProcess) -> None:
    reports: list[tuple[Any, int]] = []
    producer = Producer({"bootstrap.servers": server(kafkawire_broker)})
    for number in range(100):
        producer.produce(
            TOPIC, b"%d" % number, on_delivery=lambda e, m: reports.append((e, m.offset()))
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert reports == [(None, offset) for offset in range(100)]


def test_confluent_group(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"1", b"2", b"3"])
    with confluent_consumer(kafkawire_broker) as consumer:
        assert taken(consumer, 3) == [b"1", b"2", b"3"]
        consumer.commit(asynchronous=False)
        (committed,) = consumer.committed([ConfluentPartition(TOPIC, 0)], TIMEOUT_S)
        assert committed.offset == 3


def test_partitions_and_settings(kafkawire_broker: BrokerProcess) -> None:
    create(kafkawire_broker, 1)
    admin = AdminClient({"bootstrap.servers": server(kafkawire_broker)})
    admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result(TIMEOUT_S)
    assert len(admin.list_topics(TOPIC, TIMEOUT_S).topics[TOPIC].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    settings = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert settings["cleanup.policy"].value == "delete"


def test_transactions(kafkawire_broker: BrokerProcess) -> None:
    producer = Producer(
        {"bootstrap.servers": server(kafkawire_broker), "transactional.id": "billing"}
    )
    producer.init_transactions(TIMEOUT_S)
    for value, committed in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(TOPIC, value)
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if committed else producer.abort_transaction)(TIMEOUT_S)
    with confluent_consumer(kafkawire_broker, isolation_level="read_committed") as consumer:
        assert taken(consumer, 2) == [b"kept", b"kept too"]


def test_idempotent_producer(kafkawire_broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": server(kafkawire_broker), "enable.idempotence": True})
    for number in range(200):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    with confluent_consumer(kafkawire_broker) as consumer:
        assert taken(consumer, 200) == [b"%d" % number for number in range(200)]


def test_aiokafka(kafkawire_broker: BrokerProcess) -> None:
    async def run() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=server(kafkawire_broker)) as producer:
            await producer.send_and_wait(TOPIC, b"1")
            await producer.send_and_wait(TOPIC, b"2")
        async with AIOKafkaConsumer(
            TOPIC, bootstrap_servers=server(kafkawire_broker), auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    assert asyncio.run(run()) == [b"1", b"2"]


def test_aiokafka_group(kafkawire_broker: BrokerProcess) -> None:
    create(kafkawire_broker, 2)

    async def run() -> None:
        members = [
            AIOKafkaConsumer(TOPIC, bootstrap_servers=server(kafkawire_broker), group_id="shop")
            for _ in range(2)
        ]
        await asyncio.gather(*(each.start() for each in members))
        while {len(each.assignment()) for each in members} != {1}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.gather(*(each.stop() for each in members))

    asyncio.run(run())


def test_offsets_for_times(kafkawire_broker: BrokerProcess) -> None:
    async def run() -> None:
        partition = TopicPartition(TOPIC, 0)
        async with AIOKafkaProducer(bootstrap_servers=server(kafkawire_broker)) as producer:
            for second in range(5):
                await producer.send_and_wait(TOPIC, b"v", timestamp_ms=1000 * second)
        async with AIOKafkaConsumer(bootstrap_servers=server(kafkawire_broker)) as consumer:
            consumer.assign([partition])
            found = await consumer.offsets_for_times({partition: 2500})
            assert found[partition].offset == 3
            assert await consumer.position(partition) == 5  # its first, which no later reset moves
            await consumer.seek_to_beginning(partition)
            assert await consumer.position(partition) == 0

    asyncio.run(run())


def test_lag_of_a_group(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"%d" % number for number in range(10)])
    partition = PythonPartition(TOPIC, 0)
    with python_consumer(kafkawire_broker, TOPIC, group_id="shop") as consumer:
        for _ in range(4):
            next(consumer)
        consumer.commit({partition: OffsetAndMetadata(4, "", -1)})
        (end,) = consumer.end_offsets([partition]).values()
        assert end - consumer.committed(partition) == 6


def test_records_survive_a_restart(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"before"])
    kafkawire_broker.restart()
    produce(kafkawire_broker, [b"after"])
    with python_consumer(kafkawire_broker, TOPIC) as consumer:
        assert [next(consumer).value for _ in range(2)] == [b"before", b"after"]


def test_consume_transform_produce(kafkawire_broker: BrokerProcess) -> None:
    produce(kafkawire_broker, [b"1", b"bad", b"3"])
    with confluent_consumer(kafkawire_broker) as consumer:
        values = taken(consumer, 3)
        consumer.commit(asynchronous=False)
    good = [b"%d" % (2 * int(value)) for value in values if value.isdigit()]
    produce(kafkawire_broker, good, "doubled")
    produce(kafkawire_broker, [value for value in values if not value.isdigit()], "dead-letters")
    with python_consumer(kafkawire_broker, "doubled", "dead-letters") as reader:
        found = sorted(next(reader).value for _ in range(3))
    assert found == [b"2", b"6", b"bad"]
