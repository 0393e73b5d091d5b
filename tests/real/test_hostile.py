"""Misbehaving clients against a broker of its own: its memory is bounded, and others are served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import batch
from tests.kit.hostile import HalfOpen, NeverReader, SlowSender, anonymous_bytes, fetch_of
from tests.kit.waiting import wait_until
from tests.real.conftest import OTHER_BROKER

pytestmark = [
    pytest.mark.skipif(OTHER_BROKER is not None, reason="measures a broker of its own"),
    pytest.mark.slow,
]

MIB = 1 << 20
SETTINGS = {
    "hot.bytes": str(MIB),
    "journal.bytes": str(16 * MIB),
    "journal.roll.ms": "3600000",
    "cut.interval.ms": "86400000",
}
"""No segments are cut, and batches are short: long runs leave by sendfile and take no memory of the
broker."""
OLD_BYTES, OLD_BATCH_BYTES = 20 * MIB, 12_000
PATIENCE_S = 60.0
"""Limit for a response on a loaded machine; without its bounds a broker needs minutes, or is killed
for its memory."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings=SETTINGS) as process:
        yield process


class Good:
    """A client with small requests, and the time of its slowest response."""

    def __init__(self, port: int) -> None:
        self.connection = ClientConnection("127.0.0.1", port)
        self.slowest_s = 0.0

    def _call(self, key: int, request: Any, at_most: int) -> Any:
        begun = time.monotonic()
        answer = self.connection.request(key, request, at_most=at_most)
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        return answer

    def create(self, topic: str) -> None:
        wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        answer = self._call(19, CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 6)
        assert answer.topics[0].error_code == 0

    def produce(self, topic: str, *values: bytes) -> None:
        stamp_ms = int(time.time() * 1000)
        data = TopicProduceData(
            name=topic,
            partition_data=[PartitionProduceData(0, batch(*values, timestamp_ms=stamp_ms))],
        )
        answer = self._call(0, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def fetch(self, topic: str, offset: int, max_bytes: int) -> int:
        row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=[row])],
        )  # fmt: skip
        found = self._call(1, request, 11).responses[0].partitions[0]
        assert found.error_code == 0
        return len(found.records or b"")


def fill(broker: BrokerProcess, stack: ExitStack) -> Good:
    good = Good(broker.port)
    stack.callback(good.connection.close)
    good.create("old")
    good.create("new")
    for _ in range(OLD_BYTES // OLD_BATCH_BYTES):
        good.produce("old", bytes(OLD_BATCH_BYTES))
    good.slowest_s = 0.0
    return good


def test_memory_for_clients_that_never_read_is_bounded(broker: BrokerProcess) -> None:
    largest = 0
    with ExitStack() as stack:
        good = fill(broker, stack)
        before = anonymous_bytes(broker.pid)
        readers = []
        for _ in range(200):
            reader = NeverReader(broker.port, fetch_of("old", [0], 55 * MIB), 50)
            stack.callback(reader.close)
            readers.append(reader)
        until = time.monotonic() + 12
        number = 0
        while time.monotonic() < until:
            good.produce("new", b"small")
            assert good.fetch("new", number, 1000)
            assert good.fetch("old", number % 50, 1000)  # not hot any more
            largest = max(largest, anonymous_bytes(broker.pid) - before)
            number += 1
        # Other clients waited for the memory, so the clients that held it were closed first.
        wait_until(lambda: sum(each.closed for each in readers) > 20, "slow readers are closed")
    print(f"memory grew by {largest / MIB:.0f} MiB; slowest answer {good.slowest_s * 1000:.0f} ms")
    assert largest < 600 * MIB  # inflight.answer.bytes is 256 MiB; sockets and what malloc keeps
    assert good.slowest_s < PATIENCE_S
    assert "that it has not read" in broker.output


def test_incomplete_requests_do_not_block_other_clients(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        good = fill(broker, stack)
        before = anonymous_bytes(broker.pid)
        senders = []
        for _ in range(100):
            sender = SlowSender(broker.port, 50 * MIB, 4 * MIB)
            stack.callback(sender.close)
            senders.append(sender)
        for number in range(20):
            good.produce("new", bytes(50_000))  # arrives in several pieces
            assert good.fetch("new", number, 1000)
        largest = anonymous_bytes(broker.pid) - before
        for sender in senders:
            sender.push(1000)
        wait_until(lambda: sum(each.closed for each in senders) > 20, "slow senders are closed")
        good.produce("new", bytes(900_000))
    print(f"memory grew by {largest / MIB:.0f} MiB; slowest answer {good.slowest_s * 1000:.0f} ms")
    assert largest < 500 * MIB  # inflight.bytes is 256 MiB
    assert good.slowest_s < PATIENCE_S
    assert "bytes of requests that it sends" in broker.output


def test_connections_without_request_are_closed_for_new_ones(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings={"max.connections": "20"}) as broker,
        ExitStack() as stack,
    ):
        idle = []
        for number in range(20):
            one = HalfOpen(broker.port, b"\0\0\0" if number % 2 else b"")
            stack.callback(one.close)
            idle.append(one)

        def served() -> bool:
            try:
                good = Good(broker.port)
            except ClientError:
                return False
            good.connection.close()
            return True

        wait_until(served, "a connection without a request gives way")
        assert sum(one.closed for one in idle) >= 1
