"""A tiered broker in a simulated world: disk, SQL and bucket that outlive its processes.

`TierWorld` is the world, `TierProcess` one life of a broker in it, put together like
kafkawire.broker.broker. A life ends by `close`, or at any step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.contents import Manifest
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic, TopicInfo
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.storage.memory import MemoryStorage
from kafkawire.tiering.service import Tiering
from tests.kit.env import EPOCH_MS, OffloadWorker, SimClock, SimOffload
from tests.kit.log.logs import FOLDER, settings
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.simloop import SimLoop
from tests.kit.tier.crash_points import Died, PointFileSystem, Points, kind_of
from tests.kit.tier.fake_bucket import FakeBucket, Held
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.model import Expected, Promises, Row, batch_of, end_of, rows_in

T = TypeVar("T")

CLUSTER_NODE = 1
SWITCHES = {"remote_storage_enable", "remote_log_copy_disable"}
MEMORY_BYTES = 4 << 20
BURIED_WITHIN = 20
"""Cancellations of what a dead process has left: each may end in a `finally` that waits again."""


class PointStorage(MemoryStorage):
    """The offsets' rows of a process that may die: each transaction has a point before and after
    it. Any transaction may fail, done or not."""

    process: TierProcess

    async def _write(self, method: str, work: Callable[[Writes], T]) -> T:
        if method == "save_checkpoint":
            return await super()._write(method, work)
        process = self.process
        process.points.hit(f"before sql {method}")
        process.may_fail("the database is locked")
        result = await super()._write(method, work)
        process.scan(process.committed, method)
        process.points.hit(f"after sql {method}")
        process.may_fail("the connection was lost")
        return result


class TierWorld:
    """The state that outlives processes. `now_s` is the time at which the last one ended;
    `log_values` are settings by attribute in addition to those here, which make everything small
    and quick. `manifest` is the one of the bucket when it was last read, `manifest_reads` the
    objects read for it."""

    def __init__(self, seed: int, **values: Any) -> None:
        self.rng = random.Random(seed)
        self.fs = MemFileSystem(self.rng)
        self.database = MemoryDatabase(seed)
        self.bucket = FakeBucket(self.rng, now_ms=self._bucket_ms)
        self.promises = Promises(self.rng)
        self.now_s = 0.0
        self.clock_ms = self.clock_most_ms = 0
        self.config = self._settings(values)
        self.process: TierProcess | None = None
        self.manifest_reads: dict[str, Held | None] = {}
        self.manifest: Manifest | None = None

    def _bucket_ms(self) -> int:
        return EPOCH_MS + int(self.now_s * 1000) + self.clock_ms

    @staticmethod
    def _settings(values: dict[str, Any]) -> BrokerConfig:
        quick = {
            "journal_bytes": 1 << 15,
            "journal_entries": 200,
            "hot_bytes": 0,
            "recycle_bytes": 0,
            "cut_interval_ms": 500,
            "journal_roll_ms": 2000,
            "file_delete_delay_ms": 100,
            "log_retention_check_interval_ms": 1000,
            "log_flush_offset_checkpoint_interval_ms": 5000,
            "segment_dead_max_ms": 3000,
            "log_cleaner_backoff_ms": 1000,
            "log_cleaner_dedupe_buffer_size": 1 << 16,
            "tier_url": "s3://bucket/prefix",
            "tier_delete_delay_ms": 2000,
            "tier_manifest_fold": 6,
            "tier_retry_max_ms": 4000,
            "tier_cache_bytes": MEMORY_BYTES,
        }
        config = settings(**{**quick, **values})
        config.texts["tier.url"] = config.tier_url
        return config

    def expected(self, number: int, info: TopicInfo | None = None) -> Expected:
        """The guarantees of a partition, created at the first call."""
        known = self.promises.partitions
        if number not in known:
            topics = [info] if info is not None else self.topics().values()
            (found,) = (t for t in topics if any(row.number == number for row in t.partitions))
            index = next(row.index for row in found.partitions if row.number == number)
            config = TopicConfig(found.configs, self.config.texts)
            known[number] = Expected(
                number,
                found.name,
                index,
                config.cleanup_compact,
                config.cleanup_delete and (config.retention_ms > 0 or config.retention_bytes > 0),
                not config.copies,
            )
        return known[number]

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock forwards or backwards."""
        self.clock_ms += by_ms
        self.clock_most_ms = max(self.clock_most_ms, self.clock_ms)

    def peek(self, call: Callable[[MemoryStorage], Any]) -> Any:
        """Read what SQL holds now, without a process: the result of a call of its storage."""
        coro = call(MemoryStorage(self.database.offsets, CLUSTER_NODE, lambda: 0))
        try:
            coro.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("the storage in memory does not wait")

    def topics(self) -> Mapping[str, TopicInfo]:
        """The topics that SQL holds now."""
        catalog = self.database.catalog
        return {} if catalog is None else catalog.by_name


