"""Cold reads through sockets, the storage process and a folder: clients read the same bytes."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.log.segments.test_served import (
    NOW_MS,
    QUICK_CUTS,
    cut_until,
    fetch,
    partition_of,
    produce,
)

MAX_ATTEMPTS = 3000


async def tiered_until(server: Server, offset: int) -> None:
    for _ in range(MAX_ATTEMPTS):
        if partition_of(server).commit_offset >= offset:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"tiered up to {partition_of(server).commit_offset}, not {offset}")


async def listed(client: Client, timestamp: int) -> int:
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=timestamp)])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=60_000)
    row = (await client.call(request, 11)).topics[0].partitions[0]
    assert row.error_code == 0
    return int(row.offset)


def everything(max_bytes: int = 1 << 20) -> FetchRequest:
    rows = [FetchPartition(0, fetch_offset=0, partition_max_bytes=max_bytes)]
    topics = [FetchTopic("t", partitions=rows)]
    return FetchRequest(max_wait_ms=1000, min_bytes=1, max_bytes=1 << 24, topics=topics)


@pytest.mark.real
async def test_cold_fetches_are_served_despite_client_that_does_not_read(
    tmp_path: Path,
) -> None:
    settings = {"tier_url": str(tmp_path / "tier"), "remote_fetch_max_wait_ms": "60000"}
    async with running(tmp_path / "data", **QUICK_CUTS, **settings) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 1, tieredStorageLevel="force", tiering_min_object_bytes="1")
        await produce(client, 200, 0)
        await cut_until(partition_of(server), 200)
        await tiered_until(server, 200)
        server.broker.config.journal_roll_ms = 1 << 40
        await produce(client, 10, 200)
        tiering = server.broker.tiering
        assert tiering is not None
        cold = tiering.cold
        got: list[int] = []
        while len(got) < 210:
            got += await fetch(client, len(got), 1 << 20)
        assert got == list(range(210))
        assert cold.counts.requests
        assert await listed(client, NOW_MS + 7) == 7
        assert await listed(client, -4) == 0  # the local files still exist
        assert await listed(client, -5) == 199
        assert await listed(client, -6) == 200

        idle = await Client.connect(port_of(server))
        for _ in range(40):  # far more than the kernel takes
            idle.send(everything(), 11)
        answers = server.host.answers
        await until(lambda: answers.held_bytes > 0, "an answer that is not read")
        assert await fetch(client, 0, 1 << 20)
        await until(lambda: 0 < answers.held_bytes < 1 << 24, "one Fetch at a time")
        idle.writer.transport.abort()
        await client.close()
        for _ in range(MAX_ATTEMPTS):
            gc.collect()
            if not cold.tier(0).cache.leased and not answers.held_bytes:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the blocks of disconnected clients are still held")
