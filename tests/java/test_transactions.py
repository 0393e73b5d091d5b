"""Apache Kafka's tools for transactions: the copier, kafka-transactions, consoles, formatters."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.java.calls.wire import Owner
from tests.java.children import JavaChild
from tests.java.committed import CommittedReader, read_all, wait_until_stable
from tests.java.conftest import Program, Tool
from tests.java.internal_topics import formatted
from tests.java.transactional import Side
from tests.real.conftest import MakeTopic
from tests.real.members import wait_for

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
            "transaction-timeout": "3000",  # until then its successor has no offset to start from
        }
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        child = program(COPIER, *arguments, "--enable-random-aborts", heap="96m")
        child.start()
        return child

    return make


def test_copiers_fence_each_other(
    copier: Copier, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """Copiers with one transactional id: the first is killed, two more are paused one after the
    other, the last one finishes. The paused ones wake up as zombies, and are fenced when they copy
    what is new. A copier reads its position before its producer fences others, so it starts
    when none runs."""
    make_topic(1)
    make_topic(2, "-copy")
    fill(bootstrap, name)
    copied = CommittedReader(bootstrap, f"{name}-copy")
    first = copier()
    copied.count(100)
    first.kill()
    zombies = []
    for _ in range(2):
        zombies.append(copier())
        copied.more(100)
        zombies[-1].signal(signal.SIGSTOP)
    last = copier()
    assert last.finish() == 0, last.output
    fill(bootstrap, name, 20)
    for zombie in zombies:
        zombie.signal(signal.SIGCONT)
    for zombie in zombies:
        assert zombie.finish() != 0, zombie.output
    found = [record.value() for record in read_all(bootstrap, f"{name}-copy")]
    assert sorted(found) == sorted(b"%d" % i for i in range(RECORDS))


@pytest.fixture
def producer(bootstrap: str, name: str) -> Producer:
    """A producer whose transactional id is the name of the test."""
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    made.init_transactions(60)
    return made


def begin(producer: Producer, topic: str, *values: bytes) -> None:
    """Write in a new transaction, which stays open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def table(output: str) -> list[dict[str, str]]:
    """The rows of a tool's table, by its header line."""
    head, *lines = [[c.strip() for c in line.split("\t")] for line in output.splitlines() if line]
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_console_consumer_reads_committed_records(
    tool: Tool, make_topic: MakeTopic, producer: Producer
) -> None:
    topic = make_topic()
    begin(producer, topic, b"committed")
    producer.commit_transaction(60)
    begin(producer, topic, b"aborted")
    producer.abort_transaction(60)
    begin(producer, topic, b"open")

    def read(level: str) -> list[str]:
        options = ("--from-beginning", "--timeout-ms", "2000", "--isolation-level", level)
        return tool("ConsoleConsumer", "--topic", topic, *options, code=None).split()

    assert read("read_committed") == ["committed"]
    assert read("read_uncommitted") == ["committed", "aborted", "open"]
    producer.commit_transaction(60)
    assert read("read_committed") == ["committed", "open"]


