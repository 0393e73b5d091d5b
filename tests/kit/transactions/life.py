"""One life of a broker's transaction service over a real log, with producers that outlive it.

The log is kafkawire's own, on a disk that forgets and fails; data partitions are models, durable at
once. Ends are power cuts, kills, or an orderly close; each life begins at the same wall clock time,
so that clocks jump back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.manager import Log
from kafkawire.metadata.catalog import NewTopic, TopicInfo
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.records import TransactionRecord, decode_record
from kafkawire.transactions.machine.request import AddPartitions, Answer, Request, VerifyPartitions
from kafkawire.transactions.machine.transaction import AT_REST, TopicPartition
from kafkawire.transactions.marker_sender import Leader, Results
from kafkawire.transactions.service import STATE_TOPIC, TransactionService
from tests.kit.env import sim_env
from tests.kit.log.life import die
from tests.kit.log.logs import FOLDER, settings
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.simloop import SimLoop
from tests.kit.transactions.checker import Violation, check_log, check_outcomes
from tests.kit.transactions.desk import TransactionSettings
from tests.kit.transactions.partitions import Key, PartitionModel
from tests.kit.transactions.producers import History, Producer
from tests.kit.transactions.world import Reply

IDS = ("a", "b", "c")
INSTANCES = 10
SETTLED_S = 60.0


class LifeSettings(TransactionSettings):
    """Tasks of the service run often."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms = 300
    transaction_remove_expired_transaction_cleanup_interval_ms = 5_000


