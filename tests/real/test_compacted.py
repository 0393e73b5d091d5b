"""Real clients reading compacted topics: rewritten batches, gaps, empty batches, tombstones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from kafkawire.testing.process import BrokerProcess
from tests.real.conftest import OTHER_BROKER, SETTINGS, START_MS
from tests.real.members import wait_for

pytestmark = pytest.mark.skipif(OTHER_BROKER is not None, reason="needs a cleaner in a hurry")

HURRY = {
    "journal.roll.ms": "100",
    "cut.interval.ms": "50",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0",
    "offsets.topic.num.partitions": "1",
}
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, key, value, headers."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("compacted")
    with BrokerProcess(folder, settings={**SETTINGS, **HURRY}) as process:
        yield process


def make(broker: BrokerProcess, topic: str, **configs: str) -> None:
    config = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    new = NewTopic(topic, 1, replication_factor=1, config={"cleanup.policy": "compact"} | config)
    for future in admin.create_topics([new]).values():
        future.result(60)


def producer(broker: BrokerProcess, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, **more})


def by_confluent(broker: BrokerProcess, topic: str, start: int = 0) -> list[Row]:
    """All records from an offset on. Its end is the high watermark, gaps or not."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"{topic}-reader",
            "enable.partition.eof": True,
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    rows: list[Row] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "received neither a record nor the end of the partition"
            if message.error() is not None:
                return rows
            rows.append(_row(message))
    finally:
        consumer.close()


def _row(message: Message) -> Row:
    offset = message.offset()
    assert offset is not None
    headers = [(name, value) for name, value in message.headers() or []]
    return offset, message.timestamp()[1], message.key(), message.value(), headers


def by_kafka_python(broker: BrokerProcess, topic: str, start: int = 0) -> list[Row]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, check_crcs=True)
    at = KafkaPythonPartition(topic, 0)
    consumer.assign([at])
    consumer.seek(at, start)
    end = consumer.end_offsets([at])[at]
    rows: list[Row] = []

    def all_read() -> bool:
        for batch in consumer.poll(timeout_ms=200).values():
            rows.extend((r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch)
        return bool(consumer.position(at) >= end)

    try:
        wait_for(all_read, 90, lambda: f"{consumer.position(at)} of {end}")
    finally:
        consumer.close()
    return rows


def by_aiokafka(broker: BrokerProcess, topic: str, count: int) -> list[Row]:
    """Read this many records: its position does not advance over offsets without a record."""

    async def read() -> list[Row]:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap,
                                    auto_offset_reset="earliest", check_crcs=True)  # fmt: skip
        await consumer.start()
        try:
            rows = []
            for _ in range(count):
                r = await asyncio.wait_for(consumer.getone(), 60)
                rows.append((r.offset, r.timestamp, r.key, r.value, list(r.headers)))
            return rows
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_clients_read_remaining_records(broker: BrokerProcess, name: str, codec: str) -> None:
    make(broker, name)
    sender = producer(broker, **{"enable.idempotence": True, "compression.type": codec})
    expected: dict[bytes, Row] = {}
    for n in range(400):
        key = b"key-%d" % (n % 7)
        value = None if n > 390 and n % 7 in (2, 3) else b"%d:" % n + b"x" * (n % 50)
        headers: list[tuple[str, bytes | None]] = [("n", b"%d" % n), ("none", None)]
        sender.produce(name, value, key, headers=headers, timestamp=START_MS + n)
        expected[key] = n, START_MS + n, key, value, headers
        if n % 40 == 39:
            sender.flush(90)
    rows: list[Row] = []

    def is_clean() -> bool:
        rows[:] = by_confluent(broker, name)
        return len(rows) <= 7

    wait_for(is_clean, 90, lambda: f"{len(rows)} records are left")
    assert rows == sorted(expected.values())
    assert by_kafka_python(broker, name) == rows
    assert by_aiokafka(broker, name, 7) == rows
    assert by_confluent(broker, name, 100) == rows, "from an offset that is no longer there"
    assert by_kafka_python(broker, name, 396) == rows[3:]
    sender.produce(name, b"more", b"key-0")
    assert sender.flush(90) == 0, "its sequence numbers continue"


