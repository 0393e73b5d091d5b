"""Apache Kafka's tools for transactions: the copier, kafka-transactions, consoles, formatters."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.java.children import JavaChild
from tests.java.committed import CommittedReader, read_all
from tests.java.conftest import Program
from tests.real.conftest import MakeTopic

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
RECORDS = 1000
"""To copy, in transactions of 20."""


def fill(bootstrap: str, topic: str, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for i in range(count):
        producer.produce(topic, b"%d" % i)
    assert producer.flush(60) == 0


Copier = Callable[..., JavaChild]


@pytest.fixture
def copier(program: Program, bootstrap: str, name: str) -> Copier:
    """copier() -> a started process that copies the topic of the test to NAME-copy."""

    def make() -> JavaChild:
        settings = {
            "broker-list": bootstrap,
            "input-topic": name,
            "input-partition": "0",
            "output-topic": f"{name}-copy",
            "consumer-group": f"{name}-copiers",
            "transactional-id": name,
            "transaction-size": "20",
            "transaction-timeout": "2000",  # until then its successor has no offset to start from
        }
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        child = program(COPIER, *arguments, "--enable-random-aborts", heap="96m")
        child.start()
        return child

    return make


def test_copiers_fence_each_other(
    copier: Copier, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """Copiers with one transactional id: the first is killed, the second paused until two others
    have finished, of which at most one is fenced. It wakes up as a zombie, and is fenced when it
    copies what is new."""
    make_topic(1)
    make_topic(2, "-copy")
    fill(bootstrap, name)
    copied = CommittedReader(bootstrap, f"{name}-copy")
    first = copier()
    copied.count(100)
    first.kill()
    zombie = copier()
    copied.count(len(copied.records) + 100)
    zombie.signal(signal.SIGSTOP)
    others = [copier(), copier()]
    assert 0 in [other.finish() for other in others], [other.output for other in others]
    fill(bootstrap, name, 20)
    zombie.signal(signal.SIGCONT)
    assert zombie.finish() != 0, zombie.output
    found = [record.value() for record in read_all(bootstrap, f"{name}-copy")]
    assert sorted(found) == sorted(b"%d" % i for i in range(RECORDS))
