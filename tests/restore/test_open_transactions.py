"""Metadata rebuilt from the log: open transactions continue, aborted ones stay aborted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkawire.cli.app import app
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.server.run import Server
from kafkawire.transactions.machine.request import AddPartitions, EndTransaction, InitProducer
from tests.kit.cli import run
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.server import running
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
T = ("t", 0)


async def begin(server: Server, name: str) -> tuple[Producer, tuple[str, int, int]]:
    """Open a transaction with a record in t-0."""
    service = server.broker.transactions
    await service.coordinator_of(name)
    made = await service.init_producer(InitProducer(name, 600_000))
    who = name, made.producer_id, made.producer_epoch
    added = await service.answer_request(AddPartitions(*who, frozenset({T})))
    assert added.code is ErrorCode.NONE
    producer = Producer(*who[1:])
    partition = server.broker.table.find_by_name(*T)
    producer.send(partition, name.encode())
    await partition.log.wait_until_committed()
    return producer, who


async def test_rebuild_keeps_open_and_aborted_transactions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data) as server:
        await server.broker.topics.create([CreatableTopic("t", 1, 1)])
        _, aborted = await begin(server, "aborted")
        _, opened = await begin(server, "open")
        await server.broker.transactions.answer_request(EndTransaction(*aborted, False, 0))
        partition = server.broker.table.find_by_name(*T)
        await until(lambda: partition.high_watermark == 3)
        assert partition.last_stable_offset == 1
        markers = partition.list_aborted(0, 3)
        topic_id = server.broker.catalog.by_name["__transaction_state"].id
    for path in data.glob("metadata.db*"):
        path.unlink()
    done = await asyncio.to_thread(run, app, ["restore", "--from-log", "--data", str(data)])
    assert done.exit_code == 0, done.output
    async with running(data) as server:
        info = server.broker.catalog.by_name["__transaction_state"]
        assert (info.id, info.internal, len(info.partitions)) == (topic_id, True, 50)
        assert info.configs["cleanup.policy"] == "compact"
        service = server.broker.transactions
        await until(lambda: all(each.phase.name == "ACTIVE" for each in service.list_led()))
        found = await service.describe("open")
        assert (found.transaction_state, found.producer_id) == ("Ongoing", opened[1])
        assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0])]
        assert (await service.describe("aborted")).transaction_state == "CompleteAbort"
        await server.broker.table.load([T])
        partition = server.broker.table.find_by_name(*T)
        assert partition.last_stable_offset == 1
        assert partition.list_aborted(0, 3) == markers
        ended = await service.answer_request(EndTransaction(*opened, True, 0))
        assert ended.code is ErrorCode.NONE
        await until(lambda: partition.last_stable_offset == 4)
        assert await committed_records(partition) == [(1, b"open")]
