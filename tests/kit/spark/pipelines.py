"""A pipeline without Spark and without a broker: records derived from their offset, a place in
memory that can end the process at any call, and checks of the table that results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.objectstore.port import Objects
from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.catalog import Bounds
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    LOST,
    Account,
    DamagedData,
    PartitionRange,
    Source,
    Task,
    TaskPart,
)
from kafkawire_spark.pipeline.engine import Engine, RunOutcome
from kafkawire_spark.pipeline.jobs.job import Job, from_dict
from kafkawire_spark.pipeline.jobs.layout import parse_path
from kafkawire_spark.pipeline.jobs.state import TableState
from kafkawire_spark.pipeline.tables.parquet import ParquetTable
from tests.kit.spark.inline import Inline

DAY_US = 86_400_000_000
BASE_US = 1_700_000_000_000_000 // DAY_US * DAY_US
RECORD_BYTES = 100


class Killed(BaseException):
    """The process was ended at this call."""


class MemoryPlace(Place):
    """Files in a dict. `before(n, what, key)` and `after` are called around each call that changes
    or lists files."""

    def __init__(self, files: dict[str, bytes] | None = None, url: str = "/memory") -> None:
        super().__init__(parse_tier(url))
        object.__setattr__(self, "files", {} if files is None else files)
        object.__setattr__(self, "hook", lambda when, what, key: None)

    files: dict[str, bytes]
    hook: Callable[[str, str, str], None]

    def on(self, hook: Callable[[str, str, str], None]) -> MemoryPlace:
        """The same files, seen by a process whose calls are reported to `hook`."""
        other = MemoryPlace(self.files, self.tier.url)
        object.__setattr__(other, "hook", hook)
        return other

    def get(self, key: str) -> bytes:
        self.hook("before", "get", key)
        if key not in self.files:
            raise FileNotFoundError(f"{key} is not there")
        return self.files[key]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self.hook("before", "put", key)
        if if_absent and key in self.files:
            raise FileExistsError(f"{key} is there already")
        self.files[key] = bytes(data)
        self.hook("after", "put", key)

    def list(self, prefix: str = "") -> Iterator[str]:
        self.hook("before", "list", prefix)
        yield from sorted(key for key in self.files if key.startswith(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.hook("before", "delete", key)
            self.files.pop(key, None)
            self.hook("after", "delete", key)

    def access(self) -> None:
        return None

    def _objects(self) -> Objects:
        raise NotImplementedError

    def arrow(self) -> tuple[Any, str]:
        raise NotImplementedError


@dataclass
class World:
    """Topics as (start, end) of each partition. Of every ten offsets, number 7 was compacted and
    number 8 aborted; `damaged` ones cannot be read."""

    topics: dict[str, list[tuple[int, int]]]
    damaged: set[tuple[str, int, int]] = field(default_factory=set)
    source: Source = field(default_factory=lambda: Source(url="/memory"))
    places: list[Place] = field(default_factory=list)
    ids: dict[str, bytes] = field(default_factory=dict)

    def names(self) -> dict[str, int]:
        return {name: len(parts) for name, parts in self.topics.items()}

    def catalog(self, source: Source) -> Any:
        """The catalog that open_catalog returns."""
        return SimpleNamespace(
            source=source,
            topics=self.names(),
            places=[],
            bounds=self.bounds,
            part=self.part,
            facts=lambda topic: SimpleNamespace(
                internal=False, id=self.ids.get(topic, topic.encode().rjust(16, b"-"))
            ),
            close=lambda: None,
            refresh_catalog=lambda: self.catalog(source),
        )

    def bounds(self, topic: str, partition: int) -> Bounds:
        start, end = self.topics[topic][partition]
        return Bounds(start, end, end)

    def part(self, wanted: PartitionRange) -> TaskPart:
        return TaskPart(wanted, (), RECORD_BYTES * (wanted.end - wanted.base))

    def read(
        self,
        source: Source,
        places: Sequence[Place],
        task: Task,
        selection: Selection,
        *,
        on_damage: Callable[[DamagedData, bytes], None] | None = None,
        accounts: list[Account] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows like read_task, in batches of up to 7 rows that may be of several
        partitions."""
        rows: list[dict[str, Any]] = []
        for part in task.parts:
            account = Account(part.range)
            for offset in range(part.range.base, part.range.end):
                row = self._row(part.range, offset, account, on_damage)
                rows += [row] if row else []
            if accounts is not None:
                accounts.append(account)
        schema = selection.arrow_schema()
        for at in range(0, len(rows), 7):
            columns = {name: [row[name] for row in rows[at : at + 7]] for name in schema.names}
            yield pa.RecordBatch.from_pydict(columns, schema=schema)

    def _row(
        self,
        part: PartitionRange,
        offset: int,
        account: Account,
        on_damage: Callable[[DamagedData, bytes], None] | None,
    ) -> dict[str, Any] | None:
        if (part.topic, part.partition, offset) in self.damaged:
            problem = DamagedData(
                f"offset {offset} is damaged", part.topic, part.partition, offset, offset + 1
            )
            if on_damage is None:
                raise problem
            on_damage(problem, b"\x00bad")
            account.add_gap(offset, offset + 1, "damaged")
            return None
        if offset < self.topics[part.topic][part.partition][0]:
            account.add_gap(offset, offset + 1, LOST)
            return None
        if offset % 10 in (7, 8):
            reason = COMPACTED if offset % 10 == 7 else ABORTED
            account.add_gap(offset, offset + 1, reason)
            return None
        account.rows += 1
        return record(part.topic, part.partition, offset)

    def expected(self) -> set[tuple[str, int, int]]:
        """Topic, partition and offset of every record there is."""
        return {
            (topic, partition, offset)
            for topic, parts in self.topics.items()
            for partition, (start, end) in enumerate(parts)
            for offset in range(start, end)
            if offset % 10 not in (7, 8) and (topic, partition, offset) not in self.damaged
        }


