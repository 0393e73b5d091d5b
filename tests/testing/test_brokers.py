"""Several brokers in one test: leaders and coordinators that move, faults, the clock, snapshots.

Covers: kafkawire.testing.brokers
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer

import kafkawire.testing
from kafkawire.client.cluster import Cluster
from kafkawire.testing import (
    TEST_SETTINGS,
    BrokerFailed,
    BrokerProcess,
    InProcessBroker,
    TopicProducer,
    create_topic,
)

pytestmark = pytest.mark.real

Broker = BrokerProcess | InProcessBroker


@pytest.fixture(scope="module", params=["process", "thread"])
def three(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "process":
        with BrokerProcess(settings=TEST_SETTINGS, brokers=3, clock="manual") as broker:
            yield broker
    else:
        with kafkawire.testing.broker(brokers=3, clock="manual") as inside:
            yield inside


@pytest.fixture
def topic(three: Broker, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name)
    create_topic(three.bootstrap, name, 3)
    return name


def nodes(broker: Broker) -> list[int]:
    with Cluster(broker.bootstrap) as cluster:
        return cluster.nodes()


def test_clients_see_all_brokers(three: Broker, topic: str) -> None:
    assert len(three.bootstrap.split(",")) == 3
    assert nodes(three) == [1, 2, 3]
    assert sorted(three.leaders(topic).values()) == [1, 2, 3]


@pytest.mark.slow
def test_leader_moves_while_clients_use_it(three: Broker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=three.bootstrap, retries=100)
    for to in (1, 2, 3):
        three.move_leader(topic, 0, to=to)
        assert three.leaders(topic)[0] == to
        producer.send(topic, b"%d" % to, partition=0).get(timeout=60)
    producer.close()
    assert [record.value for record in three.records(topic)] == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_group_survives_the_end_of_its_coordinator(three: Broker, topic: str) -> None:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=three.bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    TopicProducer(three.bootstrap).send(topic, b"1")
    assert next(consumer).value == b"1"
    consumer.commit()
    coordinator = three.leaders("__consumer_offsets")[0]
    three.stop_broker(coordinator)
    left = sorted({1, 2, 3} - {coordinator})
    assert nodes(three) == left
    assert set(three.leaders(topic).values()) <= set(left)
    assert three.leaders("__consumer_offsets")[0] in left
    TopicProducer(three.bootstrap).send(topic, b"2")
    assert next(consumer).value == b"2"
    consumer.commit()
    consumer.close()
    three.start_broker(coordinator)
    assert nodes(three) == [1, 2, 3]
    three.move_leader("__consumer_offsets", 0, to=coordinator)
    create_topic(three.bootstrap, f"{topic}-later", 3)
    assert sorted(three.leaders(f"{topic}-later").values()) == [1, 2, 3]


def test_fault_is_counted_over_all_brokers(three: Broker, topic: str) -> None:
    fault = three.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=3)
    producer = KafkaProducer(bootstrap_servers=three.bootstrap, retry_backoff_ms=1, retries=100)
    for partition in range(3):
        producer.send(topic, b"", partition=partition).get(timeout=60)
    producer.close()
    assert fault.used == 3


@pytest.mark.slow
def test_started_broker_has_the_faults(three: Broker, topic: str) -> None:
    fault = three.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=None)
    three.stop_broker(3)
    three.start_broker(3)
    three.move_leader(topic, 0, to=3)
    producer = KafkaProducer(bootstrap_servers=three.bootstrap, retry_backoff_ms=1, retries=1000)
    sent = producer.send(topic, b"", partition=0)
    fault.wait()
    three.clear_faults()
    sent.get(timeout=60)
    producer.close()


def test_clock_is_that_of_all(three: Broker, topic: str) -> None:
    before = three.advance(0)
    assert three.advance(3600) == before + 3600
    assert nodes(three) == [1, 2, 3]
    for partition in range(3):
        TopicProducer(three.bootstrap).send(topic, b"", partition=partition)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda broker: broker.leaders("none"), "topic=none: there is no such topic"),
        (lambda broker: broker.move_leader("none", 0, to=1), "topic=none: there is no such topic"),
        (
            lambda broker: broker.move_leader("__consumer_offsets", 9, to=1),
            "partition=9: topic __consumer_offsets has no such partition",
        ),
        (
            lambda broker: broker.move_leader("__consumer_offsets", 0, to=4),
            "to=4: it must be a running broker (1, 2, 3)",
        ),
        (lambda broker: broker.stop_broker(4), "node=4: it must be a running broker (1, 2, 3)"),
        (lambda broker: broker.start_broker(1), "node=1: it must be a stopped broker (none is)"),
    ],
)
def test_wrong_brokers_are_named(
    three: Broker, wrong: Callable[[Broker], object], sentence: str
) -> None:
    with Cluster(three.bootstrap) as cluster:
        cluster.coordinator("g")  # creates __consumer_offsets
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        wrong(three)


def test_last_broker_is_not_stopped() -> None:
    with (
        kafkawire.testing.broker() as one,
        pytest.raises(ValueError, match=r"^node=1: it is the last"),
    ):
        one.stop_broker(1)


def test_partition_with_an_open_transaction_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.testing.brokers.MOVED_S", 0.5)
    with kafkawire.testing.broker(brokers=2) as broker:
        create_topic(broker.bootstrap, "t", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "a"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", b"")
        producer.flush()
        leader = broker.leaders("t")[0]
        with pytest.raises(ValueError, match=r"^t-0: broker \d leads it after 0.5 s"):
            broker.move_leader("t", 0, to=3 - leader)
        with pytest.raises(ValueError, match=rf"^node={leader}: it leads partitions after 0.5 s"):
            broker.stop_broker(leader)
        producer.commit_transaction()
        assert nodes(broker) == [1, 2]


@pytest.mark.slow
def test_ports_and_records_stay_over_restart_and_snapshot(tmp_path: Path) -> None:
    listeners = ["OTHER://127.0.0.1:0"]
    with BrokerProcess(tmp_path / "data", brokers=2, listeners=listeners) as broker:
        before = dict(broker.addresses)
        create_topic(broker.bootstrap, "t", 2)
        for partition in range(2):
            TopicProducer(broker.addresses["OTHER"]).send("t", b"", partition=partition)
        broker.stop_broker(1)
        broker.kill()
        broker.restart()
        assert broker.addresses == before
        assert nodes(broker) == [1, 2]
        assert len(broker.records("t")) == 2
        prepared = broker.snapshot(tmp_path / "prepared")
        with kafkawire.testing.broker(snapshot=prepared, brokers=2) as copied:
            assert len(copied.records("t")) == 2
            assert copied.addresses.keys() == {"PLAINTEXT"}
        with (
            pytest.raises(ValueError, match=r"it has 2 brokers, start it with brokers=2$"),
            kafkawire.testing.broker(snapshot=prepared),
        ):
            pass
    with pytest.raises(ValueError, match=r"^brokers=0: it must be at least 1$"):
        BrokerProcess(brokers=0)
    with pytest.raises(ValueError, match=r"^workers=2: "):
        BrokerProcess(brokers=2, workers=2)


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with kafkawire.testing.broker() as other:
        broker = BrokerProcess(tmp_path, settings=TEST_SETTINGS, brokers=2)
        broker._ports = {2: {"PLAINTEXT": other.port}}
        with pytest.raises(BrokerFailed, match=f"ended with 2: .*{other.port}"):
            broker.start()


@pytest.mark.slow
async def test_own_event_loop() -> None:
    async with kafkawire.testing.async_broker(brokers=2) as broker:

        def use() -> None:
            create_topic(broker.bootstrap, "t", 1)
            broker.move_leader("t", 0, to=2)
            broker.stop_broker(2)
            assert nodes(broker) == [1]

        await asyncio.to_thread(use)
