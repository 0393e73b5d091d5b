"""Transactions whose partitions two brokers lead, half each: markers go to both.

Covers: kafkawire.broker.remote_markers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.broker.remote_markers import RemoteMarkers, codes_of, request_of
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.disk import real_env
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kafkawire.metadata.catalog import BrokerInfo, Catalog
from kafkawire.server.run import Server
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.request import AddPartitions, EndTransaction, InitProducer
from tests.kit.log.transactional import Producer
from tests.kit.server import port_of, running
from tests.kit.waiting import until

PARTITIONS = [("t", index) for index in range(4)]
WORK = SendMarkers("tx", 7, 3, True, 5, 2, frozenset({("t", 1), ("t", 3), ("u", 0)}))


async def share(server: Server, other: Server) -> None:
    """Create a topic of four partitions; broker 2 leads the odd ones."""
    broker = server.broker
    node_id = 3 - broker.node_id
    info = BrokerInfo(node_id, {"PLAINTEXT": ("127.0.0.1", port_of(other))}, None)
    broker.catalog.add_broker(info)
    await broker.metadata.register_broker(node_id, info.listeners, None)
    topic = CreatableTopic("t", -1, -1)
    topic.assignments = [CreatableReplicaAssignment(n, [1 + n % 2]) for n in range(4)]
    (made,) = await broker.topics.create([topic])
    assert made is not None
    await broker.table.load(PARTITIONS)


class Two:
    """Two brokers: the first coordinates the transactions of "tx"."""

    def __init__(self, first: Server, second: Server) -> None:
        self.first = first.broker
        self.second = second.broker

    def partition(self, index: int) -> Partition:
        return (self.first, self.second)[index % 2].table.named("t", index)

    async def opened(self) -> tuple[str, int, int]:
        """A transaction with a record in each partition."""
        service = self.first.transactions
        await service.coordinator_of("tx")
        made = await service.init_producer(InitProducer("tx", 60_000))
        who = "tx", made.producer_id, made.producer_epoch
        added = await service.ask(AddPartitions(*who, frozenset(PARTITIONS)))
        assert added.code is ErrorCode.NONE
        producer = Producer(made.producer_id, made.producer_epoch)
        for index in range(4):
            producer.send(self.partition(index), b"x")
            await self.partition(index).log.committed()
        return who

    async def state(self) -> tuple[str, list[int]]:
        """The state of "tx", and its partitions."""
        found = await self.first.transactions.describe("tx")
        return found.transaction_state, [n for topic in found.topics for n in topic.partitions]

    async def settled(self, state: str) -> None:
        """Wait until every marker of "tx" is written."""
        (coordinator,) = [each for each in self.first.transactions.led() if each.shard.transactions]
        await until(lambda: coordinator.shard.transactions["tx"].state.label == state)
        assert await self.state() == (state, [])


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with (
        running(tmp_path / "1", node_id="1") as first,
        running(tmp_path / "2", node_id="2") as second,
    ):
        await share(first, second)
        await share(second, first)
        yield Two(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
async def test_markers_reach_the_partitions_of_both_brokers(
    two: Two, commit: bool, version: int
) -> None:
    who = await two.opened()
    assert [two.partition(index).last_stable_offset for index in range(4)] == [0] * 4
    assert (await two.first.transactions.ask(EndTransaction(*who, commit, version))).code == 0
    for index in range(4):
        partition = two.partition(index)
        await until(partial(is_stable, partition))
        assert partition.aborted(0, 2) == ([] if commit else [(who[1], 0, 1)])
    name = "CompleteCommit" if commit else "CompleteAbort"
    await two.settled(name)


@pytest.mark.slow
async def test_markers_are_repeated_until_the_broker_is_back(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await two.opened()
    refused = 0

    async def refuse(broker: Broker) -> None:
        nonlocal refused
        refused += 1
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    with monkeypatch.context() as patch:
        patch.setattr(two.second.markers, "write", refuse)
        await two.first.transactions.ask(EndTransaction(*who, True, 0))
        await until(lambda: refused >= 2)
        assert await two.state() == ("PrepareCommit", [1, 3])
        assert two.partition(1).last_stable_offset == 0
    await two.settled("CompleteCommit")
    assert [two.partition(index).last_stable_offset for index in range(4)] == [2] * 4


def is_stable(partition: Partition) -> bool:
    return partition.last_stable_offset == 2


def remote(address: tuple[str, int] | None, name: str = "PLAINTEXT") -> RemoteMarkers:
    catalog = Catalog("c")
    if address is not None:
        catalog.add_broker(BrokerInfo(2, {"OTHER": ("127.0.0.1", 1), name: address}, None))
    return RemoteMarkers(real_env(), catalog, ["PLAINTEXT"])


async def test_broker_without_an_address_is_not_available() -> None:
    with pytest.raises(KafkaError) as error:
        await remote(None).write(2, [WORK])
    assert error.value.code is ErrorCode.BROKER_NOT_AVAILABLE


async def test_broker_that_refuses_connections_is_a_network_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and no server listens
        with pytest.raises(KafkaError) as error:
            await remote(unused.getsockname()).write(2, [WORK])
    assert error.value.code is ErrorCode.NETWORK_EXCEPTION


@pytest.mark.slow
async def test_stop_ends_a_request_that_waits_for_its_answer(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, released = asyncio.Event(), asyncio.Event()

    async def hold(work: object) -> list[object]:
        arrived.set()
        await released.wait()
        return [{}]

    monkeypatch.setattr(two.second.markers, "write", hold)
    asked = asyncio.ensure_future(two.first.markers.write_markers(2, [WORK]))
    await arrived.wait()
    two.first.markers.close()
    with pytest.raises(KafkaError) as error:
        await asked
    assert error.value.code is ErrorCode.NETWORK_EXCEPTION
    released.set()


def test_request_has_every_marker() -> None:
    (marker,) = request_of([WORK]).markers
    assert (marker.producer_id, marker.producer_epoch) == (7, 3)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
    assert marker.transaction_result is True
    found = [(topic.name, topic.partition_indexes) for topic in marker.topics]
    assert found == [("t", [1, 3]), ("u", [0])]


def test_codes_are_those_of_the_producer() -> None:
    rows = [WritableTxnMarkerPartitionResult(1, 0), WritableTxnMarkerPartitionResult(3, 999)]
    topics = [WritableTxnMarkerTopicResult("t", rows)]
    others = [WritableTxnMarkerTopicResult("t", [WritableTxnMarkerPartitionResult(1, 52)])]
    response = WriteTxnMarkersResponse(
        [WritableTxnMarkerResult(8, others), WritableTxnMarkerResult(7, topics)]
    )
    assert codes_of(response, [WORK]) == [
        {("t", 1): ErrorCode.NONE, ("t", 3): ErrorCode.UNKNOWN_SERVER_ERROR}
    ]
