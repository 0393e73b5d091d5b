"""Helpers for tests of the log: settings in a line, batches, a Log on a disk in memory."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.batches import Record, build, iter_batches, records
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Buffer, Env
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from kafkawire.metadata.catalog import NewTopic
from tests.kit.env import InlineOffload, OffloadWorker, memory_env
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata

FOLDER = "/data/brokers/1"
NEVER_MS = 3_600_000
"""Longer than a test takes. With the usual second, a test that cuts by itself and takes longer than
that on a busy machine would find journals cut already."""


def settings(**values: Any) -> BrokerConfig:
    """Broker settings by attribute, beyond the bounds of the table: tests want tiny journals."""
    config = BrokerConfig()
    for name, value in values.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    return config


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **more: Any) -> memoryview:
    """One batch, as a view of a receive buffer."""
    return memoryview(build([(None, value) for value in values], timestamp_ms=timestamp_ms, **more))


def values(buffers: list[Buffer]) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record."""
    found: list[tuple[int, bytes | None]] = []
    for buffer in buffers:
        for position, _ in iter_batches(buffer):
            for record in records(buffer, position):
                assert isinstance(record, Record)
                found.append(
                    (record.offset, bytes(record.value) if record.value is not None else None)
                )
    return found


class World:
    """The state that outlives a process: disk and database. `start` starts a process."""

    def __init__(self, env: Env | None = None, **values: Any) -> None:
        self.env = env or memory_env()
        self.config = settings(**{"journal_bytes": 1 << 20, "cut_interval_ms": NEVER_MS, **values})
        self.folder = FOLDER
        self.database = MemoryDatabase()
        self.metadata = MemoryMetadata(self.database)

    @property
    def fs(self) -> MemFileSystem:
        assert isinstance(self.env.fs, MemFileSystem)
        return self.env.fs

    async def start(self, *, load: bool = True) -> Log:
        """Open everything, like Broker.start; `load`: with all partitions in memory."""
        if isinstance(self.env.worker, OffloadWorker):
            self.env.worker.reopen()
        self.metadata = MemoryMetadata(self.database)
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(1, {}, None)
        self.storage = self.metadata.storage(self.env.clock.now_ms)
        self.log = await Log.open(
            self.env, self.folder, self.config, self.catalog, self.storage, self.metadata, 1
        )
        numbers = [p.number for t in self.catalog.by_id.values() for p in t.partitions]
        if load:
            await self.log.loader.load(numbers)
        return self.log

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[Partition]:
        """Create a topic, like the topic service."""
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        (info,) = await self.metadata.create_topics([NewTopic(name, [1] * partitions, texts)])
        self.catalog.add_topic(info)
        self.log.add_topics([info])
        await self.log.commit_log.wait_until_committed()
        return [self.log.loader.get(partition.number) for partition in info.partitions]

    def find(self, name: str, index: int = 0) -> Partition:
        """A partition of the running process."""
        return self.log.loader.get(self.catalog.by_name[name].partitions[index].number)

    async def crash(self, power: bool = True) -> Log:
        """End the process without a clean close, by a power failure or a kill, and start
        another."""
        await self.abandon()
        if power:
            self.fs.crash()
        else:
            self.fs.kill()
        return await self.start()

    async def abandon(self) -> None:
        """Stop the tasks of the process that is about to end."""
        self.metadata.crash()
        self.log.commit_log.disk_sink.stop()
        for task in list(self.env.tasks):
            task.cancel()
        await self.env.sleep(0)

    async def restart(self) -> Log:
        """End cleanly and start again."""
        await self.log.close()
        return await self.start()


async def read_all(
    partition: Partition, start: int | None = None
) -> list[tuple[int, bytes | None]]:
    """Every record below the high watermark, as a consumer would get them."""
    found: list[tuple[int, bytes | None]] = []
    offset = partition.log_start if start is None else start
    while offset < partition.high_watermark:
        plan = partition.plan(offset, 1 << 20, partition.high_watermark, True)
        if isinstance(plan, HotRead):
            views, release = partition.log.views(plan)
            got = values(list(views))
            release()
        else:
            got = values(await partition.log.read(plan))
        assert got, f"nothing at {offset}, before {partition.high_watermark}"
        found += [pair for pair in got if pair[0] >= offset]
        offset = found[-1][0] + 1
    return found


def offload(world: World) -> InlineOffload:
    assert isinstance(world.env.offload, InlineOffload)
    return world.env.offload
