"""`kafkawire schedule` with a real broker.

Covers: kafkawire.cli.schedule, kafkawire.handlers.describe_schedules,
kafkawire.messages.describe_schedules.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer

from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed
from tests.kit.json_schema import check_document
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("schedule"), settings=TEST_SETTINGS) as running:
        yield running


def make(broker: BrokerProcess, name: str, *configs: str) -> None:
    words = [word for each in configs for word in ("--config", each)]
    assert Typed(broker.bootstrap, "topics", "create", name, *words).code == 0


def shown(broker: BrokerProcess, *words: str) -> Any:
    found = Typed(broker.bootstrap, "schedule", *words, "--json")
    assert found.code == 0, found.err
    check_document(found.out)
    return json.loads(found.out)


def test_waiting_records_are_shown_and_cancelled(broker: BrokerProcess) -> None:
    make(broker, "orders")
    make(broker, "later", "schedule.target.topic=orders", "cleanup.policy=compact")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    far_ms = time.time_ns() // 1_000_000 + 7_200_000
    for number in range(3):
        producer.send("later", b"v", key=b"k%d" % number, timestamp_ms=far_ms, partition=0)
    producer.flush()
    producer.close()

    def waiting() -> int:
        (row,) = shown(broker, "show", "later")["partitions"]
        return int(row["waiting"])

    wait_until(lambda: waiting() == 3, "three records")
    hours = shown(broker, "show", "later")["hours"]
    assert sum(hour["records"] for hour in hours) == 3
    shown(broker, "cancel", "later", "--key", "k1")
    wait_until(lambda: waiting() == 2, "the cancellation by key")
    assert Typed(broker.bootstrap, "schedule", "cancel", "later", "--record", "0:0").code == 0
    wait_until(lambda: waiting() == 1, "the cancellation by offset")


def test_held_records_have_a_reason(broker: BrokerProcess) -> None:
    make(broker, "gone")
    make(broker, "mixed", "schedule.target.header=to")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    due_ms = time.time_ns() // 1_000_000 + 3_000
    producer.send("mixed", b"v", headers=[("to", b"gone")], timestamp_ms=due_ms, partition=0)
    producer.flush()
    producer.close()
    assert Typed(broker.bootstrap, "topics", "delete", "gone").code == 0

    def held() -> bool:
        return Typed(broker.bootstrap, "schedule", "why", "mixed").code == 1

    wait_until(held, "a held record")
    text = Typed(broker.bootstrap, "schedule", "why", "mixed", "--json").out
    check_document(text)
    assert "the target topic gone does not exist" in text
