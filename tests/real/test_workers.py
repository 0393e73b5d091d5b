"""`serve --workers 2` with librdkafka: what clients see, also of a worker that crashes or hangs.

Covers: kafkawire.supervisor.run, kafkawire.supervisor.worker, kafkawire.server.worker.link.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.kit.cluster import QUIET
from tests.kit.workers import Workers
from tests.real.librdkafka import produce, read
from tests.real.members import Member, wait_for_shares


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers; tests leave both running."""
    with Workers(tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4()}"


class Flow(threading.Thread):
    """Sends numbers to all partitions of a topic in turn until stopped. `acked`: those of each
    partition that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": QUIET}
        settings = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 90_000}
        self.producer = Producer({"bootstrap.servers": bootstrap, **settings, **quick})
        self.topic, self.partitions = topic, partitions
        self.acked: dict[int, list[bytes]] = defaultdict(list)
        self.errors: list[KafkaError] = []
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            self.producer.produce(
                self.topic, b"%d" % number, partition=number % self.partitions,
                on_delivery=self._delivered,
            )  # fmt: skip
            number += 1
            self.producer.poll(0)
            time.sleep(0.001)
        self.producer.flush(90)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[message.partition() or 0].append(message.value() or b"")

    def wait_for_more(self, partitions: list[int]) -> None:
        """Wait until each of the partitions has 50 more acknowledged records."""
        wanted = {index: len(self.acked[index]) + 50 for index in partitions}
        end = time.monotonic() + 90
        while any(len(self.acked[index]) < count for index, count in wanted.items()):
            assert time.monotonic() < end, {n: len(each) for n, each in self.acked.items()}
            time.sleep(0.03)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(120)
        assert not self.is_alive()
        assert not self.errors


def test_topics_of_first_minute_are_spread(workers: Workers, topic: str) -> None:
    assert sorted(workers.create(topic, 4)) == [1, 1, 2, 2]
    rows = [{"value": b"%d" % n, "partition": n % 4} for n in range(400)]
    produce(workers.bootstrap, topic, rows, acks="all")
    values = workers.read_all(topic, 4)
    assert values == {n: [b"%d" % at for at in range(n, 400, 4)] for n in range(4)}


def test_metadata_has_own_addresses_only(workers: Workers) -> None:
    brokers = workers.admin().list_topics(timeout=30).brokers
    assert sorted(brokers) == [1, 2]
    ports = {each.port for each in brokers.values()}
    assert len(ports) == 2
    assert workers.port not in ports


def test_groups_of_both_coordinators(workers: Workers, topic: str) -> None:
    workers.create(topic, 4)
    rows = [{"value": b"%d" % n, "partition": n % 4} for n in range(40)]
    produce(workers.bootstrap, topic, rows, acks="all")
    coordinators: set[int] = set()
    at = 0
    while len(coordinators) < 2:
        assert at < 30, f"only {coordinators} coordinates groups"
        group, at = f"{topic}-{at}", at + 1
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": workers.bootstrap, "group.id": group, **settings})
        consumer.subscribe([topic])
        assert len(read(consumer, 40)) == 40
        consumer.commit(asynchronous=False)
        consumer.close()
        admin = workers.admin()  # answers need it
        described = admin.describe_consumer_groups([group])[group].result(60)
        coordinators.add(described.coordinator.id)


def test_members_share_partitions_of_both_workers(workers: Workers, topic: str) -> None:
    workers.create(topic, 4)

    def joined() -> Member:
        settings = {"auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
        quick = {"heartbeat.interval.ms": 300, "log_level": QUIET}
        own = {"bootstrap.servers": workers.bootstrap, "group.id": topic}
        consumer = Consumer({**own, **settings, **quick})
        consumer.subscribe([topic])
        return Member(consumer, lambda polled: polled.consume(100, 0.1))

    members = [joined(), joined()]
    wait_for_shares(members, [2, 2])
    for member in members:
        member.leave()


@pytest.mark.parametrize("node", [1, 2])
def test_killed_worker_is_back_and_lost_nothing(workers: Workers, topic: str, node: int) -> None:
    leaders = workers.create(topic, 4)
    others = [index for index, leader in enumerate(leaders) if leader != node]
    flow = Flow(workers.bootstrap, topic, 4)
    flow.wait_for_more([0, 1, 2, 3])
    pid = workers.kill_worker(node)
    flow.wait_for_more(others)
    workers.wait_for_worker(node, pid)
    flow.wait_for_more([0, 1, 2, 3])
    flow.finish()
    assert workers.read_all(topic, 4) == dict(flow.acked)
    assert f"worker {node} has ended with SIGKILL" in workers.output


def test_stopped_worker_is_killed_and_restarted(workers: Workers, topic: str) -> None:
    """Also clients that begin meanwhile are served: the other worker accepts their connections."""
    leaders = workers.create(topic, 4)
    flow = Flow(workers.bootstrap, topic, 4)
    flow.wait_for_more([0, 1, 2, 3])
    pid = workers.signal_worker(2, signal.SIGSTOP)
    others = [index for index, leader in enumerate(leaders) if leader == 1]
    flow.wait_for_more(others)
    for index in others:
        produce(workers.bootstrap, topic, [{"value": b"new", "partition": index}], acks="all")
    workers.wait_for_worker(2, pid)
    assert f"worker 2 (process {pid}) has not responded for 10 seconds" in workers.output
    flow.wait_for_more([0, 1, 2, 3])
    flow.finish()
    found = workers.read_all(topic, 4)
    for index, values in found.items():
        assert [value for value in values if value != b"new"] == flow.acked[index]
        assert values.count(b"new") == (index in others)


def test_worker_that_is_asked_to_end_is_started_again(workers: Workers, topic: str) -> None:
    """So an operator can restart one worker alone."""
    workers.create(topic, 2)
    pid = workers.signal_worker(1, signal.SIGTERM)
    workers.wait_for_worker(1, pid)
    rows = [{"value": b"x", "partition": index} for index in (0, 1)]
    produce(workers.bootstrap, topic, rows, acks="all")
    assert workers.read_all(topic, 2) == {0: [b"x"], 1: [b"x"]}
