"""Fetch and ListOffsets for readers of committed records, through a socket.

Markers are appended to the partition directly.

Covers: kafkawire.handlers.fetch.request, kafkawire.handlers.fetch.aborted,
kafkawire.handlers.list_offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers import list_offsets as listing
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.env import EPOCH_MS
from tests.kit.log import logs
from tests.kit.log.transactional import Producer, consume
from tests.kit.server import port_of, running
from tests.kit.waiting import until

VERSIONS = (4, 5, 11, 12)


@pytest.fixture(params=["commit", "os"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush=request.param) as started:
        yield started


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    connected = await Client.connect(port_of(server))
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await connected.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    yield connected
    await connected.close()


@pytest.fixture
def partition(server: Server, client: Client) -> Partition:
    return server.broker.table.find_by_name("t", 0)


async def fetch(
    client: Client, offset: int, version: int = 11, wait_ms: int = 0, isolation: int = 1
) -> Any:
    row = FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[FetchTopic(topic="t", partitions=[row])],
    )
    return (await client.call(request, version)).responses[0].partitions[0]


def read(row: Any, offset: int) -> list[tuple[int, bytes | None]]:
    aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions]
    return consume([bytes(row.records or b"")], offset, aborted)[0]


async def filled(partition: Partition) -> None:
    """0 and 2: aborted, of one producer; 1: committed; 3, 4: their markers; 5: open; 6: plain."""
    one, two, three = Producer(1), Producer(2), Producer(3)
    one.send(partition, b"no")
    two.send(partition, b"yes")
    one.send(partition, b"no")
    one.end(partition, commit=False)
    two.end(partition, commit=True)
    three.send(partition, b"open")
    partition.append(logs.batch(b"plain"), EPOCH_MS)
    await partition.log.wait_until_committed()


@pytest.mark.parametrize("version", VERSIONS)
async def test_committed_records_are_read(
    client: Client, partition: Partition, version: int
) -> None:
    await filled(partition)
    row = await fetch(client, 0, version)
    assert (row.high_watermark, row.last_stable_offset) == (7, 5)
    assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(1, 0)]
    assert read(row, 0) == [(1, b"yes")]
    row = await fetch(client, 4, version)
    assert (row.aborted_transactions, read(row, 4)) == ([], [])
    row = await fetch(client, 0, version, isolation=0)
    assert row.aborted_transactions is None
    assert (row.high_watermark, row.last_stable_offset) == (7, 5)
    assert len(consume([bytes(row.records)], 0, [])[0]) == 5


async def test_many_partitions_at_once(client: Client, partition: Partition) -> None:
    """A long Fetch, which is served in slices."""
    await filled(partition)
    rows = [FetchPartition(at, fetch_offset=0, partition_max_bytes=1 << 20) for at in range(200)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchTopic(topic="t", partitions=rows)],
    )
    answer = (await client.call(request, 11)).responses[0].partitions
    assert len(answer) == 200
    row = answer[0]
    assert (row.high_watermark, row.last_stable_offset) == (7, 5)
    assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(1, 0)]
    assert read(row, 0) == [(1, b"yes")]


async def test_a_fetch_above_the_last_stable_offset_is_answered_at_once(
    client: Client, partition: Partition
) -> None:
    await filled(partition)
    row = await asyncio.wait_for(fetch(client, 6, wait_ms=60_000), 50)
    assert (row.error_code, bytes(row.records or b"")) == (0, b"")
    row = await fetch(client, 8, wait_ms=60_000)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_parked_fetch_is_woken_by_the_marker(client: Client, partition: Partition) -> None:
    await filled(partition)
    waiting = asyncio.ensure_future(fetch(client, 5, wait_ms=60_000))
    await until(lambda: bool(partition.watchers))
    partition.append(logs.batch(b"more"), EPOCH_MS)
    await partition.log.wait_until_committed()
    assert not waiting.done(), "the transaction is still open"
    Producer(3).end(partition, commit=True)
    row = await asyncio.wait_for(waiting, 50)
    assert read(row, 5) == [(5, b"open"), (6, b"plain"), (7, b"more")]


async def test_ends_of_committed_records(client: Client, partition: Partition) -> None:
    await filled(partition)

    async def ask(timestamp: int, isolation: int) -> tuple[int, int, int]:
        asked = ListOffsetsPartition(0, -1, timestamp)
        topic = ListOffsetsTopic("t", [asked])
        request = ListOffsetsRequest(-1, isolation, topics=[topic])
        row = (await client.call(request, 7)).topics[0].partitions[0]
        return row.error_code, row.offset, row.timestamp

    assert await ask(listing.LATEST, 0) == (0, 7, -1)
    assert await ask(listing.LATEST, 1) == (0, 5, -1)
    assert await ask(listing.EARLIEST, 1) == (0, 0, -1)
    marker_time = EPOCH_MS
    assert (await ask(marker_time, 0))[1] >= 0
    await partition.delete_records(5)
    assert await ask(0, 0) == (0, 5, 1_700_000_000_000)
    assert await ask(0, 1) == (0, -1, -1)
    assert await ask(listing.LATEST, 1) == (0, 5, -1)
