"""A broker with many topics: a start loads none of them, and each API loads the ones it needs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.describe_log_dirs import DescribeLogDirsRequest
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.metadata.store import MetadataError
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, produce
from tests.kit.server import port_of, running

TOPICS = 5_000


async def make(path: Path, count: int, partitions: int = 1) -> None:
    async with running(path) as server:
        for start in range(0, count, 1000):
            topics = [
                CreatableTopic(f"t{n}", partitions, 1)
                for n in range(start, min(start + 1000, count))
            ]
            for outcome in await server.broker.topics.create(topics):
                assert not isinstance(outcome, Exception), outcome
        assert server.broker.log.partitions == {}


@pytest.mark.slow
async def test_start_with_thousands_of_topics_loads_none(tmp_path: Path) -> None:
    await make(tmp_path, TOPICS)
    async with running(tmp_path) as server:
        broker = server.broker
        assert len(broker.catalog.by_name) == TOPICS
        assert broker.log.partitions == {}
        client = await Client.connect(port_of(server))
        answer = await client.call(produce("t77", batch(b"x")), 7)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert [p.topic for p in broker.log.partitions.values()] == ["t77"]
        (row,) = (await client.call(DescribeLogDirsRequest(None), 4)).results
        sizes = {topic.name: topic.partitions[0].partition_size for topic in row.topics}
        assert len(sizes) == TOPICS
        assert sizes["t77"] > 0
        assert sum(sizes.values()) == sizes["t77"]
        assert len(broker.log.partitions) == 1
        await client.close()


async def ask_everything(client: Client) -> list[Any]:
    """Send each API a request for a topic of its own; return the error codes."""
    many = [
        TopicProduceData(f"t{n}", partition_data=[PartitionProduceData(i, batch(b"x"))])
        for n, i in ((0, 0), (1, 1), (2, 0))
    ]
    codes: list[Any] = []
    answer = await client.call(ProduceRequest(None, -1, 1000, many), 7)
    codes += [p.error_code for t in answer.responses for p in t.partition_responses]
    answer = await client.call(fetch("t3", 0, wait_ms=1), 11)
    codes += [p.error_code for t in answer.responses for p in t.partitions]
    wanted = [ListOffsetsTopic("t4", [ListOffsetsPartition(i, -1, -1) for i in range(2)])]
    answer = await client.call(ListOffsetsRequest(-1, 0, wanted), 4)
    codes += [p.error_code for t in answer.topics for p in t.partitions]
    epochs = [OffsetForLeaderTopic("t5", [OffsetForLeaderPartition(0, -1, 0)])]
    answer = await client.call(OffsetForLeaderEpochRequest(-2, epochs), 3)
    codes += [p.error_code for t in answer.topics for p in t.partitions]
    records = [DeleteRecordsTopic("t6", [DeleteRecordsPartition(0, -1)])]
    answer = await client.call(DeleteRecordsRequest(records, 1000), 1)
    codes += [p.error_code for t in answer.topics for p in t.partitions]
    return codes


async def test_each_api_loads_partitions_it_needs(tmp_path: Path) -> None:
    await make(tmp_path, 8, partitions=2)
    async with running(tmp_path) as server:
        client = await Client.connect(port_of(server))
        assert await ask_everything(client) == [0] * 8
        loaded = {p.topic for p in server.broker.log.partitions.values()}
        assert loaded == {f"t{n}" for n in range(7)}
        await client.close()


async def test_each_api_returns_error_while_sql_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path, 8, partitions=2)
    async with running(tmp_path) as server:
        client = await Client.connect(port_of(server))
        asked: list[int] = []

        async def broken(numbers: list[int]) -> Any:
            asked.extend(numbers)
            raise MetadataError("the database is gone")

        with monkeypatch.context() as patch:
            patch.setattr(server.broker.storage, "load_partitions", broken)
            codes = await ask_everything(client)
            assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 8
            assert len(asked) == len(set(asked)) == 8
            assert server.broker.log.partitions == {}
        server.broker.log.loader._refused.clear()  # as if half a second had passed
        assert await ask_everything(client) == [0] * 8
        await client.close()


async def test_fetch_of_unloaded_partition_waits_and_is_answered(tmp_path: Path) -> None:
    await make(tmp_path, 2)
    async with running(tmp_path) as server:
        reader, writer = (
            await Client.connect(port_of(server)),
            await Client.connect(port_of(server)),
        )
        reader.send(fetch("t1", 0, wait_ms=20_000), 11)
        await writer.call(produce("t0", batch(b"other")), 7)
        await writer.call(produce("t1", batch(b"woken")), 7)
        answer = await reader.receive()
        assert answer.responses[0].partitions[0].records
        await reader.close()
        await writer.close()


async def test_registered_port_is_the_bound_one(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        with closing(sqlite3.connect(tmp_path / "metadata.db")) as database:
            ((stored,),) = database.execute("SELECT listeners FROM brokers").fetchall()
        assert json.loads(stored) == {"PLAINTEXT": ["127.0.0.1", port_of(server)]}
