"""Schedule topics with real clients: kafka-python and confluent-kafka, kill -9 of the broker, and
the retry topics of docs/schedule.md.

Covers: kafkawire.schedules.service.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
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


PAGE = (Path(__file__).parent.parent.parent / "docs" / "schedule.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def example(at: int, bootstrap: str) -> dict[str, Any]:
    """Run an example of docs/schedule.md; return what it defines."""
    names: dict[str, Any] = {}
    exec(EXAMPLES[at].replace("127.0.0.1:9092", bootstrap), names)
    return names


def read(bootstrap: str, topic: str, count: int) -> list[confluent_kafka.Message]:
    """Read records from the beginning, until there are so many."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[confluent_kafka.Message] = []

    def arrived() -> bool:
        for message in consumer.consume(100, timeout=0.2):
            if message.error() is None:
                found.append(message)
        return len(found) >= count

    wait_until(arrived, f"{count} records of {topic}")
    consumer.close()
    return found


def test_orders_time_out_unless_they_are_paid(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        shop = example(0, broker.bootstrap)
        for number in range(6):
            shop["ordered"](f"order-{number}", "PT2S")
        shop["paid"]("order-1")
        shop["paid"]("order-4")
        assert shop["shop"].flush(30) == 0
        found = read(broker.bootstrap, "order-timeouts", 4)
    keys = sorted((message.key() or b"").decode() for message in found)
    assert keys == ["order-0", "order-2", "order-3", "order-5"]


def test_failed_records_are_retried_with_growing_delays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        names = example(1, broker.bootstrap)
        names["FIRST_DELAY_MS"] = 100  # a test does not wait for half a minute
        seen: list[tuple[bytes, float]] = []

        def process(message: confluent_kafka.Message) -> None:
            seen.append((message.value() or b"", time.monotonic()))
            if message.value() == b"bad" or len(seen) < 3:
                raise ValueError("a test says so")

        stop = threading.Event()
        worker = threading.Thread(target=names["work"], args=(process, stop.is_set))
        worker.start()
        try:
            names["producer"].produce("payments", b"bad", b"k", headers=[("x", b"y")])
            names["producer"].produce("payments", b"good", b"k")
            names["producer"].flush()
            (dead,) = read(broker.bootstrap, "payments.dead", 1)
        finally:
            stop.set()
            worker.join()
    assert (dead.value(), dead.key(), dead.headers()) == (b"bad", b"k", [("x", b"y")])
    tries = [moment for value, moment in seen if value == b"bad"]
    assert len(tries) == names["ATTEMPTS"]
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert pause >= least * 0.95, "never early, by a clock of milliseconds"
    assert any(value == b"good" for value, _ in seen)
