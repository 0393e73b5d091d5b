"""A simulated broker with a schedule topic, and what tests do to it, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kafkawire.codec.batches import CONTROL, Record, iter_batches, pack, records
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.schedules.deliverer import Deliverer
from kafkawire.schedules.service import ScheduleService
from tests.kit.exactly_once.history import History
from tests.kit.exactly_once.producer import Transactional
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.schedules.scripted import LATER, ORDERS, Row

TOPIC = 2  # of AlterConfigs


class ScheduleWorld:
    """A schedule topic of one partition, `later`, and a target of one, `orders`, whose timestamps
    are the moments of delivery. `configs`: what makes `later` a schedule topic."""

    def __init__(
        self, *, policy: str = "delete", configs: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.world = World(1, log_retention_check_interval_ms=60_000, **settings)
        self.net = SimNet(self.world)
        target = {"schedule.target.topic": ORDERS}
        self.configs = {"cleanup.policy": policy, **(target if configs is None else configs)}

    def run(self, main: Callable[[ScheduleWorld], Awaitable[None]]) -> None:
        """Start a broker with both topics, and run `main`."""

        async def whole() -> None:
            assert await self.world.start()
            await self.create(ORDERS)
            await self.create(LATER, self.configs)
            while not self.delivering():
                await self.sleep(0.01)
            await main(self)

        self.world.run(whole())

    @property
    def service(self) -> ScheduleService:
        """The service of the broker that lives now."""
        assert self.world.broker is not None
        found = self.world.broker.parts.schedules.service
        assert found is not None
        return found

    @property
    def deliverer(self) -> Deliverer:
        """The only deliverer."""
        (found,) = self.service.deliverers.values()
        return found

    def delivering(self) -> bool:
        """Whether the broker delivers."""
        assert self.world.broker is not None
        service = self.world.broker.parts.schedules.service
        return service is not None and len(service.deliverers) == 1

    def partition(self, topic: str) -> Partition:
        """The partition of a topic, in memory."""
        assert self.world.broker is not None
        return self.world.broker.parts.table.find_by_name(topic, 0)

    async def sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)

    def now_ms(self) -> int:
        return self.net.now_ms()

    def jump(self, by_ms: int) -> None:
        """Set the clock of the broker."""
        self.world.set_clock(by_ms)

    async def restart(self) -> None:
        """End the broker cleanly and start another one."""
        await self.world.life(0, "close")
        assert await self.world.start()
        while not self.delivering():
            await self.sleep(0.01)

    # -- requests -------------------------------------------------------------------------

    async def call(self, request: Any, version: int) -> Any:
        return await self.net.call(request, version)

    async def create(self, name: str, configs: Mapping[str, str] | None = None) -> None:
        rows = [CreatableTopicConfig(*each) for each in (configs or {}).items()]
        if configs is None:
            rows.append(CreatableTopicConfig("message.timestamp.type", "LogAppendTime"))
        topic = CreatableTopic(name, 1, 1, configs=rows)
        answer = await self.call(CreateTopicsRequest([topic], 5_000), 7)
        assert not answer.topics[0].error_code, answer

    async def alter(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic."""
        rows = [AlterableConfig(*each) for each in configs.items()]
        request = AlterConfigsRequest([AlterConfigsResource(TOPIC, name, rows)])
        answer = await self.call(request, 1)
        assert not answer.responses[0].error_code, answer

    async def send(self, items: Sequence[Record]) -> None:
        """Produce records in one batch."""
        await self.produce(bytes(pack(items)))

    async def produce(self, batch: bytes) -> None:
        row = await self.try_produce(batch)
        assert not row.error_code, row

    async def try_produce(self, batch: bytes) -> Any:
        """Produce a batch; return the answer for the partition."""
        data = TopicProduceData(LATER, partition_data=[PartitionProduceData(0, batch)])
        answer = await self.call(ProduceRequest(None, -1, 1000, [data]), 9)
        return answer.responses[0].partition_responses[0]

    async def transaction(self, values: Sequence[str], *, commit: bool) -> None:
        """Produce values in a transaction."""
        found = 1
        while found:  # the first request creates the topic
            asked = FindCoordinatorRequest(key_type=1, coordinator_keys=["transaction"])
            found = (await self.call(asked, 4)).coordinators[0].error_code
            await self.sleep(0.05)
        instance = Transactional(self.net, History(), "p", "transaction", 2, 12)
        await instance.init()
        instance.begin()
        await instance.send((LATER, 0), list(values))
        await (instance.commit() if commit else instance.abort())

    async def delivered(self, topic: str = ORDERS) -> list[Row]:
        """Return what was delivered, in the order of offsets."""
        return await self.rows(topic)

    async def rows(self, topic: str) -> list[Row]:
        """Return the records of a topic."""
        return [
            Row(0, each.offset, each.timestamp, each.key, each.value, dict(each.headers))
            for each in await self.records(topic)
        ]

    async def records(self, topic: str) -> list[Record]:
        """Return the records of a topic, with all headers."""
        found: list[Record] = []
        offset = 0
        while True:
            row = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
            asked = FetchRequest(
                max_wait_ms=0, max_bytes=1 << 22, topics=[FetchTopic(topic, partitions=[row])]
            )
            answer = (await self.call(asked, 12)).responses[0].partitions[0]
            assert not answer.error_code, answer.error_code
            raw = bytes(answer.records or b"")
            if not raw:
                return found
            for position, head in iter_batches(raw):
                offset = head.last_offset + 1
                if not head.attributes & CONTROL:
                    found += records(raw, position)
