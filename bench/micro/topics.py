"""A million topics: the cost of creating them, restarting with them, loading and listing them.

`python -m bench.micro.topics [--topics N]` starts a broker of its own, creates N topics of one
partition by CreateTopics of 1,000 each, ends it (kill -9 with --kill), starts it again and measures
the time to the first accepted produce (acks=all) and resident memory; then it uses partitions that
were not in memory, asks for all topics once, and prints a table with targets and ratios. Up to 2 GB
in a temporary folder, deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from struct import pack, unpack
from typing import Any

from bench.server import Server, kafkawire
from kafkawire.codec.batches import build
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.registry import APIS, response_class

BATCH = 1000  # topics of one CreateTopics
TOUCHED = 20_000  # partitions loaded to see what one costs in memory
ANSWER_LIMIT_S = 300.0
IMPORTS_S = 3.0  # a broker that serves goes on to import SQLAlchemy, 50 MB
START_TARGET_S, MEMORY_TARGET = 10.0, 4 << 30
MB = 1_000_000


class Caller:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_LIMIT_S)
        self.received = 0

    def call(self, key: int, request: Any, version: int) -> Any:
        """Send a request; return its decoded response."""
        return decode(response_class(key), version, self.raw(key, request, version)[4:])

    def raw(self, key: int, request: Any, version: int) -> bytes:
        """The answer from its correlation id on; versions here have plain headers."""
        flexible_from = APIS[key].flexible_from
        assert flexible_from is None or version < flexible_from
        body = pack(">hhihs", key, version, 1, 1, b"b") + encode(request, version)
        self.socket.sendall(pack(">i", len(body)) + body)
        (size,) = unpack(">i", self._exactly(4))
        return bytes(self._exactly(size))

    def _exactly(self, count: int) -> bytearray:
        got = bytearray()
        while len(got) < count:
            part = self.socket.recv(min(count - len(got), 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            got += part
        return got


def name_of(number: int) -> str:
    """A topic's name."""
    return f"device.{number:07d}"


def create(caller: Caller, count: int, first: int = 0) -> None:
    """Create the topics of numbers from `first` to `count`."""
    for start in range(first, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        topics = [CreatableTopic(name_of(n), 1, 1) for n in numbers]
        answer = caller.call(19, CreateTopicsRequest(topics, 60_000), 4)
        wrong = [topic for topic in answer.topics if topic.error_code]
        assert not wrong, wrong[0]


def produce(caller: Caller, topic: str) -> int:
    """One record with acks=all; the error code."""
    batch = build([(None, b"x" * 100)], timestamp_ms=int(time.time() * 1000))
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
    answer = caller.call(0, ProduceRequest(None, -1, 30_000, data), 7)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def touch(caller: Caller, first: int, count: int) -> None:
    """Load partitions by asking for their end offset."""
    for start in range(first, first + count, BATCH):
        topics = [
            ListOffsetsTopic(name_of(n), [ListOffsetsPartition(0, -1, -1)])
            for n in range(start, min(start + BATCH, first + count))
        ]
        answer = caller.call(2, ListOffsetsRequest(-1, 0, topics), 4)
        assert all(not row.error_code for topic in answer.topics for row in topic.partitions)


def started(server: Server, topic: str) -> tuple[float, Caller]:
    """Start the broker; seconds until a produce was accepted."""
    began = time.monotonic()
    server.start()
    caller = Caller(server.port)
    code = produce(caller, topic)
    assert not code, f"produce: error {code}"
    return time.monotonic() - began, caller


def measure(count: int, kill: bool, folder: Path) -> list[tuple[str, str, str]]:
    """Rows of the table: what was measured, its figure, its target."""
    cores = os.sched_getaffinity(0)
    server = Server(kafkawire(durable=True), folder / "data", cores)
    rows: list[tuple[str, str, str]] = []
    try:
        server.start()
        caller = Caller(server.port)
        time.sleep(IMPORTS_S)
        empty = server.memory().anon_bytes
        began = time.monotonic()
        create(caller, count)
        took = time.monotonic() - began
        rows.append(("topics created a second", f"{count / took:,.0f}", f"{took:.0f} s in all"))
        made = server.memory().rss_bytes
        rows.append(("memory after creating", f"{made / MB:,.0f} MB", ""))
        if kill:
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
        took, caller = started(server, name_of(count // 2))
        rows.append(
            ("start to first accepted produce", f"{took:.2f} s",
             f"target {START_TARGET_S:.0f} s: {took / START_TARGET_S:.2f}")
        )  # fmt: skip
        time.sleep(IMPORTS_S)
        whole, idle = server.memory().rss_bytes, server.memory().anon_bytes
        rows.append(
            ("memory after the start", f"{whole / MB:,.0f} MB",
             f"target {MEMORY_TARGET / MB:,.0f} MB: {whole / MEMORY_TARGET:.2f}")
        )  # fmt: skip
        rows.append(("... without mapped journals", f"{idle / MB:,.0f} MB", ""))
        rows.append(("... a partition not loaded", f"{(idle - empty) / count:,.0f} bytes", ""))
        touched = min(TOUCHED, count // 2)
        began = time.monotonic()
        touch(caller, 0, touched)
        took = time.monotonic() - began
        rows.append(("partitions loaded a second", f"{touched / took:,.0f}", ""))
        loaded = server.memory().anon_bytes - idle
        rows.append(("... a partition loaded, on top", f"{loaded / touched:,.0f} bytes", ""))
        began = time.monotonic()
        answer = caller.raw(3, MetadataRequest(topics=None), 8)
        took = time.monotonic() - began
        rows.append(("Metadata of all topics", f"{took:.2f} s", f"{len(answer) / MB:.0f} MB"))
        rows.append(("memory after that", f"{server.memory().rss_bytes / MB:,.0f} MB", ""))
        rows.append(("data folder", f"{server.disk_bytes() / MB:,.0f} MB", ""))
    finally:
        server.stop()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=1_000_000, help="how many; default 1000000")
    parser.add_argument("--kill", action="store_true", help="end the broker by kill -9")
    options = parser.parse_args()
    if options.topics < 10:
        sys.exit(f"--topics {options.topics}: at least 10 are needed")
    with tempfile.TemporaryDirectory(prefix="kafkawire-topics-") as folder:
        rows = measure(options.topics, options.kill, Path(folder))
    print(f"{options.topics:,} topics of one partition")
    for what, value, note in rows:
        print(f"  {what:34} {value:>16}   {note}")


if __name__ == "__main__":
    main()
