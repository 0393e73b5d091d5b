"""A broker whose clock the test moves: what is due happens at once.

Covers: kafkawire.testing.commands
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaConsumer

import kafkawire.testing
from kafkawire.client.cluster import TRANSACTION, Cluster
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.describe_transactions import DescribeTransactionsRequest
from kafkawire.testing import TEST_SETTINGS, BrokerProcess, InProcessBroker, TopicProducer
from kafkawire.testing.topics import create_topic
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

Broker = BrokerProcess | InProcessBroker
DESCRIBE_GROUPS, DESCRIBE_TRANSACTIONS = 15, 65
DAY_S = 86_400


@pytest.fixture(scope="module", params=["process", "thread"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    made: Broker
    if request.param == "process":
        with BrokerProcess(settings=TEST_SETTINGS, clock="manual") as made:
            yield made
    else:
        with kafkawire.testing.broker(clock="manual") as made:
            yield made


def test_retention(broker: Broker) -> None:
    hour = {"retention.ms": 3_600_000}
    create_topic(broker.bootstrap, "kept", settings=hour)
    TopicProducer(broker.bootstrap).send("kept", b"value")
    broker.advance(3_000)
    assert len(broker.records("kept")) == 1
    broker.advance(1_000)
    wait_until(lambda: not broker.records("kept"), "retention")
    TopicProducer(broker.bootstrap).send("kept", b"of the new time")
    (record,) = broker.records("kept")
    assert record.offset == 1


def test_schedule(broker: Broker) -> None:
    create_topic(broker.bootstrap, "reminders")
    target = {"schedule.target.topic": "reminders"}
    create_topic(broker.bootstrap, "later", settings=target)
    ahead_ms = int(broker.advance(0) * 1000)
    TopicProducer(broker.bootstrap).send(
        "later",
        b"value",
        headers=[("kafkawire-deliver-after", b"PT24H")],
        timestamp_ms=time.time_ns() // 1_000_000 + ahead_ms,
    )
    broker.advance(DAY_S - 100)
    assert broker.records("reminders") == []
    broker.advance(101)
    (record,) = broker.wait_for("reminders", 1)
    assert record.value == b"value"


def test_session_of_a_consumer(broker: Broker) -> None:
    TopicProducer(broker.bootstrap).send("session", b"value")
    consumer = KafkaConsumer(
        "session",
        bootstrap_servers=broker.bootstrap,
        group_id="session",
        auto_offset_reset="earliest",
        session_timeout_ms=1_800_000,
        heartbeat_interval_ms=600_000,
    )

    def members() -> int:
        with Cluster(broker.bootstrap) as cluster:
            asked = DescribeGroupsRequest(["session"])
            answer = cluster.coordinator("session").request(DESCRIBE_GROUPS, asked)
            return len(answer.groups[0].members)

    try:
        assert next(consumer).value == b"value"
        assert members() == 1
        broker.advance(1_801)
        wait_until(lambda: not members(), "the end of the session")
    finally:
        consumer.close(autocommit=False)


def test_transaction(broker: Broker) -> None:
    create_topic(broker.bootstrap, "transaction")
    timeout_ms = 600_000
    settings = {"transactional.id": "t", "transaction.timeout.ms": timeout_ms}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("transaction", b"value")
    producer.flush(30)

    def state() -> str:
        with Cluster(broker.bootstrap) as cluster:
            asked = DescribeTransactionsRequest(["t"])
            connection = cluster.coordinator("t", TRANSACTION)
            rows = connection.request(DESCRIBE_TRANSACTIONS, asked).transaction_states
            return str(rows[0].transaction_state)

    assert state() == "Ongoing"
    broker.advance(timeout_ms / 1000 + 60)
    wait_until(lambda: state() == "CompleteAbort", "the abort")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def test_broker_serves_after_many_moves(broker: Broker) -> None:
    producer = TopicProducer(broker.bootstrap)
    for number in range(20):
        assert producer.send("moves", b"value") == number
        broker.advance(3_600)
    assert len(broker.records("moves")) == 20


def test_other_clocks_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="clock=fast: it must be system or manual"):
        BrokerProcess(clock="fast")
    wrong = pytest.raises(ValueError, match='start it with clock="manual"')
    with kafkawire.testing.broker() as made, wrong:
        made.advance(1)
    with kafkawire.testing.broker(clock="manual") as made, pytest.raises(ValueError, match="-1"):
        made.advance(-1)

    async def own_loop() -> None:
        async with kafkawire.testing.async_broker() as made:
            with pytest.raises(ValueError, match="manual"):
                made.advance(1)

    asyncio.run(own_loop())
