"""Fetches of older records: the response memory they reserve, and their behaviour when little is
free."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.answer_memory import AnswerMemory
from kafkawire.codec.batches import iter_batches
from kafkawire.codec.fetch import MAX_ITEMS
from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.log.partition.reader import _join
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

BATCHES, BATCH_BYTES = 50, 100_000
MIB = 1 << 20


@pytest.fixture(name="server")
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker with five MiB of which the last is hot, and little memory."""
    async with running(tmp_path, hot_bytes=str(MIB), journal_roll_ms="3600000") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await make(client, "hot")
        for _ in range(BATCHES):
            await client.call(produce("t", batch(bytes(BATCH_BYTES))), 7)
        await client.call(produce("hot", batch(b"hot")), 7)
        await client.close()
        yield server


@pytest.fixture(name="client")
async def connected(server: Server) -> AsyncIterator[Client]:
    client = await Client.connect(port_of(server))
    yield client
    await client.close()


def ask(*topics: str, offset: int = 0, count: int = 1, max_bytes: int = 50 * MIB) -> FetchRequest:
    rows = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index in range(count)
    ]
    first = FetchTopic(topic=topics[0], partitions=rows)
    others = [
        FetchTopic(topic=name, partitions=[FetchPartition(partition_max_bytes=MIB)])
        for name in topics[1:]
    ]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[first, *others])


def batches(answer: Any, at: int = 0) -> int:
    """The number of whole batches returned for the first partition of a topic."""
    row = answer.responses[at].partitions[0]
    assert row.error_code == 0
    return sum(1 for _ in iter_batches(row.records)) if row.records else 0


def starved(server: Server) -> int:
    hot = server.host.apis[1].hot  # the handler is created by its first request
    return len(hot.context.starved) if isinstance(hot, Fetch) else 0


async def test_pipelined_cold_fetches_are_read_one_at_a_time(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = server.host.answers
    largest = 0
    take = AnswerMemory.reserve

    def taken(self: AnswerMemory, wanted: int) -> int:
        nonlocal largest
        granted = take(self, wanted)
        largest = max(largest, self.held_bytes)
        return granted

    monkeypatch.setattr(AnswerMemory, "reserve", taken)
    for _ in range(20):
        client.send(ask("t"), 11)
    for _ in range(20):
        assert batches(await client.receive()) == BATCHES
    assert BATCHES * BATCH_BYTES <= largest < 2 * BATCHES * (BATCH_BYTES + 1000)
    await until(lambda: answers.held_bytes == 0, "everything has left")


async def test_fetch_returns_fewer_batches_when_little_memory_is_free(
    server: Server, client: Client
) -> None:
    answers = server.host.answers
    answers.add_bytes(answers.bound_bytes - answers.bound_bytes // 8 - 4 * MIB)
    assert batches(await client.call(ask("t"), 11)) == MIB // BATCH_BYTES
    await until(lambda: answers.held_bytes < answers.bound_bytes, "it has left")
    assert batches(await client.call(ask("t", max_bytes=150_000), 11)) == 1


async def test_one_batch_is_read_even_if_larger_than_grant(server: Server, client: Client) -> None:
    answers = server.host.answers
    held = answers.bound_bytes - 4 * (80 << 10)  # a quarter of what is free is 80 KiB
    answers.add_bytes(held)
    assert batches(await client.call(ask("t", max_bytes=MIB), 11)) == 1
    await until(lambda: answers.held_bytes == held, "it has left")


async def test_fetch_waits_until_memory_is_free(server: Server, client: Client) -> None:
    answers = server.host.answers
    answers.add_bytes(answers.bound_bytes)
    client.send(ask("t"), 11)
    await until(lambda: starved(server) == 1, "it waits")
    assert answers.short
    other = await Client.connect(port_of(server))
    both = await other.call(ask("t", "hot"), 11)  # what is in memory is answered at once
    assert (batches(both), batches(both, 1)) == (0, 1)
    assert batches(await other.call(ask("hot"), 11)) == 1
    answers.release(answers.bound_bytes)
    assert batches(await client.receive()) == BATCHES
    assert not starved(server)
    await until(lambda: answers.held_bytes == 0, "everything has left")
    await other.close()


@pytest.mark.parametrize("count", [1, MAX_ITEMS + 1])
async def test_fetch_that_waits_too_long_for_memory_returns_no_records(
    server: Server, client: Client, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.handlers.fetch.request.MEMORY_PATIENCE_S", 0.01)
    answers = server.host.answers
    answers.add_bytes(answers.bound_bytes)
    assert batches(await client.call(ask("t", count=count), 11)) == 0
    assert not answers.waiting
    answers.release(answers.bound_bytes)
    assert batches(await client.call(ask("t", count=count), 11)) == BATCHES
    await until(lambda: answers.held_bytes == 0, "everything has left")


@pytest.mark.parametrize("count", [1, MAX_ITEMS + 1])
async def test_disconnected_client_waiting_for_memory_reserves_none(
    server: Server, client: Client, count: int
) -> None:
    answers = server.host.answers
    answers.add_bytes(answers.bound_bytes)
    client.send(ask("t", count=count), 11)
    await until(lambda: answers.waiting == 1, "it waits")
    client.writer.transport.abort()
    await until(lambda: not server.host.connections, "it has gone")
    answers.release(answers.bound_bytes)
    await until(lambda: answers.held_bytes == 0 and not answers.waiting, "nothing is held")


async def test_fetches_waiting_for_memory_are_answered_on_close(
    server: Server, client: Client
) -> None:
    answers = server.host.answers
    answers.add_bytes(answers.bound_bytes)
    client.send(ask("t"), 11)
    await until(lambda: starved(server) == 1, "it waits")
    await server.close()
    assert batches(await client.receive()) == 0


@pytest.mark.parametrize("count", [1, MAX_ITEMS + 1])
@pytest.mark.interpreted
async def test_exception_in_read_is_error_of_its_partition(
    server: Server, client: Client, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.log.partition.reader.SPAN_BYTES", 1 << 30)  # it is read
        patched.setattr("kafkawire.log.partition.reader._trim", broken)
        answer = await client.call(ask("t", count=count), 11)
        assert answer.responses[0].partitions[0].error_code == -1
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.log.partition.partition.make_plan", broken)
        answer = await client.call(ask("t", "hot", count=count), 11)
        assert answer.responses[0].partitions[0].error_code == -1
    assert batches(await client.call(ask("t", count=count), 11)) == BATCHES
    await until(lambda: server.host.answers.held_bytes == 0, "everything has left")


@pytest.mark.parametrize("step", [100, 200, 5_000, 16_000, 100_000])
def test_gap_between_batches_is_read_only_if_small(step: int) -> None:
    group = [(at * step, 100) for at in range(5000)]
    spans = _join(group)
    covered = sum(size for _, size in spans)
    assert covered <= 2 * 100 * len(group) + (32 << 10)
    at = 0
    for position, length in group:  # each is in one span, in order
        while position >= spans[at][0] + spans[at][1]:
            at += 1
        assert spans[at][0] <= position
        assert position + length <= spans[at][0] + spans[at][1]
    assert len(spans) == 1 or step > 200
