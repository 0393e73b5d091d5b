"""Two brokers on one database, in the test's own loop, and a topic whose partition moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.handlers.topic_parts import TopicEncoder
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.metadata import MetadataResponsePartition
from kafkawire.metadata.directory import PartitionInfo
from tests.kit.server import running
from tests.kit.waiting import until


class MovingTopic:
    """Brokers 1 and 2, and a topic "t" of two partitions led by broker 1. Metadata says so even
    after `move`: then only the errors of Produce and Fetch name the leader."""

    def __init__(self, first: Broker, second: Broker) -> None:
        self.first = first
        self.second = second
        host, port = first.listeners["PLAINTEXT"]
        self.bootstrap = f"{host}:{port}"

    async def create(self) -> None:
        topic = CreatableTopic("t", -1, -1)
        topic.assignments = [CreatableReplicaAssignment(n, [1]) for n in range(2)]
        await self.first.topics.create([topic])
        await until(lambda: "t" in self.second.catalog.by_name)

    async def move(self) -> None:
        """Make broker 2 the leader of partition 0; return once both have noticed."""
        number = self.first.catalog.by_name["t"].partitions[0].number
        move = self.first.metadata.move_partitions
        await self.first.topics.lock.change(lambda seen: move([number], 2, seen))
        await until(lambda: self.leaders() == [2, 2])

    def leaders(self) -> list[int]:
        both = self.first, self.second
        return [each.catalog.by_name["t"].partitions[0].leader for each in both]


@contextmanager
def old_metadata() -> Iterator[None]:
    """Have Metadata answer with the first leaders of partitions."""
    original = TopicEncoder._partition

    def old(
        self: TopicEncoder, partition: PartitionInfo, replicated: bool
    ) -> MetadataResponsePartition:
        return original(self, replace(partition, leader=1, leader_epoch=0), replicated)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicEncoder, "_partition", old)
        yield


@asynccontextmanager
async def moving_topic(folder: Path) -> AsyncIterator[MovingTopic]:
    """Two started brokers that know of each other, and the topic."""
    url = f"sqlite+aiosqlite:///{folder}/shared.db"
    with old_metadata():
        async with (
            running(folder / "1", metadata=url, node_id="1") as first,
            running(folder / "2", metadata=url, node_id="2") as second,
        ):
            both = first.broker, second.broker
            await until(lambda: all(len(each.catalog.brokers) == 2 for each in both))
            made = MovingTopic(*both)
            await made.create()
            yield made
