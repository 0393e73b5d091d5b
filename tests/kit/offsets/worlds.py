"""Every storage of offsets, for tests: its durable state, and processes that use it.

Each world has the same partitions: `MINE` are led by node 1, `FOREIGN` by node 2, those of the
topic `gone` by node 1 until it is deleted, and `UNKNOWN` was never created.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage
from kafkawire.offsets.catalog.kv.threaded import PluggedStore, ThreadedStorage
from kafkawire.offsets.catalog.port import NEVER, SegmentCatalog, SegmentRange, SegmentRow, Swap
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from tests.kit import example_plugins
from tests.kit.postgres import new_database

MINE = [1, 2, 3, 4, 5, 6]
FOREIGN = 7
GONE = [8, 9]
UNKNOWN = 1_000_000
WORLDS = [
    "memory",
    "rocksdb",
    "plugin",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.real),
]
numbers = itertools.count(1_000_000)


class Clock:
    """Milliseconds that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms


class World(Protocol):
    """`start` starts a new process and ends the one before it."""

    clock: Clock

    async def start(self) -> SegmentCatalog: ...

    async def delete(self) -> None:
        """Delete the topic `gone`."""
        ...

    async def close(self) -> None: ...


class KeyValueWorld:
    """Memory, RocksDB or a plug-in's store: the catalog is a dict here."""

    def __init__(self, folder: Path | None = None, plugin: bool = False) -> None:
        self.clock = Clock()
        self.plugin = plugin
        self.folder = folder
        self.rows = MemoryRows()
        self.leaders = {**dict.fromkeys([*MINE, *GONE], 1), FOREIGN: 2}
        self.running: SegmentCatalog | None = None

    async def start(self) -> SegmentCatalog:
        await self.close()
        leader_of: Callable[[int], int | None] = self.leaders.get
        if self.folder is None:
            self.running = MemoryStorage(self.rows, 1, self.clock.now_ms, leader_of)
        elif self.plugin:
            store = PluggedStore(example_plugins.load().SqliteStore(str(self.folder), 1), "example")
            self.running = ThreadedStorage(store, "example", 1, self.clock.now_ms, leader_of)
        else:
            folder = str(self.folder / "offsets")
            self.running = RocksStorage(folder, 1, self.clock.now_ms, leader_of)
        return self.running

    async def delete(self) -> None:
        for number in GONE:
            del self.leaders[number]

    async def close(self) -> None:
        if self.running is not None:
            await self.running.close()


class SqlWorld:
    """SQLite or PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.url = url
        self.store: SqlStore | None = None
        self.gone = b""

    async def make(self) -> None:
        """Create the tables and the partitions."""
        store = SqlMetadata(self.url)
        await store.open()
        await store.register_broker(1, {}, None)
        made = await store.create_topics(
            [NewTopic("mine", [1] * len(MINE)), NewTopic("foreign", [2]), NewTopic("gone", [1, 1])]
        )
        numbers = [partition.number for info in made for partition in info.partitions]
        assert numbers == [*MINE, FOREIGN, *GONE]
        self.gone = made[2].id
        await store.close()

    async def start(self) -> SegmentCatalog:
        await self.close()
        self.store = SqlMetadata(self.url)
        await self.store.open()
        return SqlStorage(self.store, 1, self.clock.now_ms)

    async def delete(self) -> None:
        store = SqlMetadata(self.url)
        await store.open()
        await store.delete_topics([self.gone])
        await store.close()

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.store = None


@pytest.fixture(params=WORLDS, name="world")
async def each_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Every storage, one after the other. Tests import this name and ask for `world`."""
    made = await _make_world(request, tmp_path)
    yield made
    await made.close()


async def _make_world(request: pytest.FixtureRequest, folder: Path) -> World:
    if request.param in ("memory", "rocksdb", "plugin"):
        where = None if request.param == "memory" else folder
        return KeyValueWorld(where, request.param == "plugin")
    url = f"sqlite:///{folder}/metadata.db"
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))
    made = SqlWorld(url)
    await made.make()
    return made


def segment(at: int = 0, node_id: int = 1) -> SegmentRow:
    return SegmentRow(at.to_bytes(16, "big"), node_id, 500 + at, retention_class="week")


def mapping(number: int, base: int, end: int, due_ms: int = NEVER) -> SegmentRange:
    length = 10 * (end - base)
    return SegmentRange(
        number, 0, base, end, 64 + base, length, 9000, 24, 2**32 - 1, 77, 2, end - base, due_ms
    )


async def finished(storage: SegmentCatalog, *rows: SegmentRange, **others: Any) -> SegmentRow:
    """A new segment that holds these mappings, as it was passed to the catalog, with its id."""
    row = segment(next(numbers))
    (row.id,) = await storage.start_segments([row])
    row.size_bytes, row.max_timestamp = 4096, 77
    await storage.finish_segments(Swap([(row, list(rows))], **others))
    return row


def within(row: SegmentRow, *rows: SegmentRange) -> list[SegmentRange]:
    return [each._replace(segment_id=row.id) for each in rows]