def test_producer_performance_in_transactions(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    topic = make_topic(2)
    records = ("--topic", topic, "--num-records", "3000", "--record-size", "100")
    more = ("--throughput", "3000", "--transactional-id", name, "--transaction-duration-ms", "50")
    assert "3000 records sent" in tool("ProducerPerformance", *records, *more)
    assert len(read_all(bootstrap, topic)) == 3000


def test_kafka_transactions_shows_and_ends_an_open_transaction(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, producer: Producer, name: str
) -> None:
    def states() -> list[str]:
        listed = tool("TransactionsCommand", "list", "--transactional-id-pattern", f"{name}.*")
        return [row["TransactionState"] for row in table(listed)]

    topic = make_topic(2)
    assert states() == ["Empty"]
    begin(producer, topic, b"0", b"1")
    assert states() == ["Ongoing"]
    partition = ("--topic", topic, "--partition", "0")
    (described,) = table(tool("TransactionsCommand", "describe", "--transactional-id", name))
    (writer,) = table(tool("TransactionsCommand", "describe-producers", *partition))
    assert (described["TransactionState"], described["TopicPartitions"]) == (
        "Ongoing",
        f"{topic}-0",
    )
    assert (writer["LastSequence"], writer["CurrentTransactionStartOffset"]) == ("1", "0")
    assert writer["ProducerId"] == described["ProducerId"]
    hanging = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert table(tool("TransactionsCommand", *hanging)) == []
    tool("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", name)
    assert states() == ["Empty"]
    with pytest.raises(KafkaException, match=r"fenced|epoch"):
        producer.commit_transaction(60)
    assert read_all(bootstrap, topic) == []


def test_kafka_transactions_finds_and_aborts_a_hanging_transaction(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """A batch in a transaction that the coordinator does not know: possible without verification,
    as before Kafka 3.6. Only an operator can end it."""
    topic = make_topic()
    side = Side("", bootstrap, name)
    code, *of = side.init(name)
    owner = Owner(name, *of)
    assert code == 0
    two_hours_ago = int(time.time() * 1000) - 7_200_000
    with verification_off(tool):
        sent = side.produce((topic, 0), owner, 0, b"lost", version=9, stamp_ms=two_hours_ago)
    side.connection.close()
    assert sent == (0, 0)
    (found,) = table(tool("TransactionsCommand", "find-hanging", "--topic", topic))
    assert (found["Partition"], found["ProducerId"]) == ("0", str(owner.pid))
    assert found["StartOffset"] == "0"
    assert int(found["Duration(min)"]) in range(120, 125)
    abort = ("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    tool("TransactionsCommand", *abort)
    wait_until_stable(bootstrap, topic)
    assert table(tool("TransactionsCommand", "find-hanging", "--broker-id", "1")) == []
    assert "Could not find" in tool("TransactionsCommand", *abort, code=1, stderr=True)
    assert read_all(bootstrap, topic) == []


@contextmanager
def verification_off(tool: Tool) -> Iterator[None]:
    """Let transactional batches into partitions that are not part of their transaction."""
    change = ("--alter", "--entity-type", "brokers", "--entity-default")
    setting = "transaction.partition.verification.enable"
    tool("ConfigCommand", *change, "--add-config", f"{setting}=false")
    try:
        yield
    finally:
        tool("ConfigCommand", *change, "--delete-config", setting)


def test_transaction_log_is_in_kafkas_format(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, producer: Producer, name: str
) -> None:
    """Every state of a transactional id as Kafka's own formatter prints it."""
    topic = make_topic()
    begin(producer, topic, b"0")
    producer.commit_transaction(60)
    begin(producer, topic, b"1")
    producer.abort_transaction(60)
    wait_until_stable(bootstrap, topic)

    def rows() -> list[dict[str, Any]]:
        formatter = "TransactionLogMessageFormatter"
        return formatted(tool, bootstrap, formatter, "__transaction_state", name)

    wait_for(lambda: len(rows()) == 7, what=rows)
    found = rows()
    assert {(row["key"]["type"], row["value"]["version"]) for row in found} == {(0, 1)}
    values = [row["value"]["data"] for row in found]
    assert [value["transactionStatus"] for value in values] == [0, 1, 2, 4, 1, 3, 5]
    partitions = [{"topic": topic, "partitionIds": [0]}]
    open_or_ending = [value["transactionPartitions"] for value in values]
    assert open_or_ending == [None, partitions, partitions, [], partitions, partitions, []]
    assert {value["transactionTimeoutMs"] for value in values} == {60_000}
    assert len({value["producerId"] for value in values}) == 1
    assert [value["producerEpoch"] for value in values] == [0] * 7  # librdkafka's: not raised
    begun = [value["transactionStartTimestampMs"] for value in values]
    assert begun[0] == -1
    assert begun[1] == begun[2] == begun[3] <= begun[4] == begun[5] == begun[6]
