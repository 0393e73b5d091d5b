"""Schedule topics with real clients: kafka-python and confluent-kafka, kill -9 of the broker, and
the retry topics of docs/schedule.md.

Covers: kafkawire.schedules.service.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from kafkawire.testing.process import TEST_SETTINGS, BrokerProcess
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

LATER, ORDERS = "later", "orders"
PARTITIONS = 3
RECORDS = 1_500
LIVES = 4


def create(bootstrap: str, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(ORDERS, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic(LATER, PARTITIONS, 1, config={"schedule.target.topic": ORDERS, **named}),
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)


class Delivered:
    """Reads what is delivered, through restarts."""

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
        }
        self.consumer = confluent_kafka.Consumer(settings)
        self.consumer.subscribe([ORDERS])
        self.rows: list[confluent_kafka.Message] = []

    def poll(self) -> None:
        for message in self.consumer.consume(500, timeout=0.2):
            if message.error() is None:
                self.rows.append(message)

    def values(self) -> Counter[bytes]:
        return Counter(row.value() or b"" for row in self.rows)

    def until(self, count: int) -> None:
        """Read until so many different records have arrived."""

        def arrived() -> bool:
            self.poll()
            return len(self.values()) >= count

        wait_until(arrived, f"{count} delivered records")

    def close(self) -> None:
        self.consumer.close()


def test_each_record_is_delivered_once_by_a_broker_that_is_killed(tmp_path: Path) -> None:
    """Acknowledged records of an idempotent producer, due over some seconds, four kills."""
    settings = {**TEST_SETTINGS, "journal.bytes": str(1 << 20)}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        create(broker.bootstrap)
        reader = Delivered(broker.bootstrap)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
        )
        acked: list[bytes] = []

        def done(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                acked.append(message.value() or b"")

        for life in range(LIVES):
            for number in range(RECORDS):
                after_ms = number * 7919 % 4000
                producer.produce(
                    LATER,
                    b"%d-%d" % (life, number),
                    key=b"%d" % (number % 50),
                    headers=[("kafkawire-deliver-after", str(after_ms).encode())],
                    on_delivery=done,
                )
                producer.poll(0)
            wanted = len(acked) + RECORDS // 2

            def half(wanted: int = wanted) -> bool:
                producer.poll(0.05)
                reader.poll()
                return len(acked) >= wanted

            wait_until(half, "acknowledgments")
            broker.kill()
            broker.start()
        assert producer.flush(60) == 0
        reader.until(len(acked))
        found = reader.values()
        reader.close()
    assert len(acked) == LIVES * RECORDS, "an idempotent producer repeats what was lost"
    twice = {value: count for value, count in found.items() if count != 1}
    assert not twice
    assert found.keys() == set(acked)


def test_times_order_and_headers_with_kafka_python(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        create(broker.bootstrap, cleanup_policy="compact")
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        now_ms = int(time.time() * 1000)
        due = {b"%d" % n: now_ms + 3_000 - 20 * n for n in range(100)}
        for value, due_ms in due.items():
            producer.send(LATER, value, key=value, timestamp_ms=due_ms, partition=0)
        producer.send(LATER, b"never", key=b"x", timestamp_ms=now_ms + 4_000, partition=0)
        producer.send(LATER, None, key=b"x", partition=0)
        producer.flush()
        producer.close()
        reader = Delivered(broker.bootstrap)
        reader.until(100)
        reader.close()
    rows = reader.rows
    assert len(rows) == 100
    places: dict[int, list[int]] = {}
    for row in rows:
        value = row.value() or b""
        assert row.key() == value
        assert row.timestamp()[1] >= due[value], "never early"
        places.setdefault(row.partition() or 0, []).append(due[value])
        headers = dict(row.headers() or [])
        assert headers["kafkawire-scheduled-from"].startswith(b"later-0-")
    for dues in places.values():
        assert dues == sorted(dues), "in due order in each partition"