def test_clients_skip_empty_batches_and_producer_continues(
    broker: BrokerProcess, name: str
) -> None:
    make(broker, name)
    first = producer(broker, **{"enable.idempotence": True})
    for n in range(20):
        first.produce(name, b"old", b"key-%d" % (n % 5), timestamp=START_MS)
    assert first.flush(90) == 0
    second = producer(broker)
    for n in range(5):
        second.produce(name, b"new", b"key-%d" % n, timestamp=START_MS + n)
    assert second.flush(90) == 0
    wait_for(lambda: len(by_confluent(broker, name)) == 5)
    rows = by_confluent(broker, name)
    assert [row[0] for row in rows] == list(range(20, 25))
    assert by_kafka_python(broker, name) == rows
    assert by_aiokafka(broker, name, 5) == rows
    assert by_confluent(broker, name, 3) == rows
    first.produce(name, b"newest", b"key-0")
    assert first.flush(90) == 0
    assert by_confluent(broker, name)[-1][0] == 25


def test_tombstones_are_read_until_removed(broker: BrokerProcess, name: str) -> None:
    make(broker, name, delete_retention_ms="1500")
    sender = producer(broker)
    for value in (b"1", b"2", None):
        sender.produce(name, value, b"gone", timestamp=START_MS)
    sender.produce(name, b"v", b"kept", timestamp=START_MS)
    assert sender.flush(90) == 0
    wait_for(lambda: len(by_confluent(broker, name)) == 2)
    rows = by_kafka_python(broker, name)
    assert rows == [(2, START_MS, b"gone", None, []), (3, START_MS, b"kept", b"v", [])]
    count = 0

    def tombstone_is_gone() -> bool:
        nonlocal count
        count += 1  # cleaning runs when there are new records
        sender.produce(name, b"%d" % count, b"other")
        assert sender.flush(90) == 0
        return all(row[2] != b"gone" for row in by_confluent(broker, name))

    wait_for(tombstone_is_gone)
    assert by_kafka_python(broker, name)[0] == rows[1]


def test_committed_offsets_survive_cleaning_of_offsets_topic(
    broker: BrokerProcess, name: str
) -> None:
    make(broker, name)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False}
    consumer = Consumer({**settings, "group.id": name})
    for n in range(200):
        at = TopicPartition(name, 0, n, metadata=f"{n}:" + "m" * 500)
        consumer.commit(offsets=[at], asynchronous=False)
    wait_for(lambda: len(by_confluent(broker, "__consumer_offsets")) < 20)
    consumer.close()
    broker.restart()
    again = Consumer({**settings, "group.id": name})
    (found,) = again.committed([TopicPartition(name, 0)], 20)
    again.close()
    assert (found.offset, found.metadata) == (199, "199:" + "m" * 500)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_without_a_key_are_refused_in_batches_of_any_size(
    broker: BrokerProcess, name: str, codec: str
) -> None:
    make(broker, name)
    sender = producer(broker, **{"compression.type": codec, "linger.ms": 5000})
    errors: dict[int, KafkaError | None] = {}
    for n in range(100):
        # Keys differ: of records with one key the cleaner could leave only the last.
        key = None if n == 99 else b"key-%d" % n

        def delivered(error: KafkaError | None, _: Message, n: int = n) -> None:
            errors[n] = error

        sender.produce(name, b"%d" % n * 50, key, on_delivery=delivered)
    assert sender.flush(90) == 0
    # The client chooses the batches: each is refused or stored whole.
    last = errors[99]
    assert last is not None
    assert last.code() == KafkaError.INVALID_RECORD
    stored = {b"%d" % n * 50 for n, error in errors.items() if error is None}
    assert {row[3] for row in by_confluent(broker, name)} == stored


def test_topic_changed_to_compacted_is_cleaned(broker: BrokerProcess, name: str) -> None:
    make(broker, name, cleanup_policy="delete")
    sender = producer(broker)
    for n in range(50):
        sender.produce(name, b"%d" % n, b"key-%d" % (n % 5), timestamp=START_MS)
    sender.produce(name, b"without a key", timestamp=START_MS)
    assert sender.flush(90) == 0
    folder = broker.data / "brokers"
    wait_for(lambda: any(folder.glob("*/segments/*.segment")))
    assert len(by_confluent(broker, name)) == 51
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    wait_for(lambda: len(by_confluent(broker, name)) == 5)
    assert [row[3] for row in by_confluent(broker, name)] == [b"%d" % n for n in range(45, 50)]
