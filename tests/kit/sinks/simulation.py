"""A broker in a seeded simulation: lives on machines that fail, clients, and the checks of both.

`Simulation` has what does not depend on where acknowledged records are stored: the workload, the
oracle (tests.kit.sinks.records), the order of lives, and the end of a run at a crash point. A
subclass has a sink, its failures, and how its processes start and end.

Idempotent producers with several batches in flight retry until they are answered; readers read from
every process. In every life, and at the end:

- a record that was acknowledged, or read by anyone, is at its offset, and no other ever was;
- a partition has no gap, and each value of an idempotent producer once, in order;
- leader epochs rise, within the log and with each new disk;
- what a superseded process acknowledges, its successor has;
- when nothing fails any more, everything is acknowledged.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from tests.kit.sinks.clients import Producer, read
from tests.kit.sinks.lives import CALM, EXPECTED, SinkLife, SinkWorld
from tests.kit.tier.crash_points import Died

TWorld = TypeVar("TWorld", bound=SinkWorld)
TLife = TypeVar("TLife", bound=SinkLife)

UPLOADED_S = 10.0
"""After which records are uploaded, so that only a checkpoint is missing."""
STARTED_S = 600.0
"""In which a start is complete: far more than anything fails at a time."""
ANSWERED_S = 120.0
"""In which all producers are answered when nothing fails any more."""
TRIES = 60
CANCELLATIONS = 3
"""Of the tasks that a run has left: each may end in a `finally` that begins another one."""
READ_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE)


class Simulation(ABC, Generic[TWorld, TLife]):
    """One seed. A sink has the settings of its topics in `topic`, the number of processes that
    follow the first one in `life_count`, and how long each may run in `longest_s`; `max_read`
    bounds a read. What clients do: `deletes_records`; with `plain_acks_all` also the producer
    without a producer id has acks=all."""

    topic: ClassVar[dict[str, Any]]
    life_count: ClassVar[int]
    longest_s: ClassVar[tuple[int, ...]]
    max_read: ClassVar[int] = 1 << 62
    deletes_records: ClassVar[bool]
    plain_acks_all: ClassVar[bool]

    def __init__(self, world: TWorld) -> None:
        self.world = world
        rng = self.rng = world.rng
        world.config.journal_bytes = rng.choice((1 << 14, 1 << 16))
        world.config.hot_bytes = rng.choice((0, 20_000))
        self.producers: list[Producer] = []
        self.clients: list[asyncio.Task[None]] = []

    # --- a run

    def run(self) -> TWorld:
        """Run `main` to its end."""
        with self._loop():
            self.world.loop.run_until_complete(self.main())
        self.raise_failures()
        return self.world

    def run_to_point(self, how: str = "kill") -> None:
        """Run `main`; a crash point raises out of the loop, which continues without that process.
        `how` it ends: "kill" or "power"."""
        with self._loop():
            task = self.world.loop.create_task(self.main())
            while not task.done():
                try:
                    self.world.loop.run_until_complete(task)
                except Died:
                    self.world.lives[-1].die(how)
            task.result()

    @contextmanager
    def _loop(self) -> Iterator[None]:
        loop = self.world.loop
        asyncio.set_event_loop(None)
        try:
            yield
        finally:
            for _ in range(CANCELLATIONS):
                left = loop.tasks()
                for task in left:
                    task.cancel()
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.close()

    async def main(self) -> None:
        world, rng = self.world, self.rng
        life = await self.start_first()
        await self.create(life)
        failing = [world.loop.create_task(each()) for each in (self.weather, self.reader)]
        for _ in range(self.life_count):
            seconds = rng.random() * rng.choice(self.longest_s)
            await asyncio.sleep(seconds + UPLOADED_S * life.no_checkpoints)
            self.raise_failures()
            life = await self.next_life(life)
        for task in failing:
            task.cancel()
        await asyncio.wait(failing)
        await self.end(life)

    async def end(self, life: TLife) -> None:
        """Let everything come to its end without failures; then start once more, and read it
        all."""
        life = await self.heal(life)
        await self.finish_clients()
        await self.settle()
        await self.check(life)
        self.raise_failures()
        life = await self.start_last(life)
        await life.close()
        await life.bury()

    async def finish_clients(self, within_s: float = ANSWERED_S) -> None:
        """Have producers begin nothing more, and wait until they are answered."""
        for producer in self.producers:
            producer.over = True
        await asyncio.wait_for(asyncio.gather(*self.clients), within_s)

    def raise_failures(self) -> None:
        """Raise what a client or a check has found."""
        for task in self.clients:
            if task.done() and not task.cancelled():
                task.result()
        for failure in [*self.world.violations, *self.world.loop.failures]:
            if isinstance(failure, AssertionError):
                raise failure

    def expect(self, life: TLife, starting: asyncio.Task[None]) -> None:
        """Check why a start has failed, if it has."""
        if starting.done() and not starting.cancelled() and not life.over:
            failure = starting.exception()
            if failure is not None:
                self.world.note(f"life {life.number} does not start: {failure}")
                assert isinstance(failure, EXPECTED), repr(failure)

    # --- the sink

    @abstractmethod
    async def start_first(self) -> TLife:
        """Start the first process."""

    @abstractmethod
    async def next_life(self, life: TLife) -> TLife:
        """End a life, or leave it running, and start another one; return it."""

    @abstractmethod
    async def weather(self) -> None:
        """Have things fail, until this is cancelled."""

    @abstractmethod
    async def heal(self, life: TLife) -> TLife:
        """Have nothing fail any more; return the process that runs then."""

    async def settle(self) -> None:
        """Wait until what follows the acknowledgement of records is done."""

    @abstractmethod
    async def start_last(self, life: TLife) -> TLife:
        """End a life, start another one, and check what is left."""

    async def create_more(self, life: TLife) -> list[Any]:
        """Create topics of other kinds; return their partitions, which have producers, too."""
        return []

    async def add_more_producers(self, life: TLife) -> None:
        """Add producers of other kinds."""

    def note_expired(self, number: int) -> None:
        """Note that records of a partition may have expired, if that is so."""

    # --- clients

    async def create(self, life: TLife) -> None:
        """Create topics, and begin to produce."""
        rng = self.rng
        partitions = await life.create("t", rng.randrange(1, 3), **self.topic)
        partitions += await life.create(
            "u", 1, local_retention_ms=rng.choice(("-2", "1")), **self.topic
        )
        partitions += await self.create_more(life)
        for at, partition in enumerate(partitions * 2):
            plain = at == 0
            self.add_producer(
                -1 if plain else 100 + at,
                partition.number,
                b"plain" if plain else b"p%d" % at,
                acks_all=self.plain_acks_all or not plain,
            )
        await self.add_more_producers(life)
        self.begin_clients()

    def add_producer(self, producer_id: int, number: int, name: bytes, **options: Any) -> None:
        made = Producer(self.world, producer_id, number, self.rng, name, **options)
        self.producers.append(made)

    def begin_clients(self) -> None:
        self.clients = [self.world.loop.create_task(each.run()) for each in self.producers]

    async def create_with_two_producers(
        self, life: TLife, partitions: int = 1, **more: Any
    ) -> None:
        """Create one topic with two producers, and begin to produce."""
        made = await life.create("t", partitions, **self.topic, **more)
        for at in range(2):
            self.add_producer(100 + at, made[at % partitions].number, b"p%d" % at)
        self.begin_clients()

    async def reader(self) -> None:
        """Read from any process, also from one that was superseded and does not know it."""
        world, rng = self.world, self.rng
        while True:
            await asyncio.sleep(rng.random() * 0.5)
            if not world.serving:
                continue
            life = rng.choice(world.serving)
            partition = rng.choice(list(life.log.partitions.values()))
            at = rng.randrange(partition.log_start, partition.high_watermark + 1)
            try:
                if self.deletes_records and rng.random() < 0.05 and life is world.serving[-1]:
                    deleted = world.records.deleted
                    deleted[partition.number] = max(deleted[partition.number], at)
                    await partition.delete_records(at)
                else:
                    rows = await read(partition, at, at + self.max_read)
                    if not life.over:
                        world.records.see(partition.number, rows)
            except (KafkaError, OSError):
                continue

    # --- checks

    async def check(self, life: TLife) -> None:
        """Check all partitions of a life; the bucket is well meanwhile."""
        records = self.world.records
        for partition in await life.partitions():
            number = partition.number
            records.lead(number, partition.leader_epoch, rises=life.fresh and not life.started)
            for tried in range(TRIES):
                self.world.bucket.faults = CALM
                start, end = partition.log_start, partition.high_watermark
                try:
                    rows = await read(partition, start, end)
                    break
                except KafkaError as failure:
                    if life.over:
                        return
                    if tried == TRIES - 1 or failure.code not in READ_ERRORS:
                        raise AssertionError(f"{partition.topic} cannot be read") from failure
                    await asyncio.sleep(0.5)
            rows = [row for row in rows if start <= row[0] < end]
            self.note_expired(number)
            if not life.over:
                records.check(number, start, end, rows)