class JumpClock(SimClock):
    """The loop's time plus the offset to which the wall clock has been set."""

    def __init__(self, loop: SimLoop, world: TierWorld) -> None:
        super().__init__(loop)
        self._world = world

    def now_ms(self) -> int:
        return super().now_ms() + self._world.clock_ms


class TierProcess:
    """One life. `points` say where it ends, if it does not end by itself; `loop`: one that outlives
    it; `kind_of`: the paths whose changes are points."""

    log: Log
    tiering: Tiering

    def __init__(
        self,
        world: TierWorld,
        points: Points | None = None,
        *,
        loop: SimLoop | None = None,
        kind_of: Callable[[str], str] = kind_of,
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.points = points or Points()
        self.loop = loop or SimLoop()
        self.loop.now = max(self.loop.now, world.now_s)
        self.over = False
        self.sql_fails = 0.0
        self.violation: Exception | None = None
        self.failures: list[BaseException] = []
        self.metadata = MemoryMetadata(world.database, self.sql_pause)
        fs: Any = PointFileSystem(world.fs, self.points, kind_of)
        offload = SimOffload(self.loop, self.rng)
        clock = JumpClock(self.loop, world)
        self.env = Env(clock, self.rng, fs, offload, {}, OffloadWorker(offload, fs))
        self.store = FakeStore(world.bucket, fs, MEMORY_BYTES)
        world.bucket.hook = self._on_request
        world.process = self

    def _on_request(self, moment: str, kind: str, key: str) -> None:
        self.world.now_s = self.loop.now
        if moment == "done":
            self.scan(self.requested, kind, key)
        if not self.store.closed:
            self.points.hit(f"{moment} {kind} {key.split('/')[0].split('-')[0]}")

    def scan(self, check: Callable[..., None], *args: str) -> None:
        """Check something from within a step, whose code must not catch a failure: `run` raises the
        first one in the end."""
        if self.violation is None and not self.over:
            try:
                check(*args)
            except Exception as failure:
                self.violation = failure

    def requested(self, kind: str, key: str) -> None:
        """Called when a request has changed or read the bucket."""

    def committed(self, method: str) -> None:
        """Called when a transaction of the offset storage has changed rows."""

    async def sql_pause(self) -> None:
        """Delay a transaction before it commits, and before the caller learns of it."""
        await self.env.sleep(self.rng.random() * 0.004)

    def may_fail(self, text: str) -> None:
        """Fail a transaction at the rate `sql_fails`."""
        if self.sql_fails and self.rng.random() < self.sql_fails:
            raise MetadataError(text)

    async def start(self) -> None:
        """Open everything, like Broker.start."""
        await self.open_metadata()
        await self.open_log()

    async def open_metadata(self) -> None:
        """Open catalog and storage."""
        world, metadata = self.world, self.metadata
        self.catalog = await metadata.open()
        await metadata.register_broker(CLUSTER_NODE, {}, None)
        now_ms = self.env.clock.now_ms
        self.storage = PointStorage(
            world.database.offsets,
            CLUSTER_NODE,
            now_ms,
            world.database.leader_of,
            pause=self.sql_pause,
        )
        self.storage.process = self
        metadata._storages.append(self.storage)

    async def open_log(self) -> None:
        """Open the log and the tier."""
        world = self.world
        self.log = await Log.open(
            self.env, FOLDER, world.config, self.catalog, self.storage, self.metadata, CLUSTER_NODE
        )
        self.tiering = Tiering(
            self.env,
            world.config,
            self.log,
            self.storage,
            self.catalog,
            self.store,
            CLUSTER_NODE,
            self.catalog.cluster_id,
        )
        await self.tiering.start()

    def run(self, main: Callable[[], Any], how: str = "kill") -> None:
        """Run until `main` ends, or until a point is fatal; then `how`: "kill" or "power"."""
        asyncio.set_event_loop(None)
        try:
            self.loop.run_until_complete(main())
        except Died:
            self.die(how)
        finally:
            self.world.now_s = self.loop.now
            self.failures += self.loop.failures
            self._bury()
        failures = [each for each in self.failures if not isinstance(each, Died)]
        if self.violation is not None:
            raise self.violation
        if failures:
            raise failures[0]

    def _bury(self) -> None:
        """Cancel the remaining tasks, including those that wait for what a dead process cannot
        do."""
        for _ in range(BURIED_WITHIN):
            left = self.loop.tasks()
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=0.01))
        self.loop.close()

    def die(self, how: str) -> None:
        """End the process: no later step of it has an effect."""
        self.over = self.points.dead = self.points.buried = True
        self.store.crash()
        self.metadata.crash()
        self.env.offload.close()
        if hasattr(self, "log"):
            self.log.commit_log.disk_sink.stop()
        if how == "power":
            self.world.fs.crash()
        else:
            self.world.fs.kill()

    async def close(self) -> None:
        """End cleanly."""
        self.world.fs.faults.room_bytes = None
        self.over = True
        await self.tiering.close()
        await self.log.close()
        await self.tiering.close()
        self.world.fs.kill()

    async def create(
        self, name: str, partitions: int = 1, *, internal: bool = False, **configs: str
    ) -> list[Partition]:
        """Create a topic, like the topic service; settings with _ for dots."""
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        (info,) = await self.metadata.create_topics(
            [NewTopic(name, [1] * partitions, texts, internal)]
        )
        self.catalog.add_topic(info)
        for row in info.partitions:
            self.world.expected(row.number, info)
        self.log.add_topics([info])
        await self.log.commit_log.wait_until_committed()
        return [await self.partition(row.number) for row in info.partitions]

    async def alter(self, name: str, **configs: str | None) -> None:
        """Change a topic's settings, like the config service."""
        changes = [
            ConfigChange(TOPIC_RESOURCE, name, key.replace("_", "."), value)
            for key, value in configs.items()
        ]
        info = self.catalog.by_name[name]
        for row in info.partitions:
            expected = self.world.expected(row.number)
            if configs.keys() & SWITCHES:
                expected.switched = expected.shrinks = True
        await self.metadata.alter_configs(changes)
        for change in changes:
            self.catalog.apply_config(change)
        self.log.alter_topic(self.catalog.by_name[name])
        await self.log.commit_log.wait_until_committed()

    async def delete(self, name: str) -> None:
        """Delete a topic, like the topic service."""
        info = self.catalog.by_name[name]
        for row in info.partitions:
            # From the first step on the topic may be deleted; SQL decides.
            self.world.promises.deleted.add(row.number)
        await self.metadata.delete_topics([info.id])
        self.catalog.remove_topic(info.id)
        self.log.remove_topic(info)
        await self.log.commit_log.wait_until_committed()

    async def partition(self, number: int) -> Partition:
        """A partition, loaded."""
        if number not in self.log.partitions and number < self.log.loader.fresh_from:
            await self.log.loader.load([number])
        return self.log.loader.get(number)

    async def partitions(self) -> list[Partition]:
        """Those of all topics, loaded."""
        numbers = [row.number for info in self.catalog.by_id.values() for row in info.partitions]
        return [await self.partition(number) for number in numbers]

    def append(self, partition: Partition, count: int, codec: int = 0) -> None:
        """Produce records; they are guaranteed once they are acknowledged."""
        self.send(partition, [self.world.promises.fresh() for _ in range(count)], codec)

    def send(self, partition: Partition, rows: list[Row], codec: int = 0) -> None:
        """Produce these records. KafkaError if they are refused."""
        if self.log.commit_log.full:
            return
        expected = self.world.expected(partition.number)
        tombstones = {key for key, value in rows if value is None} - expected.doubtful
        expected.doubtful |= tombstones
        now_ms = self.env.clock.now_ms()
        done = partition.append(batch_of(rows, now_ms, codec), now_ms)

        def acknowledged(failure: BaseException | None) -> None:
            if failure is None and not self.over:
                expected.ack(done[0], rows)
                expected.doubtful -= tombstones

        self.log.commit_log.after_commit(acknowledged)


async def read_partition(
    partition: Partition, start: int, max_bytes: int = 3000, upto: int = 1 << 62
) -> list[tuple[int, Row]]:
    """Every record from an offset on, as a consumer reads batch by batch; `upto`: where it may
    stop. KafkaError."""
    found: list[tuple[int, Row]] = []
    offset = start
    while offset < min(partition.high_watermark, upto):
        plan = partition.plan(offset, max_bytes, partition.high_watermark, True)
        buffers = [bytes(buffer) for buffer in await partition.log.read(plan)]
        found += rows_in(buffers, offset)
        assert end_of(buffers) > offset, f"nothing at {offset} of {partition.topic}"
        offset = end_of(buffers)
    return found
