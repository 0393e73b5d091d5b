"""Different clients in one group and on one topic: they share partitions and read each other's
records."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.real.conftest import MakeTopic
from tests.real.members import Member, poll_kafka_python, wait_for, wait_for_shares

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def poll_librdkafka(consumer: Consumer) -> list[tuple[int, int]]:
    found = [m for m in consumer.consume(100, 0.1) if m.error() is None]
    return [(int(m.partition() or 0), int(m.offset() or 0)) for m in found]


def poll_python(consumer: KafkaConsumer) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in poll_kafka_python(consumer)]


def test_two_clients_share_one_group(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    """Either may be the leader: they know the same strategy and the same subscription format."""
    topic = make_topic(6)
    theirs = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": "range",
        }
    )
    theirs.subscribe([topic])
    members = [Member(theirs, poll_librdkafka)]
    wait_for_shares(members, [6])
    other = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=300,
    )
    members.append(Member(other, poll_python))
    wait_for_shares(members, [3, 3])
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for i in range(60):
        producer.send(topic, b"x", partition=i % 6)
    producer.flush(90)
    wait_for(lambda: sum(len(member.records) for member in members) >= 60)
    read = sorted(place for member in members for place in member.records)
    assert read == [(p, o) for p in range(6) for o in range(10)]
    members.pop(0).leave()
    wait_for_shares(members, [6])
    members.pop().leave()
    producer.close()


@pytest.mark.parametrize("codec", CODECS)
async def test_records_of_one_client_are_read_by_others(
    bootstrap: str, make_topic: MakeTopic, name: str, codec: str | None
) -> None:
    topic = make_topic()
    headers = [("h", b"\x00\xff")]
    one = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
    for i in range(20):
        one.send(topic, b"value %d" % i * 30, key=b"k", headers=headers)
    one.flush(90)
    one.close()
    two = Producer({"bootstrap.servers": bootstrap, "compression.type": codec or "none"})
    for i in range(20, 40):
        two.produce(topic, b"value %d" % i * 30, key=b"k", headers=headers)
    assert two.flush(90) == 0
    expected = [(i, b"k", b"value %d" % i * 30, headers) for i in range(40)]
    assert read_by_librdkafka(bootstrap, topic, name) == expected
    assert read_by_kafka_python(bootstrap, topic) == expected
    reader = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await reader.start()
    records = [await reader.getone() for _ in range(40)]
    await reader.stop()
    assert [(r.offset, r.key, r.value, list(r.headers)) for r in records] == expected


def read_by_librdkafka(bootstrap: str, topic: str, group: str) -> list[Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[Any] = []

    def poll() -> bool:
        found.extend(consumer.consume(40, 0.2))
        return len(found) >= 40

    wait_for(poll)
    consumer.close()
    return [(m.offset(), m.key(), m.value(), m.headers()) for m in found]


def read_by_kafka_python(bootstrap: str, topic: str) -> list[Any]:
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    found: list[Any] = []

    def poll() -> bool:
        for batch in consumer.poll(timeout_ms=200).values():
            found.extend(batch)
        return len(found) >= 40

    wait_for(poll)
    consumer.close()
    return [(r.offset, r.key, r.value, list(r.headers)) for r in found]