def record(topic: str, partition: int, offset: int) -> dict[str, Any]:
    """A record's columns, all derived from its offset."""
    return {
        "_topic": topic,
        "_partition": partition,
        "_offset": offset,
        "_timestamp": BASE_US + offset // 5 * (DAY_US // 2),
        "_timestamp_type": 0,
        "_key": None if offset % 3 == 0 else f"{offset % 4}".encode(),
        "_value": None if offset % 11 == 0 else f"{topic}/{partition}/{offset}".encode(),
        "_headers": None,
    }


def job(**sections: Mapping[str, Any]) -> Job:
    """A job over the topics a and b, with sections added or replaced."""
    plain: dict[str, Mapping[str, Any]] = {
        "job": {"name": "test"},
        "source": {"url": "/memory", "subscribe": "a,b"},
        "table": {"format": "parquet", "path": "/memory"},
    }
    merged = {name: {**plain.get(name, {}), **given} for name, given in sections.items()}
    return from_dict(plain | merged)


@dataclass
class Bench:
    """One table in memory and the world whose records it holds; `patch` must be the test's
    monkeypatch."""

    world: World
    patch: pytest.MonkeyPatch
    job: Job = field(default_factory=job)
    place: MemoryPlace = field(default_factory=MemoryPlace)
    dead: MemoryPlace = field(default_factory=lambda: MemoryPlace(url="/dead"))

    def __post_init__(self) -> None:
        # Jobs of a few rows: tasks of 20 records, several in a run.
        running = replace(self.job.running, task_bytes=20 * RECORD_BYTES)
        self.job = replace(self.job, running=running)
        self.patch.setattr("kafkawire_spark.pipeline.engine.open_catalog", self.world.catalog)
        self.patch.setattr("kafkawire_spark.pipeline.tasks.read_task", self.world.read)

    def copied(self) -> Bench:
        """A copy of this bench in its current state."""
        topics = {name: list(parts) for name, parts in self.world.topics.items()}
        places = [MemoryPlace(dict(it.files), it.tier.url) for it in (self.place, self.dead)]
        return Bench(replace(self.world, topics=topics), self.patch, self.job, *places)

    def engine(self, hook: Callable[[str, str, str], None] | None = None) -> Engine:
        """A driver of its own, and the process that its tasks run in."""
        place = self.place.on(hook) if hook else self.place
        dead = self.dead.on(hook) if hook else self.dead
        return Engine(
            self.job,
            Inline(),
            place_of=lambda url: dead,
            table=ParquetTable(self.job, place),
        )

    def run(self) -> RunOutcome:
        return self.engine().run()

    def rows(self) -> list[tuple[str, int, int]]:
        """The rows that a plain reader of the path sees: topic, partition, offset."""
        return _rows(self.place, self.plain_files())

    def listed_rows(self) -> list[tuple[str, int, int]]:
        """The rows that a reader of Table.files() sees."""
        files = [file.path for file in ParquetTable(self.job, self.place).files()]
        return _rows(self.place, files)

    def plain_files(self) -> list[str]:
        return [key for key in self.place.list() if not key.startswith("_")]

    def dead_rows(self) -> list[dict[str, Any]]:
        tables = [pq.read_table(pa.BufferReader(data)) for data in self.dead.files.values()]
        return [row for table in tables for row in table.to_pylist()]

    def check(self) -> None:
        """Check that the table has every record exactly once, complete accounts, and no file left
        over."""
        expected = sorted(self.world.expected())
        assert sorted(self.rows()) == expected
        assert sorted(self.listed_rows()) == expected
        state = TableState(self.place)
        records = list(state.read_records())
        covered: dict[tuple[str, int], int] = {}
        for one in records:
            for share in one.shares:
                topic, partition, base, end = share.range
                assert share.missing == 0
                assert covered.get((topic, partition), self.first(topic, partition)) == base
                covered[topic, partition] = end
        assert sum(one.rows for one in records) == len(expected)
        for (topic, partition), end in covered.items():
            assert end == self.world.topics[topic][partition][1]
        dead = {file.path for one in records for file in one.dead}
        assert set(self.dead.files) == dead
        kept = {"table.json", "latest.json"}
        for key in self.place.list("_kafkawire/"):
            name = key.removeprefix("_kafkawire/")
            folder, _, rest = name.partition("/")
            assert name in kept or (folder in FOLDERS and rest[:20].isdigit()), key
            assert "task-" not in name, key

    def first(self, topic: str, partition: int) -> int:
        return self.world.topics[topic][partition][0]


