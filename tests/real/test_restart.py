"""Clients during restarts and kills of the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafkawire.testing.process import BrokerProcess
from tests.real.conftest import OTHER_BROKER, SETTINGS
from tests.real.members import Member, wait_for, wait_for_shares

pytestmark = pytest.mark.skipif(OTHER_BROKER is not None, reason="restarts a broker of its own")


Settings = dict[str, str | int]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings=SETTINGS) as process:
        yield process


class Stream(threading.Thread):
    """Sends 0, 1, 2, ... until stopped; the acknowledged ones are in `acked`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        settings = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 60_000}
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
        self.producer = Producer({"bootstrap.servers": bootstrap, **settings, **quick})
        self.topic = topic
        self.sent = 0
        self.acked: list[int] = []
        self.errors: list[KafkaError] = []
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stop_asked.is_set():
            self.producer.produce(self.topic, b"%d" % self.sent, on_delivery=self._delivered)
            self.sent += 1
            self.producer.poll(0)
            time.sleep(0.0005)
        self.producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            value = message.value()
            assert isinstance(value, bytes)
            self.acked.append(int(value))

    def wait_for_more(self, count: int) -> None:
        enough = len(self.acked) + count
        wait_for(lambda: len(self.acked) >= enough)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(90)
        assert not self.is_alive()


def subscribed(topic: str, settings: Settings) -> Consumer:
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def poll(consumer: Consumer) -> list[Message]:
    """Return records; librdkafka itself handles errors while the broker is down."""
    return [m for m in consumer.consume(500, 0.1) if m.error() is None]


def make(bootstrap: str, topic: str, partitions: int, **config: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(60)
    return admin


def test_idempotent_stream_is_complete_after_restarts_and_kills(
    broker: BrokerProcess, name: str
) -> None:
    """Every record once, in order; records acknowledged before a kill are there after it."""
    make(broker.bootstrap, name, 1)
    settings: Settings = {"group.id": name, "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.max.ms": 200}
    reader = Member(subscribed(name, settings), poll)
    stream = Stream(broker.bootstrap, name)
    for rounds in range(4):
        stream.wait_for_more(150)
        if rounds % 2:
            broker.kill()
            broker.start()
        else:
            broker.restart()
    stream.wait_for_more(150)
    stream.stop()
    assert not stream.errors
    assert stream.acked == list(range(stream.sent))
    wait_for(lambda: len(reader.records) >= stream.sent)
    reader.leave()
    assert [int(m.value()) for m in reader.records] == list(range(stream.sent))
    assert [m.offset() for m in reader.records] == list(range(stream.sent))


class Committer:
    """Polls, and commits 7 + partition for its assignment on request: librdkafka needs both in one
    thread."""

    def __init__(self) -> None:
        self.wanted = False
        self.committed: list[TopicPartition] = []

    def __call__(self, consumer: Consumer) -> list[Message]:
        if self.wanted:
            self.wanted = False
            places = [TopicPartition(a.topic, a.partition) for a in consumer.assignment()]
            for place in places:
                place.offset = 7 + place.partition
            consumer.commit(offsets=places, asynchronous=False)
            self.committed = consumer.committed(places, 20)
        return poll(consumer)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_group_continues_without_rebalance_after_restart(
    broker: BrokerProcess, name: str, how: str
) -> None:
    """Same members, same shares, no rebalance; commits are there."""
    admin = make(broker.bootstrap, name, 4)
    settings: Settings = {"group.id": name, "heartbeat.interval.ms": 300}
    settings |= {"session.timeout.ms": 20_000, "reconnect.backoff.max.ms": 200}
    settings["bootstrap.servers"] = broker.bootstrap
    committer = Committer()
    members = [Member(subscribed(name, settings), poll_with) for poll_with in (committer, poll)]
    wait_for_shares(members, [2, 2])
    committer.wanted = True
    wait_for(lambda: len(committer.committed) == 2)
    held = [member.assigned for member in members]
    ids = members_of(admin, name)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wait_for(lambda: members_of(admin, name) == ids)
    time.sleep(1)  # several heartbeats
    assert members_of(admin, name) == ids
    assert [member.assigned for member in members] == held
    asked = ConsumerGroupTopicPartitions(name)
    found = admin.list_consumer_group_offsets([asked])[name].result(60).topic_partitions
    assert {(at.partition, at.offset) for at in found} == {(p, 7 + p) for _, p in held[0]}
    for member in members:
        member.leave()


def members_of(admin: AdminClient, group: str) -> set[str]:
    """The member ids of a group; none while its coordinator is being loaded."""
    try:
        described = admin.describe_consumer_groups([group])[group].result(60)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            return set()
        raise
    return {member.member_id for member in described.members}


def test_topics_and_settings_survive_kill(broker: BrokerProcess, name: str) -> None:
    admin = make(broker.bootstrap, name, 3, retention_ms="1234567", cleanup_policy="compact")
    make(broker.bootstrap, name + "-gone", 1)
    admin.delete_topics([name + "-gone"])[name + "-gone"].result(60)
    broker.kill()
    broker.start()
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics
    assert len(topics[name].partitions) == 3
    assert name + "-gone" not in topics
    place = ConfigResource(ResourceType.TOPIC, name)
    found = admin.describe_configs([place])[place].result(60)
    assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("1234567", "compact")
