"""The cost of native offsets: assigning them, and storing their state.

`python bench/micro/offsets.py` prints a table: figure, target, ratio. Assignment is one process in
memory; `--workers N` adds a line with N processes, each with partitions of its own, as the workers
of a broker have. Storage is SQLite through SQLAlchemy (`--storage` takes `rocksdb`, `memory`, or
the URL of an empty PostgreSQL database too), 100,000 partitions, each transaction durable when it
returns. The lines of SQLite alone read the rows of the range queries by the driver, in one thread,
with and without the checksum of each row: what no library over it can exceed. Each figure is the
best of several rounds, since other work uses the machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import NamedTuple

from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage
from kafkawire.offsets.catalog.port import SegmentCatalog, SegmentRange, SegmentRow, Swap
from kafkawire.offsets.catalog.sql.statements import MAPPING
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from kafkawire.offsets.manager import PartitionOffsetManager
from kafkawire.offsets.registry import OffsetAssigner, OffsetRegistry
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from kafkawire.server.run import COLLECT_AFTER

PARTITIONS = 100_000
PER_TOPIC = 100
TRANSACTION = 20_000
"""Rows saved or loaded in one call."""
SPAN = 100
"""Offsets of a mapping, and of a requested range."""
RANGES = 20_000
DEEP = 200
"""Partitions with 100 mappings each."""
ROUNDS = 5
ASSIGNED = 1_000_000


class Line(NamedTuple):
    """One row of the table; rates are per second."""

    what: str
    rate: float
    target: float


def best(work: Callable[[], int]) -> float:
    """The highest rate of `work`, which returns the number of items it has processed."""
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def one_by_one() -> int:
    """Single offsets, each applied like the log does."""
    manager = PartitionOffsetManager()
    assign, apply = manager.assign, manager.apply
    for _ in range(ASSIGNED):
        apply(assign(1) + 1)
    return ASSIGNED


def assigned_only() -> int:
    """Single offsets, counted like the seed."""
    assign = PartitionOffsetManager().assign
    for _ in range(ASSIGNED):
        assign(1)
    return ASSIGNED


def by_the_hundred() -> int:
    """Batches of 100."""
    assign = PartitionOffsetManager().assign
    for _ in range(ASSIGNED):
        assign(100)
    return 100 * ASSIGNED


def through_the_assigner() -> int:
    """Batches of 100 over 1,000 partitions, through the library."""
    registry = OffsetRegistry()
    for number in range(1_000):
        registry.add(number)
    assign = OffsetAssigner(registry).assign_batch
    for at in range(ASSIGNED // 4):
        assign(at % 1_000, 100)
    return 100 * (ASSIGNED // 4)


def assignment() -> list[Line]:
    """The rows without storage."""
    return [
        Line("offsets assigned one by one", best(assigned_only), 3e6),
        Line("... each applied too", best(one_by_one), 3e6),
        Line("offsets assigned in batches of 100", best(by_the_hundred), 1e8),
        Line("... by OffsetAssigner, 1,000 partitions", best(through_the_assigner), 1e8),
    ]


def concurrently(workers: int) -> Line:
    """Assignment by several processes at once: offsets a second of all, compared with one."""
    with ProcessPoolExecutor(workers) as pool:
        one = best(through_the_assigner)

        def work() -> int:
            counts = [pool.submit(through_the_assigner) for _ in range(workers)]
            return sum(each.result() for each in counts)

        return Line(f"... by {workers} processes at once; of one", best(work), one)


def memory_per_partition() -> float:
    """Return the bytes of a partition in an OffsetRegistry."""
    tracemalloc.start()
    registry = OffsetRegistry()
    for number in range(PARTITIONS):
        registry.add(number, number + 1_000_000)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / PARTITIONS


class Bench:
    """A storage with partitions, and its measurements."""

    def __init__(self, storage: SegmentCatalog, numbers: list[int]) -> None:
        self.storage = storage
        self.numbers = numbers
        self.segments = 0
        self.checkpoints = [
            [PartitionCheckpoint(number, 5 * SPAN, 0, [(0, 0)]) for number in some]
            for some in parts(numbers)
        ]
        self.mappings = [[mapping(number, 0) for number in some] for some in parts(numbers)]

    async def run(self) -> list[Line]:
        """Write and read everything in every round; return the best of each."""
        steps = {
            "checkpoints saved": (self.save, 5e5),
            "checkpoints loaded": (self.load, 5e5),
            "mapping rows saved": (self.add, 1.5e5),
            "range queries of 100 records": (self.near, 1e4),
            "range queries of 100 mapping rows": (self.far, 1e4),
        }
        rates: dict[str, list[float]] = {what: [] for what in steps}
        for _ in range(ROUNDS):
            await self.clear()
            for what, (step, _target) in steps.items():
                if step == self.far:
                    await self.deepen()
                start = time.perf_counter()
                count = await step()
                rates[what].append(count / (time.perf_counter() - start))
        return [Line(what, max(rates[what]), target) for what, (_, target) in steps.items()]

    async def clear(self) -> None:
        """Remove all mappings."""
        await self.storage.remove_mappings(dict.fromkeys(self.numbers, 1 << 40))

    async def save(self) -> int:
        """The checkpoints of all partitions, as the log saves them."""
        for rows in self.checkpoints:
            await self.storage.save_checkpoint(Checkpoint(1, 1, rows))
        return len(self.numbers)

    async def load(self) -> int:
        """The checkpoints of all partitions, as the log loads them."""
        count = 0
        for some in parts(self.numbers):
            rows = await self.storage.load_partitions(some)
            count += sum(row.checkpoint is not None for row in rows)
        assert count == len(self.numbers)
        return count

    async def add(self) -> int:
        """A cut that brings a mapping of each partition, many partitions in a segment."""
        for rows in self.mappings:
            await self.cut(rows)
        return len(self.numbers)

    async def deepen(self) -> None:
        """Add mappings to a few partitions, so that each has 100 adjacent ones."""
        for at in range(1, SPAN, 10):
            rows = [
                mapping(number, base * SPAN)
                for number in self.numbers[:DEEP]
                for base in range(at, min(at + 10, SPAN))
            ]
            await self.cut(rows)

    async def cut(self, rows: list[SegmentRange]) -> None:
        """One segment with these mappings: its start and its swap."""
        self.segments += 1
        segment = SegmentRow(self.segments.to_bytes(16, "big"), 1, 0)
        (segment.id,) = await self.storage.start_segments([segment])
        await self.storage.finish_segments(Swap([(segment, rows)]))

    async def near(self) -> int:
        """Look up ranges of 100 offsets at random positions; 20,000 in one call."""
        step = 7_919  # a prime: no order that the storage could use
        numbers = (self.numbers[at * step % len(self.numbers)] for at in range(RANGES))
        found = await self.storage.mappings([(number, 0, SPAN) for number in numbers])
        assert all(len(rows) == 1 for rows in found)
        return RANGES

    async def far(self) -> int:
        """Look up ranges that span 100 segments each; 200 in one call."""
        ranges = [(number, 0, SPAN * SPAN) for number in self.numbers[:DEEP]]
        found = await self.storage.mappings(ranges)
        assert all(len(rows) == SPAN for rows in found)
        return len(ranges)


def sqlite_alone(path: str, numbers: list[int], columns: str) -> float:
    """Return how many ranges of 100 mapping rows the driver reads in a second."""
    query = f"SELECT {columns} FROM offset_mappings WHERE partition_number = ?"
    with closing(sqlite3.connect(path)) as database:

        def work() -> int:
            for number in numbers[:DEEP]:
                assert len(database.execute(query, (number,)).fetchall()) == SPAN
            return DEEP

        return best(work)


def parts(numbers: list[int]) -> list[list[int]]:
    """The numbers, TRANSACTION at a time."""
    return [numbers[at : at + TRANSACTION] for at in range(0, len(numbers), TRANSACTION)]


def mapping(number: int, base: int) -> SegmentRange:
    """100 offsets of a partition in a page of a segment."""
    return SegmentRange(
        number, 0, base, base + SPAN, 64, 4096, 9000, 64, 7, 1_767_225_600_000, 1, SPAN
    )


async def sql_storage(store: SqlStore) -> tuple[SegmentCatalog, list[int]]:
    """A database with partitions."""
    await store.open()
    await store.register_broker(1, {}, None)
    topics = [NewTopic(f"t{at}", [1] * PER_TOPIC) for at in range(PARTITIONS // PER_TOPIC)]
    made = await store.create_topics(topics)
    numbers = [partition.number for info in made for partition in info.partitions]
    return SqlStorage(store, 1, lambda: 0), numbers


async def opened(kind: str, folder: str) -> tuple[SegmentCatalog, list[int], SqlStore | None]:
    """The storage, its partitions, and the objects to close."""
    numbers = list(range(1, PARTITIONS + 1))
    if kind == "memory":
        return MemoryStorage(MemoryRows(), 1, lambda: 0), numbers, None
    if kind == "rocksdb":
        return RocksStorage(f"{folder}/offsets", 1, lambda: 0), numbers, None
    store: SqlStore = SqlMetadata(f"sqlite:///{folder}/metadata.db" if kind == "sqlite" else kind)
    storage, numbers = await sql_storage(store)
    return storage, numbers, store


async def main(kind: str, workers: int) -> None:
    """Measure and print the table."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)  # like `kafkawire serve`
    lines = assignment()
    if workers:
        lines.append(concurrently(workers))
    where = os.environ.get("BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="micro-offsets-", dir=where) as folder:
        storage, numbers, store = await opened(kind, folder)
        lines += await Bench(storage, numbers).run()
        if kind == "sqlite":
            path = f"{folder}/metadata.db"
            for what, columns in (("", f"{MAPPING}, intact"), (", no checksums", MAPPING)):
                rate = sqlite_alone(path, numbers, columns)
                lines.append(Line(f"... by SQLite alone{what}", rate, 1e4))
        await storage.close()
        if store is not None:
            await store.close()
    print(f"{'storage: ' + kind:42} {'a second':>14} {'target':>14} {'ratio':>7}")
    for what, rate, target in lines:
        print(f"{what:42} {rate:>14,.0f} {target:>14,.0f} {rate / target:>7.2f}")
    print(f"{'bytes of memory per partition':42} {memory_per_partition():>14,.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Figures of native offsets.")
    parser.add_argument("--storage", default="sqlite", help="sqlite, rocksdb, memory or a URL")
    parser.add_argument("--workers", type=int, default=0, help="processes that assign at once")
    options = parser.parse_args()
    asyncio.run(main(options.storage, options.workers))
