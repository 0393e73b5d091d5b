"""View topics with real clients: records, offsets, groups that resume, long ranges without matches,
transactions, growth of the source, restarts.

Covers: kafkawire.handlers.fetch.view_reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from kafkawire.testing.process import BrokerProcess
from tests.kit.waiting import wait_until
from tests.real.conftest import OTHER_BROKER, SETTINGS
from tests.real.test_compacted import HURRY, Row, by_confluent, by_kafka_python

pytestmark = pytest.mark.skipif(OTHER_BROKER is not None, reason="views are kafkawire's own")

FILTERS = {
    "header": "header('region') == 'eu'",
    "key": "key in ('k1', 'k3')",
    "json": "value.order.amount > 900 and not value.test == true",
    "none": "value.order.id == 'nothing'",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("views"), settings=SETTINGS) as process:
        yield process


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    topics = [NewTopic(topic, partitions, -1, config=named)]
    for future in admin.create_topics(topics).values():
        future.result(60)


def create_view(broker: BrokerProcess, view: str, source: str, text: str) -> None:
    create(broker, view, -1, view_source_topic=source, view_filter=text)


def send(broker: BrokerProcess, topic: str, numbers: range, **more: Any) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, **more}
    producer = Producer(settings)
    for number in numbers:
        order = {"order": {"id": str(number), "amount": number % 1000}, "test": number % 2 == 0}
        producer.produce(
            topic,
            json.dumps(order).encode(),
            b"k%d" % (number % 100),
            headers=[("region", b"eu" if number % 100 == 7 else b"us")],
            partition=0,
        )
    assert producer.flush(60) == 0


def expected(name: str, numbers: range) -> list[int]:
    tests: dict[str, Callable[[int], bool]] = {
        "header": lambda number: number % 100 == 7,
        "key": lambda number: number % 100 in (1, 3),
        "json": lambda number: number % 1000 > 900 and number % 2 == 1,
        "none": lambda number: False,
    }
    return [number for number in numbers if tests[name](number)]


async def by_aiokafka(broker: BrokerProcess, topic: str, isolation: str) -> list[int]:
    """Read to the end of the partition, which the position reaches without a match there."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, check_crcs=True, isolation_level=isolation
    )
    await consumer.start()
    found: list[int] = []
    try:
        at = AioPartition(topic, 0)
        consumer.assign([at])
        await consumer.seek_to_beginning(at)
        (end,) = (await consumer.end_offsets([at])).values()
        async with asyncio.timeout(60):
            while await consumer.position(at) < end:
                rows = await consumer.getmany(at, timeout_ms=100)
                found += [record.offset for record in rows.get(at, [])]
    finally:
        await consumer.stop()
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_each_client_reads_the_matches_with_their_offsets(
    broker: BrokerProcess, codec: str
) -> None:
    source, numbers = f"orders-{codec}", range(10_000)
    create(broker, source)
    send(broker, source, numbers, **{"compression.type": codec})
    all_rows: dict[int, Row] = {row[0]: row for row in by_confluent(broker, source)}
    for name, text in FILTERS.items():
        view = f"{source}-{name}"
        create_view(broker, view, source, text)
        wanted = expected(name, numbers)
        rows = by_confluent(broker, view)
        assert [row[0] for row in rows] == wanted
        assert rows == [all_rows[offset] for offset in wanted]
        assert by_kafka_python(broker, view) == rows
        for isolation in ("read_committed", "read_uncommitted"):
            assert asyncio.run(by_aiokafka(broker, view, isolation)) == wanted


