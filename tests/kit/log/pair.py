"""Two logs, or more, in one data folder and one database, between which partitions are moved by
hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kafkawire.log.io.ports import Env
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange, NewTopic
from tests.kit.env import memory_env
from tests.kit.leaders import move
from tests.kit.log.logs import NEVER_MS, settings
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata


class Member:
    """One broker's log. `start` starts a process."""

    def __init__(self, node_id: int, fs: MemFileSystem, database: MemoryDatabase) -> None:
        self.node_id = node_id
        self.env: Env = memory_env(fs, node_id)
        self.database = database
        self.metadata: MemoryMetadata
        self.catalog: Catalog
        self.log: Log

    async def start(self, **values: Any) -> Log:
        self.metadata = MemoryMetadata(self.database)
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(self.node_id, {}, None)
        self.storage = self.metadata.storage(self.env.clock.now_ms, self.node_id)
        config = settings(
            **{"journal_bytes": 1 << 20, "cut_interval_ms": NEVER_MS, "hot_bytes": 0, **values}
        )
        self.log = await Log.open(
            self.env, f"/data/brokers/{self.node_id}", config, self.catalog, self.storage,
            self.metadata, self.node_id,
        )  # fmt: skip
        return self.log

    async def kill(self) -> None:
        """End the process without a clean close."""
        self.metadata.crash()
        self.log.commit_log.disk_sink.stop()
        for task in list(self.env.tasks):
            task.cancel()
        await self.env.sleep(0)
        self.log._lock.release()

    async def find(self, number: int) -> Partition:
        """Return a partition that it leads."""
        await self.log.loader.load([number])
        return self.log.loader.get(number)


class Pair:
    """Brokers 1 and 2, and others that join. Broker 1 leads new topics. `apart`: broker 2 has a
    disk of its own."""

    def __init__(self, *, apart: bool = False) -> None:
        self.fs = MemFileSystem(random.Random(0))
        self.database = MemoryDatabase()
        self.first = Member(1, self.fs, self.database)
        second_fs = MemFileSystem(random.Random(0)) if apart else self.fs
        self.second = Member(2, second_fs, self.database)
        self.members = {1: self.first, 2: self.second}

    async def start(self, **values: Any) -> None:
        for member in self.members.values():
            await member.start(**values)
        self._register()

    async def join(self, node_id: int) -> Member:
        """Start one more broker."""
        member = self.members[node_id] = Member(node_id, self.fs, self.database)
        await member.start()
        self._register()
        return member

    def _register(self) -> None:
        """Have all know of all."""
        for member in self.members.values():
            for other in self.members.values():
                if other.node_id not in member.catalog.brokers:
                    member.catalog.update_broker(other.catalog.brokers[other.node_id], 0.0)

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[Partition]:
        """Create a topic that broker 1 leads."""
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, [1] * partitions, texts)
        (info,) = await self.first.metadata.create_topics([new])
        for member in self.members.values():
            member.catalog.add_topic(info)
            member.log.add_topics([info])
        await self.first.log.commit_log.wait_until_committed()
        return [self.first.log.loader.get(row.number) for row in info.partitions]

    def change(self, numbers: Sequence[int], leader: int) -> None:
        """Change the leader in the database and in both catalogs."""
        assert self.database.catalog is not None
        catalogs = [member.catalog for member in self.members.values()]
        for catalog in (self.database.catalog, *catalogs):
            move(catalog, numbers, leader)

    def configure(self, node_id: int, name: str, value: str | None) -> None:
        """Change a setting of a broker in the database and in all catalogs."""
        change = ConfigChange(BROKER_RESOURCE, str(node_id), name, value)
        assert self.database.catalog is not None
        for catalog in (self.database.catalog, *(each.catalog for each in self.members.values())):
            catalog.apply_config(change)

    async def move(self, numbers: Sequence[int], leader: int) -> list[Partition]:
        """Have another broker lead partitions; nothing is cut first."""
        gains = await self.hand_over(numbers, leader)
        return [await gains.find(number) for number in numbers]

    async def hand_over(self, numbers: Sequence[int], leader: int) -> Member:
        """As `move`, without a use of the partitions: the new leader does not load them."""
        place = self.first.catalog.locate(numbers[0])
        assert place is not None
        before = self.members[place.leader]
        self.change(numbers, leader)
        gains = self.members[leader]
        await before.log.resign(numbers)
        await gains.log.lead(numbers)
        return gains
