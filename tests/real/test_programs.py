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
from confluent_kafka import TopicPartition

from tests.kit.programs import program
from tests.real.conftest import MakeTopic
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

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for reader in self._readers:
            reader.join(30)
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
    assert sorted(message.value() for message in found) == sorted(
        b"VALUE %d" % number for number in range(FIRST + MORE)
    )
    for partition in range(PARTITIONS):
        numbers = [int(m.value()[6:]) for m in found if m.partition() == partition]
        assert numbers == list(range(partition, FIRST + MORE, PARTITIONS))
    dirty = make_consumer(name + "-dirty", sink, isolation_level="read_uncommitted")
    assert len(read(dirty, FIRST + MORE + 1)) > len(found), "records of the aborted transaction"
