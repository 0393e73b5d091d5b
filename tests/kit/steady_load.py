"""Idempotent and transactional producers that send until they are stopped, and a check that every
acknowledged record is there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.kit.cluster import QUIET, bounds
from tests.kit.waiting import wait_until

TOPIC, PARTITIONS = "moving", 6


class Load:
    """A producer that sends until `stop`: `acked` are values by partition, in order of their
    offsets; `errors` what a client would see."""

    def __init__(self, bootstrap: str, transactional_id: str | None = None) -> None:
        self.acked: dict[int, list[tuple[int, bytes]]] = {n: [] for n in range(PARTITIONS)}
        self.errors: list[str] = []
        self._ending = threading.Event()
        self._name = transactional_id or "plain"
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": QUIET,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        self._transactional = transactional_id is not None
        self._settings = settings
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._transactional:
                self._producer.init_transactions(60)
            sent = 0
            while not self._ending.is_set():
                if self._transactional:
                    self._producer.begin_transaction()
                for _ in range(20):
                    sent += 1
                    self._send(sent)
                if self._transactional:
                    self._producer.commit_transaction(60)
                self._producer.poll(0)
                # At most 200 records a second: on a busy machine as many as the library takes
                # would fill its queue, and each move would wait for their uploads.
                self._ending.wait(0.1)
            self._producer.flush(60)
            if self._transactional:
                # A commit is answered before its markers are written, which the next producer of
                # the id waits for. Until then its records are not read as committed.
                self._producer = Producer(self._settings)
                self._producer.init_transactions(60)
        except KafkaException as failure:
            self.errors.append(str(failure))

    def _send(self, number: int) -> None:
        value = f"{self._name}-{number}".encode()
        while True:
            try:
                self._producer.produce(
                    TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acked[message.partition()].append((message.offset(), message.value()))

    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def wait_for_more(self) -> None:
        """Wait until more records are acknowledged, or an error is."""
        before = self.count()
        wait_until(lambda: self.errors or self.count() > before, "more records")

    def end(self) -> None:
        self._ending.set()
        self._thread.join(120)

    def stop(self) -> int:
        """End, and return how many records were acknowledged."""
        self.end()
        assert not self._thread.is_alive()
        assert self.errors == []
        return self.count()


@contextmanager
def loaded(bootstrap: str) -> Iterator[list[Load]]:
    loads = [Load(bootstrap), Load(bootstrap, "tx")]
    try:
        for each in loads:
            each.wait_for_more()
        yield loads
    finally:
        for each in loads:
            each.end()


def read_partition(consumer: Consumer, topic: str, index: int) -> tuple[int, int, list[Message]]:
    """Read a partition from its start to its present end: (start, end, messages)."""
    at = TopicPartition(topic, index)
    start, end = wait_until(lambda: bounds(consumer, at), f"a leader of {topic}-{index}")
    consumer.assign([TopicPartition(topic, index, start)])
    rows: list[Message] = []

    def finished() -> bool:
        for message in consumer.consume(20_000, 0.5):
            assert message.error() is None, message.error()
            rows.append(message)
        (position,) = consumer.position([at])
        return bool(position.offset >= end)

    if start < end:
        wait_until(finished, f"the end of {topic}-{index}")
    return start, end, [each for each in rows if each.offset() < end]


def full_reader(bootstrap: str, **settings: Any) -> Consumer:
    """A consumer for `read_partition`."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
            "log_level": QUIET,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def read_all(bootstrap: str) -> dict[int, list[tuple[int, bytes]]]:
    """All records of the topic by partition, with offsets; a gap of offsets is a marker."""
    consumer = full_reader(bootstrap, isolation_level="read_committed")
    try:
        found = {}
        for index in range(PARTITIONS):
            _, _, messages = read_partition(consumer, TOPIC, index)
            found[index] = [(each.offset(), each.value() or b"") for each in messages]
        return found
    finally:
        consumer.close()


def check(loads: Sequence[Load], *bootstraps: str) -> int:
    """Stop the load; every acknowledged record is there once, at its offset, for clients of each of
    the brokers; return how many."""
    total = sum(each.stop() for each in loads)
    for bootstrap in bootstraps:
        found = read_all(bootstrap)
        for index, rows in found.items():
            acked = sorted(row for each in loads for row in each.acked[index])
            assert rows == acked, f"partition {index} at {bootstrap}"
    return total
