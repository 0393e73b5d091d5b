"""Segments through a socket and the real worker process: the border to the journals is invisible to
clients.

Covers: kafkawire.log.segments.store.warm_reader.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafkawire.codec.batches import iter_batches, records
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.describe_log_dirs import DescribeLogDirsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.waiting import until

QUICK_CUTS = {"hot_bytes": str(1 << 20), "cut_interval_ms": "20", "journal_roll_ms": "50"}
NOW_MS = int(time.time() * 1000)


async def produce(client: Client, count: int, start: int) -> None:
    for at in range(start, start + count):
        raw = batch(b"%d:" % at + bytes(3000), timestamp_ms=NOW_MS + at)
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(0, raw)])
        request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data])
        answer = await client.call(request, 9)
        assert answer.responses[0].partition_responses[0].base_offset == at


async def cut_until(partition: Partition, offset: int) -> None:
    await until(lambda: partition.cut_offset >= offset, f"cut up to {offset}")


async def fetch(client: Client, offset: int, max_bytes: int) -> list[int]:
    rows = [FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)]
    request = FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic("t", partitions=rows)],
    )
    row = (await client.call(request, 11)).responses[0].partitions[0]
    assert row.error_code == 0
    raw = bytes(row.records)
    assert len(raw) <= max_bytes
    found = [record for position, _ in iter_batches(raw) for record in records(raw, position)]
    for record in found:
        assert record.value is not None
        assert bytes(record.value).startswith(b"%d:" % record.offset)
    return [record.offset for record in found]


async def time_of(client: Client, timestamp: int) -> int:
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=timestamp)])
    answer = await client.call(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0
    return int(row.offset)


async def size_of(client: Client) -> int:
    answer = await client.call(DescribeLogDirsRequest(topics=None), 2)
    topics = {topic.name: topic for topic in answer.results[0].topics}
    return int(topics["t"].partitions[0].partition_size)


def partition_of(server: Server) -> Partition:
    return server.broker.table.find_by_name("t", 0)


@pytest.mark.slow
async def test_reads_cross_from_segments_into_journals(tmp_path: Path) -> None:
    one = len(batch(b"50:" + bytes(3000), timestamp_ms=NOW_MS))
    async with running(tmp_path / "data", **QUICK_CUTS) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await produce(client, 50, 0)
        await cut_until(partition_of(server), 50)
        server.broker.config.journal_roll_ms = 1 << 40  # from now on it stays in the journal
        await produce(client, 50, 50)
        assert await fetch(client, 0, 1 << 20) == list(range(100))
        assert await fetch(client, 48, 4 * one) == [48, 49, 50, 51]
        assert await time_of(client, NOW_MS + 7) == 7
        assert await time_of(client, NOW_MS + 60) == 60
        assert await time_of(client, -3) == 99
        size = await size_of(client)
        assert 100 * 3000 < size < 100 * 3200
        await client.close()
    names = [path.suffix for path in (tmp_path / "data/brokers/1/segments").iterdir()]
    assert names
    assert set(names) == {".segment"}
    async with running(tmp_path / "data") as server:
        client = await Client.connect(port_of(server))
        assert await fetch(client, 0, 1 << 20) == list(range(100))
        assert partition_of(server).cut_offset == 50
        assert await size_of(client) == size
        await client.close()