class Outside:
    """All that outlives a broker: its disk, its data partitions, and its clients."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = MemoryDatabase(seed)
        self.fs = MemFileSystem(self.rng)
        self.config = settings(journal_bytes=self.rng.choice((1 << 14, 1 << 18)))
        self.settings = LifeSettings((0, 2, 2)[seed % 3])
        self.partitions: dict[TopicPartition, PartitionModel] = {
            ("t", index): PartitionModel() for index in range(3)
        }
        self.history = History()
        self.producer_ids = 1000
        self.crashes = 0
        self.broker_acts: dict[str, int] = {}
        self.shard = SimpleNamespace(transactions={})  # not seen from outside
        self.waiting: list[Reply] = []
        self.life: Life | None = None
        self.trace: list[Any] = []
        spoken = {id_: self.rng.choice((1, 2)) if seed % 3 else 1 for id_ in IDS}
        world: Any = self
        self.producers = []
        for number in range(INSTANCES):
            id_ = self.rng.choice(IDS)
            self.producers.append(
                Producer(world, self.history, seed * 100 + number, id_, spoken[id_])
            )

    # -- as a World sees its coordinator --------------------------------------------------

    def ask(self, request: Request, reply: Reply) -> None:
        assert self.life is not None
        self.waiting.append(reply)
        self.life.ask(request, reply)

    def produce(self, add: AddPartitions, key: Key, reply: Reply, *, implicit: bool) -> None:
        (at,) = add.partitions
        partition = self.partitions[at]
        guard = partition.at(add.producer_id).markers

        def verified(answer: Answer | None) -> None:
            if answer is None or answer.code:
                reply(answer)
            elif partition.at(add.producer_id).markers != guard:
                reply(Answer(ErrorCode.CONCURRENT_TRANSACTIONS))  # verify again
            else:
                reply(Answer(partition.append(add.producer_id, add.producer_epoch, key)))

        if implicit:
            self.ask(add, verified)
            return
        assert self.life is not None
        self.waiting.append(verified)
        self.life.verify(add, verified)

    def deliver(self, reply: Reply, answer: Answer | None) -> None:
        if reply in self.waiting:
            self.waiting.remove(reply)
            reply(answer)

    def lose_connections(self) -> None:
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply(None)


class Life:
    """One process."""

    def __init__(self, outside: Outside, last: bool) -> None:
        self.outside = outside
        self.rng = outside.rng
        self.last = last
        self.loop = SimLoop()
        self.env = sim_env(self.loop, self.rng, outside.fs)
        self.metadata = MemoryMetadata(outside.database)
        self.over = False
        outside.fs.pause = self.pause
        outside.life = self

    def pause(self, what: str) -> None:
        if not self.over:
            self.loop.now += self.rng.random() * 0.0005

    async def main(self) -> None:
        await self.start()
        tasks = [self.env.spawn(self.drive(each), "producer") for each in self.outside.producers]
        if self.last:
            await asyncio.wait(tasks, timeout=SETTLED_S)
            await self.env.sleep(SETTLED_S)
            await self.check()
        else:
            trouble = self.env.spawn(self.trouble(), "trouble")
            await asyncio.wait([self.env.spawn(self.env.sleep(self.rng.random() * 6), "life")])
            tasks.append(trouble)
        for task in tasks:
            if task.done():
                task.result()
        await self.end(tasks)

    # -- the broker -----------------------------------------------------------------------

    async def start(self) -> None:
        outside = self.outside
        self.catalog = await self.metadata.open()
        await self.metadata.register_broker(1, {}, None)
        storage = self.metadata.storage(self.env.clock.now_ms)
        self.log = await Log.open(
            self.env, FOLDER, outside.config, self.catalog, storage, self.metadata, 1
        )
        self.service = TransactionService(
            self.env, outside.settings, FOLDER, self.log.commit_log, self.internal,
            self.catalog, self, self.take,
        )  # fmt: skip
        await self.service.open()

    async def internal(self) -> Any:
        if STATE_TOPIC not in self.catalog.by_name:
            compact = {"cleanup.policy": "compact"}
            await self.make(NewTopic(STATE_TOPIC, [1] * 3, compact, internal=True))
        rows = self.catalog.by_name[STATE_TOPIC].partitions
        fresh_from = self.log.loader.fresh_from
        await self.log.loader.load(row.number for row in rows if row.number < fresh_from)
        return [self.log.loader.get(row.number) for row in rows]

    async def make(self, new: NewTopic) -> TopicInfo:
        (info,) = await self.metadata.create_topics([new])
        self.catalog.add_topic(info)
        self.log.add_topics([info])
        await self.log.commit_log.wait_until_committed()
        return info

    async def take(self) -> int:
        await self.env.sleep(self.rng.random() * 0.002)
        self.outside.producer_ids += 1
        return self.outside.producer_ids

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        return Leader(1, 0) if partition in self.outside.partitions else None

    def append_at_once(self, work: SendMarkers) -> Results | None:
        if self.over or self.rng.random() < 0.5:
            return None
        return {at: self.outside.partitions[at].mark(work) for at in sorted(work.partitions)}

    async def write_markers(self, broker: int, work: Sequence[SendMarkers]) -> Sequence[Results]:
        """Each marker may fail; all answers may be lost, written or not."""
        found: list[dict[TopicPartition, ErrorCode | None]] = []
        for each in work:
            codes: dict[TopicPartition, ErrorCode | None] = {}
            for at in sorted(each.partitions):
                await self.env.sleep(self.rng.random() * 0.005)
                await self.alive()
                fails = self.rng.random() < 0.1
                partition = self.outside.partitions[at]
                codes[at] = ErrorCode.NOT_LEADER_OR_FOLLOWER if fails else partition.mark(each)
            found.append(codes)
        if self.rng.random() < 0.05 and not self.last:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return found

    async def alive(self) -> None:
        """A process that has ended does nothing any more."""
        if self.over:
            await self.loop.create_future()

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        how = self.rng.choice(("power", "kill", "close"))
        self.outside.trace.append((how, self.loop.now, self.rng.random()))
        self.over = True
        for task in tasks:
            task.cancel()
        self.outside.lose_connections()
        if how == "close":
            self.outside.fs.faults.room_bytes = None
            await self.service.close()
            await self.log.close()
            self.outside.fs.kill()
        else:
            die(how, self.env, self.log, self.metadata, self.outside.fs)

    async def trouble(self) -> None:
        faults = self.outside.fs.faults
        while True:
            await self.env.sleep(self.rng.random() * 2)
            match self.rng.randrange(6):
                case 0:
                    faults.room_bytes = self.rng.randrange(500)
                    await self.env.sleep(self.rng.random())
                    faults.room_bytes = None
                case 1:
                    faults.short_writes = self.rng.randrange(1, 4)
                case 2:
                    faults.failing_writes = self.rng.randrange(1, 4)
                case 3 if self.rng.random() < 0.2:
                    faults.failing_syncs = 1
                case _:
                    pass

    # -- producers ------------------------------------------------------------------------

    async def drive(self, producer: Producer) -> None:
        while not producer.done and not self.over:
            await self.env.sleep(self.rng.random() * 0.05)
            if self.rng.random() < 0.01:
                await self.env.sleep(self.rng.random() * 2)
            if not producer.busy and not self.over:
                producer.step()

    def ask(self, request: Request, reply: Reply) -> None:
        self.service.answer_request(request).add_done_callback(
            lambda future: None if future.cancelled() else self.answer(reply, future.result())
        )

    def answer(self, reply: Reply, answer: Answer) -> None:
        if not self.over:
            self.env.call_later(self.rng.random() * 0.01, self.arrive, reply, answer)

    def arrive(self, reply: Reply, answer: Answer) -> None:
        if not self.over:
            self.outside.deliver(reply, answer)

    def verify(self, add: AddPartitions, reply: Reply) -> None:
        self.env.spawn(self._verify(add, reply), "verify")

    async def _verify(self, add: AddPartitions, reply: Reply) -> None:
        asked = VerifyPartitions(
            add.transactional_id, add.producer_id, add.producer_epoch, add.partitions
        )
        ((_, code),) = (await self.service.verify(asked)).items()
        self.answer(reply, Answer(code))

    # -- the end of it all ----------------------------------------------------------------

    async def check(self) -> None:
        if not all(each.done for each in self.outside.producers):
            raise Violation("producers wait for ever")
        check_outcomes(self.outside.partitions, self.outside.history)
        for coordinator in self.service.list_led():
            shard = coordinator.shard
            open_ids = [id_ for id_, at in shard.transactions.items() if at.state not in AT_REST]
            if open_ids or shard.pending:
                raise Violation(f"{open_ids} never end")
            check_log(await self.stored(coordinator.partition))

    async def stored(self, partition: Any) -> list[TransactionRecord]:
        await self.log.commit_log.wait_until_committed()
        found = []
        offset = partition.log_start
        while offset < partition.high_watermark:
            plan = partition.plan(offset, 1 << 20, partition.high_watermark, True)
            for data in await self.log.commit_log.read(plan):
                for position, head in iter_batches(data):
                    for stored in records(data, position):
                        record = decode_record(stored.key, stored.value)
                        assert record is not None
                        found.append(record)
                    offset = head.last_offset + 1
        return found
