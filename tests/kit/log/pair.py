"""Two logs in one data folder and one database, between which partitions are moved by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kafkawire.log.io.ports import Env
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import Catalog, NewTopic
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
        self.log.commit_log.commits.stop()
        for task in list(self.env.tasks):
            task.cancel()
        await self.env.sleep(0)
        self.log._lock.release()

    async def find(self, number: int) -> Partition:
        """Return a partition that it leads."""
        await self.log.loader.load([number])
        return self.log.loader.get(number)


class Pair:
    """Brokers 1 and 2. Broker 1 leads new topics."""

    def __init__(self) -> None:
        self.fs = MemFileSystem(random.Random(0))
        self.database = MemoryDatabase()
        self.first = Member(1, self.fs, self.database)
        self.second = Member(2, self.fs, self.database)

    async def start(self, **values: Any) -> None:
        await self.first.start(**values)
        await self.second.start(**values)

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[Partition]:
        """Create a topic that broker 1 leads."""
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, [1] * partitions, texts)
        (info,) = await self.first.metadata.create_topics([new])
        for member in (self.first, self.second):
            member.catalog.add_topic(info)
            member.log.add_topics([info])
        await self.first.log.commit_log.committed()
        return [self.first.log.loader.get(row.number) for row in info.partitions]

    def change(self, numbers: Sequence[int], leader: int) -> None:
        """Change the leader in the database and in both catalogs."""
        assert self.database.catalog is not None
        for catalog in (self.database.catalog, self.first.catalog, self.second.catalog):
            move(catalog, numbers, leader)

    async def move(self, numbers: Sequence[int], leader: int) -> list[Partition]:
        """Have another broker lead partitions; nothing is cut first."""
        self.change(numbers, leader)
        gains, resigns = (self.first, self.second) if leader == 1 else (self.second, self.first)
        await resigns.log.resign(numbers)
        await gains.log.lead(numbers)
        return [await gains.find(number) for number in numbers]
