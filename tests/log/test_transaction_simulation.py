"""Transactions through all that happens to a log: seeds choose producers, ends, cuts, merges,
compaction, uploads, crashes and lost index files; a model says what a reader of committed records
must get. `SIM_SEEDS=500 pytest tests/log/test_transaction_simulation.py` runs more.

Covers: kafkawire.log.recovery.restore, kafkawire.log.segments.compact.retain,
kafkawire.tiering.read.aborted.
"""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass, field

import pytest

from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.fsck import scanned
from tests.kit.log.transactional import Producer, committed_records, packed
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.tier.cold import ColdWorld
from tests.kit.waiting import settle

SEEDS = int(os.environ.get("SIM_SEEDS", "20"))
PRODUCERS = 5
STEPS = 140
JOURNALS = "/data/brokers/1/journals"


@dataclass
class Model:
    """The whole history: value and transaction of each offset (None: a marker), the open
    transaction of each producer, and the aborted ones."""

    records: list[tuple[bytes, int] | None] = field(default_factory=list)
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)  # transaction, first offset
    aborted: set[int] = field(default_factory=set)
    transactions: int = 0

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min((first for _, first in self.opened.values()), default=len(self.records))

    def committed(self, start: int) -> list[tuple[int, bytes | None]]:
        """The records that a reader of committed ones gets from `start` on."""
        return [
            (at, found[0])
            for at, found in enumerate(self.records[: self.stable])
            if at >= start and found is not None and found[1] not in self.aborted
        ]