def test_librdkafka_reads_on_over_many_answers_without_a_match(broker: BrokerProcess) -> None:
    """With empty batches it reports MSG_SIZE_TOO_LARGE after eleven answers without a record."""
    create(broker, "scarce")
    create_view(broker, "scarce-view", "scarce", "key == 'wanted'")
    settings = {
        "bootstrap.servers": broker.bootstrap, "group.id": "scarce", "enable.partition.eof": True,
        "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, "max.partition.fetch.bytes": 1024,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("scarce-view", 0, 0)])
    try:
        for round_ in range(40):  # each is read to its end before the next is written
            send(broker, "scarce", range(20 * round_, 20 * round_ + 20))
            message = consumer.poll(60)
            while message is None or message.error() is None:
                message = consumer.poll(60)
            assert message.error().code() == -191, message.error()  # the end of the partition
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("scarce", b"found", b"wanted", partition=0)
        assert producer.flush(60) == 0
        message = consumer.poll(60)
        while message is None or message.error() is not None:
            assert message is None or message.error().code() == -191, message.error()
            message = consumer.poll(60)
        assert (message.offset(), message.value()) == (800, b"found")
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_commits_and_resumes(broker: BrokerProcess, protocol: str) -> None:
    source, view = f"groups-{protocol}", f"groups-{protocol}-view"
    create(broker, source, 2)
    create_view(broker, view, source, FILTERS["header"])
    send(broker, source, range(1_000))

    def consume(count: int) -> list[int]:
        settings = {
            "bootstrap.servers": broker.bootstrap, "group.id": view, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }  # fmt: skip
        consumer = Consumer(settings)
        consumer.subscribe([view])
        found: list[int] = []
        try:

            def arrived() -> bool:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    found.append(message.offset() or 0)
                return len(found) == count

            wait_until(arrived, "matches of the group")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    assert consume(6) == [7, 107, 207, 307, 407, 507]
    assert consume(4) == [607, 707, 807, 907]


def test_nothing_can_be_written_to_a_view(broker: BrokerProcess) -> None:
    create(broker, "read-only")
    create_view(broker, "read-only-view", "read-only", "key == 'x'")
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("read-only-view", b"no", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors[0].name() == "TOPIC_EXCEPTION"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException, match="is a view"):
        admin.create_partitions([NewPartitions("read-only-view", 3)])["read-only-view"].result(60)


def test_a_view_follows_its_source(tmp_path: Path) -> None:
    """More partitions, a restart, deletion and creation of the source."""
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        create(broker, "source", 1)
        create_view(broker, "view", "source", FILTERS["key"])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions("source", 3)])["source"].result(60)
        assert len(admin.list_topics("view").topics["view"].partitions) == 3
        send(broker, "source", range(200))
        assert [row[0] for row in by_confluent(broker, "view")] == [1, 3, 101, 103]
        broker.stop()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert len(admin.list_topics("view").topics["view"].partitions) == 3
        assert [row[0] for row in by_confluent(broker, "view")] == [1, 3, 101, 103]
        admin.delete_topics(["source"])["source"].result(60)
        assert admin.list_topics("view").topics["view"].error is not None
        create(broker, "source", 2)
        send(broker, "source", range(100))
        assert [row[0] for row in by_confluent(broker, "view")] == [1, 3]
        admin.delete_topics(["view"])["view"].result(60)
        assert len(by_confluent(broker, "source")) == 100, "the source stays"


def test_aborted_records_are_not_seen(broker: BrokerProcess) -> None:
    create(broker, "sales")
    create_view(broker, "sales-view", "sales", "key == 'a'")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "sales"})
    producer.init_transactions()
    wanted = []
    for number in range(30):
        producer.begin_transaction()
        for key in (b"a", b"b"):
            producer.produce("sales", b"%d" % number, key, partition=0)
        if number % 3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            wanted.append(b"%d" % number)
    assert [row[3] for row in by_confluent(broker, "sales-view")] == wanted
    offsets = asyncio.run(by_aiokafka(broker, "sales-view", "read_committed"))
    assert len(offsets) == len(wanted)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
    at = KafkaPythonPartition("sales-view", 0)
    consumer.assign([at])
    consumer.seek(at, 0)
    end = consumer.end_offsets([at])[at]
    values: list[bytes] = []

    def all_read() -> bool:
        for rows in consumer.poll(timeout_ms=200).values():
            values.extend(row.value for row in rows)
        return bool(consumer.position(at) >= end)

    wait_until(all_read, "the end of the view")
    consumer.close()
    assert values == wanted


def test_view_of_a_compacted_topic_has_the_matches_that_are_left(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={**SETTINGS, **HURRY}) as process:
        create(process, "states", cleanup_policy="compact")
        create_view(process, "eu-states", "states", FILTERS["header"])
        for first in (0, 500, 1_000):
            send(process, "states", range(first, first + 500))

        def is_compacted() -> bool:
            return len(by_confluent(process, "states")) < 1_000

        wait_until(is_compacted, "the compaction of the source")
        left = [row for row in by_confluent(process, "states") if row[4] == [("region", b"eu")]]
        assert by_confluent(process, "eu-states") == left
        assert left[-1][0] == 1_407, "the last record of the key k7"


def test_view_of_a_schedule_topic_has_what_waits(broker: BrokerProcess) -> None:
    create(broker, "due")
    create(broker, "later", schedule_target_topic="due")
    create_view(broker, "later-eu", "later", FILTERS["header"])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, region in enumerate((b"eu", b"us", b"eu")):
        headers: Any = [("region", region), ("kafkawire-deliver-after", b"PT1H")]
        producer.produce("later", b"%d" % number, headers=headers)
    assert producer.flush(60) == 0
    assert [row[3] for row in by_confluent(broker, "later-eu")] == [b"0", b"2"]
    assert by_confluent(broker, "due") == []
