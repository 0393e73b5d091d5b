"""One life of a simulated log: clients, maintenance and failures at once, then an end of some
kind."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.fsck.check import check as fsck
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.run_file import read_run
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import Catalog, NewTopic
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED, Swap
from kafkawire.offsets.storage.memory import MemoryStorage
from tests.kit.env import EPOCH_MS, sim_env
from tests.kit.log.logs import FOLDER, batch, read_all
from tests.kit.log.model import Model, Producer
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.simloop import SimLoop

QUIET_ROUNDS = 10
LIVES = 3
SEGMENT_METHODS = ("start_segments", "finish_segments", "remove_mappings", "drop_segments")
PARTITIONS = 3


class Life:
    """One process."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rng = model.rng
        self.loop = SimLoop()
        self.env = sim_env(self.loop, self.rng, model.fs)
        self.metadata = MemoryMetadata(model.database, self.sql_pause, self.sql_fault)
        self.sql_fails = False
        self.slow_until = 0.0
        model.fs.pause = self.pause
        self.over = False
        self.closing = False

    def pause(self, what: str) -> None:
        """Delay a write, sometimes long enough to involve the writer thread."""
        if self.over:
            return
        slow = self.loop.now < self.slow_until
        self.loop.now += self.rng.random() * (0.03 if slow else 0.0002)

    async def sql_pause(self) -> None:
        """Delay a transaction before it commits, and before the caller learns of it."""
        await self.env.sleep(self.rng.random() * 0.002)

    def sql_fault(self, method: str) -> Exception | None:
        """Fail some SQL calls about segments."""
        if self.sql_fails and method in SEGMENT_METHODS and self.rng.random() < 0.3:
            return MetadataError("the database is locked")
        return None

    async def start(self) -> None:
        """Open everything, like Broker.start."""
        catalog = await self.metadata.open()
        await self.metadata.register_broker(1, {}, None)
        storage = self.metadata.storage(self.env.clock.now_ms)
        finish = storage.finish_segments

        async def finish_and_lose_the_answer(swap: Swap) -> None:
            await finish(swap)
            if self.sql_fails and self.rng.random() < 0.3:
                raise MetadataError("the connection was lost")

        storage.finish_segments = finish_and_lose_the_answer  # type: ignore[method-assign]
        if catalog.by_name:
            await self.inspect(catalog, storage)
        await self.open_log(catalog, storage)

    async def inspect(self, catalog: Catalog, storage: MemoryStorage) -> None:
        """Check that nothing is wrong, whatever the end was."""
        report = await fsck(self.env, FOLDER, 1, catalog, storage, self.metadata)
        assert report.clean, [p for p in report.problems if not p.harmless]

    async def open_log(
        self, catalog: Catalog, storage: MemoryStorage, configs: dict[str, str] | None = None
    ) -> None:
        """The log with its only topic, which the first life creates."""
        log = await Log.open(
            self.env, FOLDER, self.model.config, catalog, storage, self.metadata, 1
        )
        if not catalog.by_name:
            new = NewTopic("t", [1] * PARTITIONS, configs or {})
            (info,) = await self.metadata.create_topics([new])
            catalog.add_topic(info)
            log.add_topics([info])
        self.log = log
        rows = catalog.by_name["t"].partitions
        await log.loader.load(row.number for row in rows if row.number < log.loader.fresh_from)
        self.partitions = [log.loader.get(row.number) for row in rows]

    async def main(self) -> None:
        await self.start()
        await self.check()
        model = self.model
        tasks = [self.env.spawn(self.plain_writer(), f"writer {n}") for n in range(3)]
        tasks += [self.env.spawn(self.idempotent_writer(p), "producer") for p in model.producers]
        tasks += [
            self.env.spawn(work(), "work")
            for work in (self.reader, self.deleter, self.trouble, self.forgetter)
        ]
        end = self.env.spawn(self.env.sleep(self.rng.random()), "end of life")
        await asyncio.wait([end, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        await self.end(tasks)

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        """A power failure, a killed process, or a clean end."""
        model = self.model
        how = self.rng.choice(("power", "kill", "close"))
        if model.os_mode and how == "power":
            self.forget_unsynced()
        if how == "close" and self.rng.random() < 0.8:
            await self.close_under_load()
        self.over = True
        for task in tasks:
            task.cancel()
        model.epochs = {p.number: p.leader_epoch for p in self.partitions}
        model.trace.append((how, self.loop.now, self.log.commit_log.written, self.rng.random()))
        if how == "close":
            model.fs.faults.room_bytes = None
            await self.log.close()
            model.fs.kill()
            return
        die(how, self.env, self.log, self.metadata, model.fs)

    async def close_under_load(self) -> None:
        """Close while clients continue; what they are answered meanwhile counts. The end is clean
        unless a write or fsync failed before."""
        commit_log = self.log.commit_log
        self.model.fs.faults.__init__()  # type: ignore[misc]
        self.sql_fails = False
        self.closing = True
        intact = commit_log.failed is None
        await self.log.close()
        assert commit_log.broken is not intact, commit_log.failed
        run = read_run(self.model.fs, FOLDER)
        assert run is not None
        assert (run.end == commit_log.written) is intact, "the end is not clean"

    def forget_unsynced(self) -> None:
        """Under flush=os a power failure may lose what was acknowledged since the last sync."""
        committed = self.log.commit_log.disk_sink.committed
        for partition in self.partitions:
            rows = partition.rows
            row = rows.row_at(committed)
            safe = rows.base[row] if row < len(rows) else partition.next_offset
            for number, offset in list(self.model.promised):
                if number == partition.number and offset >= safe:
                    value = self.model.promised.pop((number, offset))
                    self.model.exactly_once.pop(value, None)
        self.model.producers = [
            Producer(self.model, self.rng.randrange(1 << 40)) for _ in self.model.producers
        ]

    async def check(self) -> None:
        """Check that every guarantee given so far holds."""
        model = self.model
        for partition in self.partitions:
            assert partition.log_start >= model.log_starts.get(partition.number, 0)
            rows = list(partition.segments.mappings(partition.number))
            assert all(a.end_offset == b.base_offset for a, b in pairwise(rows))
            got = await read_all(partition)
            found = dict(got)
            assert len(found) == len(got), "an offset is stored twice"
            assert set(found.values()) <= model.sent, "a record is there that no producer sent"
            assert len(set(found.values())) == len(found), "a record is stored twice"
            for (number, offset), value in model.promised.items():
                if number == partition.number and offset >= partition.log_start:
                    assert found.get(offset) == value, f"{partition.index} lost offset {offset}"
            for value, offset in model.exactly_once.items():
                if offset >= partition.log_start and value in found.values():
                    assert found[offset] == value
            for offset, stored in found.items():
                assert stored is not None
                model.record_stored(partition, offset, stored)

    async def plain_writer(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * self.model.write_pause_s)
            for _ in range(self.rng.randrange(1, 5)):
                self.append(self.rng.choice(self.partitions))

    def append(self, partition: Partition) -> None:
        commit_log = self.log.commit_log
        if commit_log.full or partition.removed:
            return
        sent = [self.model.fresh_value() for _ in range(self.rng.randrange(1, 4))]
        try:
            done = partition.append(batch(*sent, timestamp_ms=EPOCH_MS), self.env.clock.now_ms())
        except KafkaError as failure:
            if failure.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:  # the broker is shutting down
                assert commit_log.failed is not None
            return

        def acknowledged(failure: BaseException | None) -> None:
            if failure is None and not self.over:
                for at, value in enumerate(sent):
                    self.model.record_stored(partition, done[0] + at, value)

        if self.model.os_mode:
            commit_log.after_write(acknowledged)
        elif self.rng.random() < 0.5:
            commit_log.after_commit(acknowledged)

    async def idempotent_writer(self, producer: Producer) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 0.02)
            partition = self.partitions[producer.id % PARTITIONS]
            if partition.removed:
                continue
            view = producer.batch()
            try:
                done = partition.append(view, self.env.clock.now_ms())
                if self.rng.random() < 0.2:  # the client timed out and sends it again
                    again = partition.append(producer.batch(), self.env.clock.now_ms())
                    assert again[0] == done[0]
                await self.log.commit_log.wait_until_committed()
            except KafkaError as failure:
                expect(failure, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            if self.over:
                return
            for at, value in enumerate(producer.answered()):
                self.model.record_stored(partition, done[0] + at, value)
                self.model.exactly_once[value] = done[0] + at

    async def reader(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 0.1)
            partition = self.rng.choice(self.partitions)
            start = self.rng.randrange(partition.log_start, partition.high_watermark + 1)
            if self.rng.random() < 0.5:
                self.log.commit_log.want_commit()
            try:
                got = await read_all(partition, start)
            except KafkaError as failure:
                expect(failure, ErrorCode.OFFSET_OUT_OF_RANGE)
                assert partition.log_start > start
                continue
            if not self.over:
                for offset, value in got:
                    assert value is not None
                    self.model.record_stored(partition, offset, value)

    async def deleter(self) -> None:
        while True:
            await self.env.sleep(self.rng.random())
            partition = self.rng.choice(self.partitions)
            target = self.rng.randrange(partition.log_start, partition.high_watermark + 1)
            try:
                start = await partition.delete_records(target)
            except KafkaError as failure:
                if not partition.removed:
                    expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            assert start >= target
            if not self.over:
                self.model.log_starts[partition.number] = start

    async def forgetter(self) -> None:
        """Unload idle partitions, which must be the same when loaded again."""
        while True:
            await self.env.sleep(self.rng.random() * 0.2)
            known = {p.number: (p.log_start, p.next_offset) for p in self.partitions}
            self.model.forgotten += await self.log.unloader.run(0)
            for at, partition in enumerate(self.partitions):
                if partition.removed:
                    await self.log.loader.load([partition.number])
                    again = self.partitions[at] = self.log.loader.get(partition.number)
                    assert again is not partition
                    assert again.log_start >= known[again.number][0]
                    assert again.next_offset >= known[again.number][1]

    async def trouble(self) -> None:
        faults = self.model.fs.faults
        while True:
            await self.env.sleep(self.rng.random() * 0.5)
            if self.closing:
                return  # a fault from now on would make the end unclean
            self.sql_fails = self.rng.random() < 0.2
            match self.rng.randrange(5):
                case 0:
                    faults.room_bytes = self.rng.randrange(3000)
                    await self.env.sleep(self.rng.random() * 0.05)
                    faults.room_bytes = None
                case 1:
                    faults.short_writes = self.rng.randrange(1, 3)
                case 2:
                    self.slow_until = self.loop.now + self.rng.random() * 0.3
                case 3 if self.rng.random() < 0.2:
                    faults.failing_syncs = 1
                case _:
                    pass


class LastLife(Life):
    """A life without writers, in which all outstanding work gets its time."""

    async def main(self) -> None:
        self.sql_fails = False
        await self.start()
        await self.check()
        segments = self.log.segments
        for _ in range(QUIET_ROUNDS):
            await self.env.sleep(0.2)
            await segments.tend()
        living = await segments.storage.segments(1, (LIVE,), 1000)
        assert not await segments.storage.segments(1, (STARTED, DELETING), 1000)
        names = self.model.fs.listdir(segments.folder)
        assert names == sorted(f"{row.uuid.hex()}.segment" for row in living)
        stored = await segments.storage.load_partitions([p.number for p in self.partitions])
        for partition, row in zip(self.partitions, stored, strict=True):
            shown = [m._replace(due_ms=0) for m in partition.segments.mappings(partition.number)]
            assert shown == [mapping._replace(due_ms=0) for mapping in row.mappings]
        await self.check()
        self.model.trace.append([row.id for row in living])
        self.over = True
        await self.log.close()


def die(how: str, env: Env, log: Log, metadata: MemoryMetadata, fs: MemFileSystem) -> None:
    """End without a clean close: "power" loses what was not synced, "kill" ends the process
    only."""
    metadata.crash()
    env.offload.close()
    log.commit_log.disk_sink.stop()
    if how == "power":
        fs.crash()
    else:
        fs.kill()


def expect(failure: KafkaError, *codes: ErrorCode) -> None:
    """The errors that may happen here."""
    if failure.code not in codes:
        raise failure