class Simulation:
    """One topic of a broker with tiny journals."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.world = ColdWorld(None, seed, journal_bytes=4096)
        self.model = Model()
        self.producers = [Producer(100 + at) for at in range(PRODUCERS)]

    @property
    def partition(self) -> Partition:
        return self.world.find("t")

    async def run(self) -> None:
        """Do all steps, and check everything after each few."""
        await self.world.start()
        configs = {"cleanup_policy": "compact"} if self.kind == "compact" else {}
        configs |= {"min_cleanable_dirty_ratio": "0"} if configs else {}
        await self.world.topic("t", 1, **configs)
        self.open_tier()
        for step in range(STEPS):
            await self.step()
            if step % 5 == 0:
                await self.check()
        for producer in self.producers:
            self.end(producer)
        await self.written()
        await self.maintain()
        await self.check()
        assert self.partition.last_stable_offset == len(self.model.records)

    def open_tier(self) -> None:
        """Reads of segments without a file go to the bucket."""
        self.world.open_tier(8)

    async def step(self) -> None:
        """Some appends in one write batch, or something else."""
        chance = self.rng.random()
        if chance < 0.75:
            for _ in range(self.rng.randrange(1, 4)):
                self.append()
            await self.written()
        elif chance < 0.9:
            await self.maintain()
        else:
            await self.end_process()

    def append(self) -> None:
        """A batch of a transaction, a marker, or a batch of none."""
        producer = self.rng.choice(self.producers)
        chance = self.rng.random()
        if chance < 0.3:
            self.end(producer)
        elif chance < 0.5:
            value = self.value()
            self.partition.append(packed([value], self.kind == "compact"), EPOCH_MS)
            self.model.records.append((value, -1))
        else:
            values = [self.value() for _ in range(self.rng.randrange(1, 3))]
            base = producer.send(self.partition, *values, keyed=self.kind == "compact")
            assert base == len(self.model.records)
            if producer.id not in self.model.opened:
                self.model.transactions += 1
                self.model.opened[producer.id] = self.model.transactions, base
            number = self.model.opened[producer.id][0]
            self.model.records += [(value, number) for value in values]

    def value(self) -> bytes:
        """One that was not used before, sometimes large."""
        size = self.rng.choice((1, 20, 600))
        return b"%d:" % self.rng.getrandbits(60) + bytes(size)

    def end(self, producer: Producer) -> None:
        """A marker; sometimes where nothing is open, as a coordinator's retry."""
        commit = self.rng.random() < 0.5
        version = self.rng.choice((0, 2))
        producer.end(self.partition, commit=commit, version=version)
        self.model.records.append(None)
        number, _ = self.model.opened.pop(producer.id, (0, 0))
        if number and not commit:
            self.model.aborted.add(number)

    async def written(self) -> None:
        await self.partition.log.wait_until_committed()
        await settle()

    async def maintain(self) -> None:
        """One of the things that go on in the background."""
        log = self.world.log
        log.segments.cutter._stuck.clear()
        what = self.rng.randrange(5)
        if what == 0:
            await log.checkpoint()
        elif what == 1:
            await log.indexer.run()
        else:
            await settle()
            await log.segments.cut()
            await log.checkpoint()
            await log.retention.reclaim()
        if what > 2 and self.kind == "compact":
            await log.segments.cleaner.run()
        if what == 3 and self.kind != "compact":
            await log.segments.tend()
        if what == 4 and self.kind == "remote":
            local = [each for each in self.world.segments() if each.row.local]
            await self.world.remote(local[: self.rng.randrange(len(local) + 1)])
        assert not log.segments.cutter.damaged

    async def end_process(self) -> None:
        """A crash of some kind or a clean end, sometimes without index files after it."""
        how = self.rng.randrange(4)
        states = [self.state()]
        for _ in range(self.rng.randrange(4) if how else 0):
            self.append()
            states.append(self.state())
            if self.rng.random() < 0.5:
                await settle()  # written, not synced
        if how == 0:
            await self.world.log.close()
        else:
            await self.world.abandon()
            if how == 1:
                self.world.fs.crash()
            else:
                self.world.fs.kill()
        if how == 3:
            for name in self.world.fs.listdir(JOURNALS):
                if name.endswith(".index") and self.rng.random() < 0.5:
                    self.world.fs.remove(f"{JOURNALS}/{name}")
        await self.scan()
        await self.world.start()
        self.open_tier()
        end = self.partition.next_offset
        self.model, self.producers = next(state for state in states if len(state[0].records) == end)

    async def scan(self) -> None:
        """fsck finds nothing wrong."""
        world = self.world
        world.metadata = MemoryMetadata(world.database)
        world.catalog = await world.metadata.open()
        world.storage = world.metadata.storage(world.env.clock.now_ms)
        report = await scanned(world)
        found = [f"{each.where}: {each.text}" for each in report.problems if not each.harmless]
        assert not found

    def state(self) -> tuple[Model, list[Producer]]:
        """A copy of all that a crash may take back."""
        return copy.deepcopy(self.model), copy.deepcopy(self.producers)

    async def check(self) -> None:
        """Compare what a reader gets with the model, from random offsets on."""
        model, partition = self.model, self.partition
        assert partition.next_offset == partition.high_watermark == len(model.records)
        assert partition.last_stable_offset == model.stable
        known = partition.producers.transactions
        opened = {number: first for number, (_, first) in model.opened.items()}
        assert (known.open if known is not None else {}) == opened
        for size in (1, 700, 1 << 20):
            start = self.rng.randrange(len(model.records) + 1) if size > 1 else 0
            if start <= model.stable:
                found = await committed_records(partition, start, size)
                assert found == model.committed(start)


@pytest.mark.parametrize("kind", ["delete", "compact", "remote"])
@pytest.mark.parametrize("seed", [0])
async def test_committed_readers_see_whole_transactions(seed: int, kind: str) -> None:
    await Simulation(seed, kind).run()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delete", "compact", "remote"])
@pytest.mark.parametrize("seed", range(1, SEEDS))
async def test_committed_readers_see_whole_transactions_often(seed: int, kind: str) -> None:
    await Simulation(seed, kind).run()


async def test_the_model_notices_a_reader_of_the_high_watermark() -> None:
    simulation = Simulation(1, "delete")
    await simulation.world.start()
    await simulation.world.topic("t")
    simulation.producers[0].send(simulation.partition, b"open")
    simulation.model.records.append((b"open", 1))
    simulation.model.opened[100] = 1, 0
    await simulation.written()
    simulation.partition.last_stable_offset = simulation.partition.high_watermark
    with pytest.raises(AssertionError):
        await simulation.check()
