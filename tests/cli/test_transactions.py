"""`kafkawire transactions` against a broker in the same process.

Covers: kafkawire.cli.transactions, kafkawire.cli.records.consume,
kafkawire.client.transaction_admin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.codec.errors import ErrorCode
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.server.run import Server
from kafkawire.transactions.machine.request import AddPartitions, InitProducer
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.env import EPOCH_MS
from tests.kit.log.transactional import Producer
from tests.kit.server import port_of, running

pytestmark = pytest.mark.slow


class Commands:
    """A broker with the topic "t" of two partitions, and commands to it."""

    def __init__(self, server: Server) -> None:
        self.broker: Broker = server.broker
        self.address = f"127.0.0.1:{port_of(server)}"

    async def run(self, *words: str) -> Typed:
        return await asyncio.to_thread(Typed, self.address, "transactions", *words)

    async def json(self, *words: str) -> Any:
        return (await self.run(*words, "--json")).json

    def partition(self, index: int) -> Partition:
        return self.broker.table.find_by_name("t", index)

    async def write(self, producer: Producer, index: int = 0) -> None:
        """Open a transaction in a partition, whatever the coordinator knows of it."""
        producer.send(self.partition(index), b"x")
        await self.partition(index).log.wait_until_committed()

    async def opened(self, name: str, *indexes: int) -> Producer:
        """A producer whose open transaction has these partitions, and a record in each."""
        service = self.broker.transactions
        await service.coordinator_of(name)
        made = await service.init_producer(InitProducer(name, 60_000))
        producer = Producer(made.producer_id, made.producer_epoch)
        if indexes:
            who = name, made.producer_id, made.producer_epoch
            partitions = frozenset(("t", index) for index in indexes)
            added = await service.answer_request(AddPartitions(*who, partitions))
            assert added.code is ErrorCode.NONE
        for index in indexes:
            await self.write(producer, index)
        return producer


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    async with running(tmp_path / "data") as server:
        await server.broker.topics.create([CreatableTopic("t", 2, 1)])
        yield Commands(server)


async def test_list_applies_filters(commands: Commands) -> None:
    assert await commands.json("list") == []
    producer = await commands.opened("tx-1", 0)
    other = await commands.opened("other")
    first = {"transactional_id": "tx-1", "coordinator": 1, "producer_id": producer.id,
             "state": "Ongoing"}  # fmt: skip
    second = {"transactional_id": "other", "coordinator": 1, "producer_id": other.id,
              "state": "Empty"}  # fmt: skip
    assert await commands.json("list") == [second, first]
    assert await commands.json("list", "--state", "Ongoing", "--state", "Dead") == [first]
    assert await commands.json("list", "--producer-id", str(other.id)) == [second]
    assert await commands.json("list", "--pattern", "tx-.*") == [first]
    assert await commands.json("list", "--longer-than", "1h") == [second]  # it has no start


async def test_hanging_transaction_is_found_and_aborted(commands: Commands) -> None:
    """In partition 1, of which the coordinator does not know, and one without an id."""
    producer = await commands.opened("tx", 0)
    await commands.write(producer, 1)
    stranger = Producer(987)
    await commands.write(stranger, 1)
    assert EPOCH_MS > 0  # the records are from the past, so that any timeout has passed
    rows = await commands.json("hanging")
    found = [(row["partition"], row["producer_id"], row["start_offset"]) for row in rows]
    assert found == [(1, producer.id, 0), (1, 987, 1)]
    assert [row["transactional_id"] for row in rows] == ["tx", None]
    assert await commands.json("hanging", "--topic", "t", "--broker", "1") == rows
    assert await commands.json("hanging", "--max-transaction-timeout", str(2**31 - 1)) == []
    for start in ("0", "1"):
        old = ("--topic", "t", "--partition", "1")
        words = ("abort", *(["t:1"] if start == "1" else old), "--start-offset", start)
        (done,) = await commands.json(*words)
        assert (done["topic"], done["partition"], done["start_offset"]) == ("t", 1, int(start))
        assert (await commands.run(*words)).code == 1
    assert await commands.json("hanging") == []
    assert commands.partition(1).last_stable_offset == 4
    assert commands.partition(1).list_aborted(0, 4) == [(producer.id, 0, 2), (987, 1, 3)]
    assert commands.partition(0).last_stable_offset == 0  # its coordinator will end it


async def test_consume_leaves_out_aborted_and_open_transactions(commands: Commands) -> None:
    aborted, committed, opened = Producer(11), Producer(12), Producer(13)
    partition = commands.partition(0)
    for producer, value in ((aborted, b"a"), (committed, b"b"), (aborted, b"c")):
        producer.send(partition, value)
    aborted.end(partition, commit=False)
    committed.end(partition, commit=True)
    opened.send(partition, b"d")
    await partition.log.wait_until_committed()

    async def consume(*words: str) -> Typed:
        return await asyncio.to_thread(Typed, commands.address, "consume", "t", *words)

    assert (await consume("--isolation-level", "read_committed")).out == "b\n"
    assert (await consume()).out == "a\nb\nc\nd\n"
