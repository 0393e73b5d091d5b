"""Two brokers in the test's own loop; each leads half of the partitions of a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kafkawire.broker.broker import Broker
from kafkawire.codec.errors import ErrorCode
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.metadata.catalog import BrokerInfo
from kafkawire.server.run import Server
from kafkawire.transactions.machine.request import AddPartitions, InitProducer
from tests.kit.log.transactional import Producer
from tests.kit.server import port_of, running
from tests.kit.waiting import until

PARTITIONS = [("t", index) for index in range(4)]


async def create(server: Server, name: str, leaders: list[int]) -> None:
    """Create a topic whose partitions have these leaders."""
    topic = CreatableTopic(name, -1, -1)
    topic.assignments = [CreatableReplicaAssignment(n, [led]) for n, led in enumerate(leaders)]
    await server.broker.topics.create([topic])
    assert len(server.broker.catalog.by_name[name].partitions) == len(leaders)


async def register(broker: Broker, other: BrokerInfo) -> None:
    """Have a broker know another one, as alive."""
    broker.catalog.add_broker(other)
    await broker.metadata.register_broker(other.node_id, other.listeners, other.rack)
    # New topics wait for a heartbeat, and this one's database never has one of the other broker.
    broker.liveness.running([other.node_id])


async def share(server: Server, other: Server) -> None:
    """Create a topic of four partitions, of which broker 2 leads the odd ones, and the topics of
    the coordinators: broker 1 coordinates transactions, broker 2 groups."""
    broker = server.broker
    node_id = 3 - broker.node_id
    info = BrokerInfo(node_id, {"PLAINTEXT": ("127.0.0.1", port_of(other))}, None)
    await register(broker, info)
    await create(server, "t", [1, 2, 1, 2])
    await create(server, "__transaction_state", [1, 1])
    await create(server, "__consumer_offsets", [2, 2])
    await broker.table.load(PARTITIONS)


class Two:
    """Two brokers: the first coordinates the transactions of "tx"."""

    def __init__(self, first: Server, second: Server) -> None:
        self.first = first.broker
        self.second = second.broker

    def partition(self, index: int) -> Partition:
        return (self.first, self.second)[index % 2].table.find_by_name("t", index)

    async def opened(self) -> tuple[str, int, int]:
        """A transaction with a record in each partition."""
        service = self.first.transactions
        await service.coordinator_of("tx")
        made = await service.init_producer(InitProducer("tx", 60_000))
        who = "tx", made.producer_id, made.producer_epoch
        added = await service.answer_request(AddPartitions(*who, frozenset(PARTITIONS)))
        assert added.code is ErrorCode.NONE
        producer = Producer(made.producer_id, made.producer_epoch)
        for index in range(4):
            producer.send(self.partition(index), b"x")
            await self.partition(index).log.wait_until_committed()
        return who

    async def state(self) -> tuple[str, list[int]]:
        """The state of "tx", and its partitions."""
        found = await self.first.transactions.describe("tx")
        return found.transaction_state, [n for topic in found.topics for n in topic.partitions]

    async def settled(self, state: str) -> None:
        """Wait until every marker of "tx" is written."""
        (coordinator,) = [
            each for each in self.first.transactions.list_led() if each.shard.transactions
        ]
        await until(lambda: coordinator.shard.transactions["tx"].state.label == state)
        assert await self.state() == (state, [])


@asynccontextmanager
async def two_brokers(folder: Path) -> AsyncIterator[Two]:
    """Two started brokers that know of each other."""
    async with (
        running(folder / "1", node_id="1") as first,
        running(folder / "2", node_id="2") as second,
    ):
        await share(first, second)
        await share(second, first)
        service = first.broker.transactions
        await service.open()
        await until(lambda: all(each.phase.name == "ACTIVE" for each in service.list_led()))
        yield Two(first, second)
