"""Consume, transform, produce by franz-go (Go) and rdkafka (Rust), exactly once under kills.

The programs are in tests/programs.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.testing.process import BrokerProcess
from tests.kit.programs import program
from tests.real.conftest import SETTINGS, MakeTopic
from tests.real.librdkafka import (
    consumers,  # noqa: F401  (a fixture, by name)
    produce,
    read,
)
from tests.real.members import wait_for

PARTITIONS = 3
FIRST, MORE = 600, 300
"""Records before the program is killed the first time, and after it."""


class Copying:
    """A running program; `lines`: its output."""

    def __init__(self, path: Path, *arguments: str) -> None:
        command = [str(path), *arguments]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors = ""
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for_line(self, line: str) -> None:
        def found() -> bool:
            assert self.process.poll() is None, self.errors[-2000:]
            return line in self.lines

        wait_for(found, 60, lambda: f"{line} is not in {self.lines}; {self.errors[-2000:]}")

    @property
    def committed(self) -> int:
        """The number of transactions that were committed."""
        return sum(line.startswith("committed") for line in self.lines)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(90)
        for reader in self._readers:
            reader.join(90)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line


@contextmanager
def copying(path: Path, *arguments: str) -> Iterator[Copying]:
    """Run the program, and kill it at the end."""
    running = Copying(path, *arguments)
    try:
        yield running
    finally:
        running.kill()


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"value": b"value %d" % number, "partition": number % PARTITIONS}
        for number in range(first, first + count)
    ]


def check_copies(found: list[Message]) -> None:
    """Check that each record was copied once, and in order."""
    assert sorted(message.value() for message in found) == sorted(
        b"VALUE %d" % number for number in range(FIRST + MORE)
    )
    for partition in range(PARTITIONS):
        numbers = [int(m.value()[6:]) for m in found if m.partition() == partition]
        assert numbers == list(range(partition, FIRST + MORE, PARTITIONS))


@pytest.mark.parametrize("client", ["franz-go", "rdkafka"])
def test_copies_exactly_once_when_killed(
    client: str, bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    """Killed in an open transaction whose records are written, then at any moment, then again
    when all is copied."""
    path = program(client)
    source, sink = make_topic(PARTITIONS), make_topic(PARTITIONS, "-out")
    produce(bootstrap, source, rows(0, FIRST))
    arguments = (bootstrap, name, source, sink)
    with copying(path, *arguments, "3") as first:
        first.wait_for_line("open")
    produce(bootstrap, source, rows(FIRST, MORE))
    with copying(path, *arguments, "0") as second:
        second.wait_for_line("committed 2")
    with copying(path, *arguments, "0"):
        clean = make_consumer(name + "-clean", sink, isolation_level="read_committed")
        found = read(clean, FIRST + MORE)
        group = make_consumer(name)
        at = [TopicPartition(source, p) for p in range(PARTITIONS)]
        ends = [(FIRST + MORE) // PARTITIONS] * PARTITIONS
        wait_for(lambda: [row.offset for row in group.committed(at, 20)] == ends)
    check_copies(found)
    dirty = make_consumer(name + "-dirty", sink, isolation_level="read_uncommitted")
    assert len(read(dirty, FIRST + MORE + 1)) > len(found), "records of the aborted transaction"


@pytest.mark.parametrize("client", ["franz-go", "rdkafka"])
def test_copies_exactly_once_when_the_broker_is_killed(
    client: str, name: str, tmp_path: Path
) -> None:
    """The program is started again whenever it ends, as by a supervisor."""
    path = program(client)
    source, sink = name, name + "-out"
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        new = [NewTopic(topic, PARTITIONS, replication_factor=1) for topic in (source, sink)]
        for future in admin.create_topics(new).values():
            future.result(60)
        produce(broker.bootstrap, source, rows(0, FIRST + MORE))
        done = threading.Event()
        arguments = (broker.bootstrap, name, source, sink, "0")
        runs: list[Copying] = []
        supervisor = threading.Thread(target=supervise, args=(path, arguments, done, runs))
        supervisor.start()
        try:
            for number in (2, 6, 10):
                wait_for(lambda n=number: sum(run.committed for run in runs) >= n)  # type: ignore[misc]
                broker.kill()
                broker.start()
            found = read_committed(broker.bootstrap, name + "-clean", sink)
        finally:
            done.set()
            supervisor.join(60)
    check_copies(found)


def supervise(
    path: Path, arguments: tuple[str, ...], done: threading.Event, runs: list[Copying]
) -> None:
    """Run the program, again whenever it ends, until `done`."""
    while not done.is_set():
        with copying(path, *arguments) as running:
            runs.append(running)
            while running.process.poll() is None and not done.wait(0.05):
                pass


def read_committed(bootstrap: str, group: str, topic: str) -> list[Message]:
    """Read as many committed records as there are to copy."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "log_level": 2}
    settings |= {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = read(consumer, FIRST + MORE, 120)
    consumer.close()
    return found