FOLDERS = ("runs", "commits", "compactions", "replaced", "snapshots")


def _rows(place: MemoryPlace, paths: Iterable[str]) -> list[tuple[str, int, int]]:
    found = []
    for path in paths:
        named = parse_path(path)
        assert named is not None
        file = pq.ParquetFile(pa.BufferReader(place.files[path]))
        offsets = file.read(["_offset"], use_threads=False).column(0).to_pylist()
        assert offsets == sorted(offsets)
        assert all(named[0].base <= offset < named[0].end for offset in offsets)
        found += [(named[0].topic, named[0].partition, offset) for offset in offsets]
    return found


class Counting:
    """A hook that counts the calls of a process and ends it at one of them."""

    def __init__(self, end_at: int = -1) -> None:
        self.calls, self._end_at = 0, end_at
        self.where = ""

    def __call__(self, when: str, what: str, key: str) -> None:
        if what == "get":
            return  # the state is as it was after the previous call
        if self.calls == self._end_at:
            self.where = f"{when} {what} {key}"
            self.calls += 1
            raise Killed(self.where)
        self.calls += 1


def world() -> World:
    return World({"a": [(0, 45), (10, 31), (0, 0)], "b": [(5, 12)]})


def grow(bench: Bench, *, by: int = 13) -> None:
    """Add records to every partition."""
    for parts in bench.world.topics.values():
        parts[:] = [(start, end + by) for start, end in parts]


@pytest.fixture(name="bench")
def new_bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(world(), monkeypatch)
