"""Requests for partitions whose leadership moves to another broker while they are served.

Covers: kafkawire.handlers.produce.pending, kafkawire.handlers.produce.repeat,
kafkawire.handlers.fetch.request, kafkawire.handlers.delete_records, kafkawire.broker.markers.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kafkawire.codec.control import COMMIT, TransactionMarker
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.fetch import MAX_ITEMS as MAX_FETCHED
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.fetch import FetchPartition
from kafkawire.messages.flat_produce import MAX_ITEMS
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.leaders import move
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of
from tests.kit.waiting import until

GONE, STAYS = 0, 1


class Commits:
    """Holds back the fsyncs of a broker; `pool`: or its writes in the thread."""

    def __init__(self, server: Server, pool: str = "commit") -> None:
        self._env = server.broker.env
        self._pool = pool
        self._go_on = threading.Event()

    def __enter__(self) -> Commits:
        self._env.offload.submit(self._pool, self._go_on.wait)
        return self

    def release(self) -> None:
        self._go_on.set()

    def __exit__(self, *_: object) -> None:
        self.release()


def give_away(server: Server, *indexes: int) -> list[int]:
    """Make broker 2 the leader, in the catalog."""
    broker = server.broker
    rows = broker.catalog.by_name["t"].partitions
    numbers = [rows[index].number for index in indexes]
    move(broker.catalog, numbers, 2)
    return numbers


async def resign(server: Server, *indexes: int) -> None:
    await server.broker.log.resign(give_away(server, *indexes))


def both(acks: int = -1, more: int = 0) -> Any:
    """A Produce to both partitions, and to `more` that do not exist."""
    return produce("t", *[batch(b"%d" % index) for index in range(2 + more)], acks=acks)


async def codes(client: Client) -> dict[int, int]:
    answer = await client.receive()
    return {row.index: row.error_code for row in answer.responses[0].partition_responses}


@pytest.fixture
async def topic(client: Client) -> bytes:
    return await make(client, "t", 2)


@pytest.mark.parametrize("version", [9, 13])
async def test_produces_that_wait_for_a_commit(
    server: Server, client: Client, topic: bytes, version: int
) -> None:
    name: str | bytes = topic if version >= 13 else "t"
    with Commits(server) as commits:
        client.send(produce(name, batch(b"a"), batch(b"b")), version)
        await until(lambda: server.broker.table.find_by_name("t", STAYS).next_offset == 1)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: GONE not in _led(server))
        commits.release()
        assert await codes(client) == {GONE: E.NOT_LEADER_OR_FOLLOWER, STAYS: 0}
        await resigning
    answer = await client.call(produce("t", batch(b"c"), batch(b"d")), 9)
    rows = answer.responses[0].partition_responses
    assert [row.error_code for row in rows] == [E.NOT_LEADER_OR_FOLLOWER, 0]


def _led(server: Server) -> set[int]:
    return {p.index for p in server.broker.table.by_name["t"] if p is not None}


async def slow_write(server: Server, client: Client) -> None:
    """Have a write take until it is released; what follows is queued."""
    log = server.broker.log.commit_log
    log.writer.slow = True
    client.send(produce("t", batch(b"first"), acks=1, index=STAYS), 9)
    await until(lambda: log.writer.flying)


@pytest.mark.parametrize("acks", [1, -1])
async def test_produces_of_write_batch_that_is_not_written(
    server: Server, client: Client, topic: bytes, acks: int
) -> None:
    log = server.broker.log
    with Commits(server, "write") as writes:
        await slow_write(server, client)
        client.send(both(acks), 9)
        await until(lambda: len(log.commit_log.frames) == 2)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: len(log.commit_log.frames) == 1)
        writes.release()
        assert await codes(client) == {STAYS: 0}
        assert await codes(client) == {GONE: E.NOT_LEADER_OR_FOLLOWER, STAYS: 0}
        await resigning
    assert not log.leadership.kept, "nothing of it was written"


@pytest.mark.parametrize("version", [9, 13])
async def test_repeated_produces(
    server: Server, client: Client, topic: bytes, version: int
) -> None:
    name: str | bytes = topic if version >= 13 else "t"
    for _ in range(2):
        await client.call(produce(name, batch(b"w")), version)
    with Commits(server) as commits:
        for index in (GONE, STAYS, GONE):
            client.send(produce(name, batch(b"x"), index=index), version)
        await until(lambda: server.broker.table.find_by_name("t", GONE).next_offset == 4)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: GONE not in _led(server))
        commits.release()
        found = [await codes(client) for _ in range(3)]
        assert found == [
            {GONE: E.NOT_LEADER_OR_FOLLOWER}, {STAYS: 0}, {GONE: E.NOT_LEADER_OR_FOLLOWER},
        ]  # fmt: skip
        await resigning
    client.send(produce(name, batch(b"y"), index=GONE), version)
    client.send(produce(name, batch(b"y"), index=STAYS), version)
    assert await codes(client) == {GONE: E.NOT_LEADER_OR_FOLLOWER}
    assert await codes(client) == {STAYS: 0}


async def test_long_produce(server: Server, client: Client, topic: bytes) -> None:
    with Commits(server) as commits:
        client.send(both(more=MAX_ITEMS), 9)
        await until(lambda: server.broker.table.find_by_name("t", STAYS).next_offset == 1)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: GONE not in _led(server))
        commits.release()
        found = await codes(client)
        await resigning
    assert (found[GONE], found[STAYS]) == (E.NOT_LEADER_OR_FOLLOWER, 0)


async def test_produce_with_acks_0_ends_the_connection(
    server: Server, client: Client, topic: bytes
) -> None:
    log = server.broker.log
    other = await Client.connect(port_of(server))
    with Commits(server, "write") as writes:
        await slow_write(server, other)
        client.send(produce("t", batch(b"x"), acks=0), 9, answered=False)
        await until(lambda: bool(log.commit_log.frames))
        resigning = asyncio.ensure_future(resign(server, GONE))
        assert await client.reader.read() == b""
        writes.release()
        await resigning
    await other.close()


async def test_produces_that_wait_for_room(
    server: Server, client: Client, topic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = server.broker.log.commit_log
    monkeypatch.setattr(log, "full", True)
    client.send(both(), 9)
    await until(lambda: bool(log.waiting_for_room))
    await resign(server, GONE)
    log.measure_room()
    assert await codes(client) == {GONE: E.NOT_LEADER_OR_FOLLOWER, STAYS: 0}


@pytest.mark.parametrize("partitions", [1, MAX_FETCHED + 1])
async def test_parked_fetches_are_answered_at_once(
    server: Server, client: Client, topic: bytes, partitions: int
) -> None:
    request = fetch(topic, 0, wait_ms=500_000)
    if partitions > 1:
        twin = FetchPartition(partition=STAYS, fetch_offset=0, partition_max_bytes=1)
        request.topics[0].partitions += [twin] * partitions
    client.send(request, 13)
    await until(lambda: bool(server.broker.table.find_by_name("t", GONE).watchers))
    await resign(server, GONE)
    answer = await client.receive()
    row = answer.responses[0].partitions[0]
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert not values(row)


async def test_list_offsets_and_delete_records(
    server: Server, client: Client, topic: bytes
) -> None:
    await client.call(both(), 9)
    asked = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])
    deleted = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 1)])
    other = await Client.connect(port_of(server))
    with Commits(server) as commits:
        server.broker.table.find_by_name("t", GONE).append(memoryview(bytearray(batch(b"x"))), 0)
        client.send(ListOffsetsRequest(-1, 0, [asked]), 6)
        other.send(DeleteRecordsRequest([deleted], 1000), 2)
        queue = server.broker.log.commit_log.disk_sink.queue
        await until(lambda: sum(len(each.callbacks) for each in [*queue.sealed, queue.newest]) > 1)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: GONE not in _led(server))
        commits.release()
        listed = (await client.receive()).topics[0].partitions[0]
        removed = (await other.receive()).topics[0].partitions[0]
        await resigning
    await other.close()
    assert (listed.error_code, listed.offset) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert removed.error_code == E.NOT_LEADER_OR_FOLLOWER


async def test_transaction_marker(server: Server, client: Client, topic: bytes) -> None:
    await client.call(both(), 9)
    writer = server.broker.markers
    marker = TransactionMarker(1, 0, 0, COMMIT)
    with Commits(server) as commits:
        writing = asyncio.ensure_future(writer.write([(marker, [("t", GONE), ("t", STAYS)])]))
        await until(lambda: server.broker.table.find_by_name("t", STAYS).next_offset == 2)
        resigning = asyncio.ensure_future(resign(server, GONE))
        await until(lambda: GONE not in _led(server))
        commits.release()
        (found,) = await writing
        await resigning
    assert found == {("t", GONE): E.NOT_LEADER_OR_FOLLOWER, ("t", STAYS): E.NONE}
