"""A broker that stops cleanly answers every request that it has started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.metadata.store import MetadataError
from kafkawire.server.receiving import CLOSED, STOPPING
from tests.kit.client import Client
from tests.kit.server import port_of, running
from tests.kit.waiting import until


@pytest.mark.slow
async def test_request_in_progress_is_answered_on_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def create_late(topics: object, seen: int) -> None:
        await go_on.wait()
        raise MetadataError("the metadata is closed")

    async with running(tmp_path) as server:
        monkeypatch.setattr(server.broker.metadata, "create_topics", create_late)
        client = await Client.connect(port_of(server))
        client.send(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 30_000), 7)
        await until(lambda: any(one.serving for one in server.host.connections))
        (connection,) = server.host.connections
        stopping = asyncio.ensure_future(server.close())
        await until(lambda: bool(connection.waits & (STOPPING | CLOSED)))
        client.send(CreateTopicsRequest([CreatableTopic("not started", 1, 1)], 30_000), 7)
        go_on.set()
        (topic,) = (await client.receive()).topics
        assert (topic.name, topic.error_code) == ("t", ErrorCode.KAFKA_STORAGE_ERROR)
        assert await client.reader.read() == b""
        await stopping
        await client.close()


@pytest.mark.slow
async def test_fetch_during_stop_does_not_wait(tmp_path: Path) -> None:
    """It starts while the log is being closed, after the parked ones were answered."""
    async with running(tmp_path) as server:
        client = await Client.connect(port_of(server))
        (topic,) = (
            await client.call(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 9), 7)
        ).topics
        partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchRequest(
            max_wait_ms=600_000, min_bytes=1, max_bytes=1000,
            topics=[FetchTopic(topic_id=topic.topic_id, partitions=[partition])],
        )  # fmt: skip
        close = server.broker.close

        async def close_during_a_fetch() -> None:
            client.send(fetch, 13)
            await until(lambda: any(one.exchanges for one in server.host.connections))
            await close()

        server.broker.close = close_during_a_fetch  # type: ignore[method-assign]
        await server.close()
        assert (await client.receive()).error_code == 0
        assert await client.reader.read() == b""
        await client.close()
