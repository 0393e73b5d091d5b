"""A copy of a topic with transactions that carry the group's offsets, while coordinators and
partitions move between workers and one is killed.

Covers: kafkawire.broker.moving.mover.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.kit.cli import Typed
from tests.kit.cluster import KEEPS_BROKERS, QUIET
from tests.kit.waiting import wait_until
from tests.kit.workers import Workers

pytestmark = pytest.mark.real

PARTITIONS, BATCH = 4, 200


class Copier(threading.Thread):
    """Copies records from topic `in` to `out`, exactly once, until `ended` is set."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.is_set():
            shared = {
                **KEEPS_BROKERS,
                "bootstrap.servers": self.bootstrap,
                "log_level": QUIET,
            }
            consumer = Consumer(
                {
                    **shared,
                    "group.id": "copy",
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                }
            )
            producer = Producer({**shared, "transactional.id": "copy"})
            try:
                producer.init_transactions(60)
                consumer.subscribe(["in"])
                while not self.ended.is_set():
                    self._copy(consumer, producer)
            except KafkaException:
                pass  # a client that cannot continue is created again, as applications do
            finally:
                consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer) -> None:
        found = [each for each in consumer.consume(BATCH, 0.2) if each.error() is None]
        if not found:
            return
        producer.begin_transaction()
        try:
            for message in found:
                producer.produce("out", message.value(), partition=message.partition())
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                producer.abort_transaction(30)
            raise  # positions are after records that were not copied


@contextmanager
def copying(bootstrap: str) -> Iterator[None]:
    copier = Copier(bootstrap)
    try:
        yield
    finally:
        copier.ended.set()
        copier.join(120)


def feed(producer: Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.produce("in", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def copied(workers: Workers) -> list[int]:
    consumer = Consumer(
        {
            **KEEPS_BROKERS,
            "bootstrap.servers": workers.bootstrap,
            "group.id": "check",
            # A LeaveGroup that a coordinator refuses because it has moved is not repeated, and the
            # next consumer waits until the session of this one ends.
            "session.timeout.ms": 6000,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": QUIET,
        }
    )
    try:
        consumer.subscribe(["out"])
        values: list[int] = []
        at_end: set[int] = set()
        while len(at_end) < PARTITIONS:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    at_end.add(message.partition())
                else:
                    values.append(int(message.value() or b""))
        return values
    finally:
        consumer.close()


def test_records_are_copied_once_while_everything_moves(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        for topic in ("in", "out"):
            workers.create(topic, PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": workers.bootstrap,
                "enable.idempotence": True,
                "log_level": QUIET,
            }
        )
        total = 0
        with copying(workers.bootstrap):
            for drained, killed in (("1", None), ("2", 1), ("1", 2)):
                feed(producer, total, 2000)
                total += 2000
                done = Typed(workers.bootstrap, "cluster", "drain", drained, "--no-wait")
                assert done.code == 0, done.err
                if killed is not None:
                    workers.wait_for_worker(killed, workers.kill_worker(killed))
                feed(producer, total, 1000)
                total += 1000
                undone = ("cluster", "drain", drained, "--undo")
                wait_until(lambda: Typed(workers.bootstrap, *undone).code == 0, "its end")  # noqa: B023
            wait_until(lambda: len(set(copied(workers))) >= total, "all copies")
        assert sorted(copied(workers)) == list(range(total))
