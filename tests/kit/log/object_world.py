"""A Log whose topics of durability=s3 are stored in a fake bucket, through several lives."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.batches import build
from kafkawire.log.manager import Log
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.objects.port import LogObjectStore
from kafkawire.log.partition.partition import Partition
from kafkawire.offsets.catalog import object_logs
from kafkawire.offsets.catalog.object_logs import ObjectLog
from tests.kit.env import EPOCH_MS, OffloadWorker, memory_env
from tests.kit.log.logs import World, batch
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.fake_store import FakeStore

NODE = 1


class OneStore:
    """The LogObjectStores of a broker with one tier. `unusable`: what a check returns."""

    url = "s3://bucket/nodes/1"

    def __init__(self, store: LogObjectStore) -> None:
        self._store = store
        self.unusable = ""

    def at(self, url: str) -> LogObjectStore:
        assert url == self.url
        return self._store

    async def check(self) -> str:
        return self.unusable

    async def close(self) -> None: ...


class ObjectWorld(World):
    """A World with a bucket. `reasons`: why lives were superseded, in order."""

    logs: ObjectLogs
    store: FakeStore
    epoch: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**{"log_object_linger_ms": 0, **values})
        self.bucket = FakeBucket(faults=StoreFaults(timeout_s=0.001))
        self.reasons: list[str] = []

    async def start(self, *, load: bool = True, fresh: bool = False) -> Log:
        """Open everything, like Broker.start; `fresh`: with an empty folder."""
        if isinstance(self.env.worker, OffloadWorker):
            self.env.worker.reopen()
        self.metadata = MemoryMetadata(self.database)
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(NODE, {}, None)
        self.epoch = self.catalog.brokers[NODE].epoch
        self.storage = self.metadata.storage(self.env.clock.now_ms)
        self.store = FakeStore(self.bucket, self.env.fs)
        stores = OneStore(self.store)
        self.logs = ObjectLogs(self.env, stores, self.metadata, self.storage, NODE, self.epoch)
        self.logs.when_superseded(self.reasons.append)
        self.log = await Log.open(
            self.env, self.folder, self.config, self.catalog, self.storage, self.metadata, NODE,
            object_logs=self.logs, fresh=fresh,
        )  # fmt: skip
        if load:
            numbers = [p.number for t in self.catalog.by_id.values() for p in t.partitions]
            await self.log.loader.load(numbers)
        return self.log

    async def abandon(self) -> None:
        self.store.crash()
        await super().abandon()

    async def lose_folder(self) -> Log:
        """End the process, and start another one with an empty disk."""
        await self.abandon()
        self.env = memory_env()
        return await self.start(fresh=True)

    async def rows(self) -> list[ObjectLog]:
        """The logs that SQL has."""
        return await self.metadata.transact(lambda session: object_logs.load(session, NODE))

    @property
    def objects(self) -> list[str]:
        """The keys of log objects in the bucket, without the folder."""
        return [key.removeprefix("log/") for key in self.bucket.objects]


async def put(partition: Partition, *values: bytes) -> int:
    """Append one batch; return its base offset once it is committed."""
    done = partition.append(batch(*values), EPOCH_MS)
    await partition.log.wait_until_committed()
    return done.base_offset


def sequenced(value: bytes, sequence: int, producer_id: int = 7) -> memoryview:
    """A batch of one record of an idempotent producer."""
    return memoryview(
        build(
            [(None, value)], timestamp_ms=EPOCH_MS, producer_id=producer_id, producer_epoch=0,
            base_sequence=sequence,
        )
    )  # fmt: skip
