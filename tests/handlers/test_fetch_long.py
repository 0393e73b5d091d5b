"""Fetches of many partitions, which are served in slices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.fetch import MAX_ITEMS
from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.log.partition.reader import PartitionReader
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce, values
from tests.kit.server import port_of
from tests.kit.waiting import until

MANY = MAX_ITEMS * 2


def fetch_all(topic: str | bytes, count: int = MANY, **fields: int) -> FetchRequest:
    rows = [FetchPartition(n, partition_max_bytes=1 << 20) for n in range(count)]
    asked = FetchTopic(partitions=rows)
    if isinstance(topic, bytes):
        asked.topic_id = topic
    else:
        asked.topic = topic
    request = FetchRequest(max_bytes=1 << 20, min_bytes=1, topics=[asked])
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def parked(server: Server) -> set[Any]:
    hot = server.host.apis[1].hot  # the handler is created by its first request
    found: Any = hot.context.parked if isinstance(hot, Fetch) else set()
    return {one for one in found if one.moved is not None}


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_every_partition_gets_its_own_result(client: Client, version: int) -> None:
    topic_id = await make(client, "t", MANY - 1)  # the last index does not exist
    await client.call(produce("t", *[batch(b"%d" % n) for n in range(MANY - 1)]), 9)
    request = fetch_all(topic_id if version >= 13 else "t")
    request.topics[0].partitions[7].fetch_offset = 99
    request.topics[0].partitions[8].fetch_offset = 1
    (topic,) = (await client.call(request, version)).responses
    rows = {row.partition_index: row for row in topic.partitions}
    assert rows[MANY - 1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rows[7].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values(rows[8]) == []
    for index in set(range(MANY - 1)) - {7, 8}:
        assert values(rows[index]) == [b"%d" % index]
        assert rows[index].high_watermark == 1


async def test_long_fetch_waits_for_first_record(server: Server, client: Client) -> None:
    await make(client, "t", MANY)
    client.send(fetch_all("t", max_wait_ms=60_000), 11)
    await until(lambda: bool(parked(server)))
    other = await Client.connect(port_of(server))
    await other.call(produce("t", batch(b"came"), index=MANY - 1), 9)
    (topic,) = (await asyncio.wait_for(client.receive(), 30)).responses
    assert values(topic.partitions[MANY - 1]) == [b"came"]
    assert not parked(server)
    # It stops watching its partitions in slices, after the response.
    partition = server.broker.table.find_by_name("t", 0)
    await until(lambda: not partition.watchers)
    await other.close()


async def test_long_fetch_waits_at_most_max_wait(server: Server, client: Client) -> None:
    await make(client, "t", MANY)
    answer = await client.call(fetch_all("t", max_wait_ms=50), 11)
    assert len(answer.responses[0].partitions) == MANY
    assert not parked(server)


async def test_max_bytes_bounds_all_partitions_together(client: Client) -> None:
    await make(client, "t", MANY)
    raw = batch(bytes(1000))
    await client.call(produce("t", *[raw] * MANY), 9)
    answer = await client.call(fetch_all("t", max_bytes=10 * len(raw)), 11)
    assert sum(bool(row.records) for row in answer.responses[0].partitions) == 10


async def test_long_fetch_ends_when_client_disconnects(server: Server) -> None:
    client = await Client.connect(port_of(server))
    await make(client, "t", MANY)
    client.send(fetch_all("t", max_wait_ms=60_000), 11)
    await until(lambda: bool(parked(server)))
    await client.close()
    await until(lambda: not parked(server))
    await until(lambda: not server.broker.table.find_by_name("t", 0).watchers)
    assert server.host.memory.taken_bytes < 1 << 20


async def test_unknown_fetch_session_is_refused(client: Client) -> None:
    answer = await client.call(fetch_all("t", session_id=5, session_epoch=3), 11)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("isolation", [0, 1])
async def test_records_whose_journal_was_unmapped_after_their_plan_are_read(
    client: Client, isolation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other partitions are planned in slices, between which journals are rolled and cut."""
    await make(client, "t", MANY)
    await client.call(produce("t", *[batch(b"%d" % n) for n in range(MANY)]), 9)
    monkeypatch.setattr(PartitionReader, "is_mapped", lambda *_: False)
    request = fetch_all("t", isolation_level=isolation)
    (topic,) = (await client.call(request, 12)).responses
    assert [values(row) for row in topic.partitions] == [[b"%d" % n] for n in range(MANY)]


async def test_waiting_requests_are_bounded_for_long_ones_too(
    server: Server, client: Client
) -> None:
    await make(client, "t", MANY)
    server.broker.config.parked_fetches_max = 0
    answer = await asyncio.wait_for(client.call(fetch_all("t", max_wait_ms=60_000), 11), 30)
    assert len(answer.responses[0].partitions) == MANY
