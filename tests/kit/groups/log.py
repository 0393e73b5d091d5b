"""A commit log and a partition, as far as a coordinator needs them, with commits by hand.

Appended records are not committed until `commit` is called; `fail` makes the open write batch fail,
and `refuse` makes appends raise. `crash` returns the log as a restart would find it: what was
committed, no more. The parts of `Env` that coordinators use are here too, on real asyncio timers
and a file system that is a dict; the full simulation has its own (tests/kit/env.py).
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.batches import iter_batches, read_head, records
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.control import TransactionMarker, pack_marker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.coordinator import Coordinator
from kafkawire.groups.event_log import GroupEventLog
from kafkawire.groups.model.request import Client
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.partition import Partition
from tests.kit.env import OffloadWorker
from tests.kit.groups.requests import KIND_OF
from tests.kit.groups.script import GroupSettings

Callback = Callable[[BaseException | None], None]


@dataclass
class FakePlan:
    """Whole batches from an offset on."""

    partition: FakePartition
    start: int
    max_bytes: int
    end: int


class FakeCommitLog:
    """Callbacks triggered by hand. `reads` is clear while reads are held back."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.partitions: list[FakePartition] = []
        self.by_itself = False  # commit at the end of each write batch, as a fast disk would
        self.reads = asyncio.Event()
        self.reads.set()

    def after_commit(self, fn: Callback) -> None:
        self.callbacks.append(fn)
        if self.by_itself:
            asyncio.get_running_loop().call_soon(self.commit)

    async def wait_until_committed(self) -> None:
        if not any(p.next_appended != p.high_watermark for p in self.partitions):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(failure: BaseException | None) -> None:
            if done.done():
                return  # cancelled
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

        self.after_commit(tell)
        await done

    async def read(self, plan: FakePlan) -> list[bytes]:
        await asyncio.sleep(0)
        await self.reads.wait()
        found: list[bytes] = []
        size = 0
        for batch in plan.partition.batches:
            head = read_head(batch)
            if head.last_offset < plan.start or head.base_offset >= plan.end:
                continue
            if found and size + len(batch) > plan.max_bytes:
                break
            found.append(bytes(batch))
            size += len(batch)
        return found

    def commit(self) -> None:
        """Make everything appended durable."""
        callbacks, self.callbacks = self.callbacks, []
        for partition in self.partitions:
            partition.high_watermark = partition.next_offset = partition.next_appended
        for fn in callbacks:
            fn(None)

    def fail(self) -> None:
        """Fail the open write batch: nothing of it is kept."""
        callbacks, self.callbacks = self.callbacks, []
        for partition in self.partitions:
            partition.lose_uncommitted()
        for fn in callbacks:
            fn(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone"))


class FakePartition:
    """One partition of the offsets topic."""

    def __init__(self, log: FakeCommitLog, index: int = 0) -> None:
        self.log = log
        self.index = index
        self.topic = "__consumer_offsets"
        self.topic_id = b"t" * 16
        self.config = TopicConfig({"cleanup.policy": "compact"})
        self.batches: list[bytearray] = []
        self.log_start = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.next_appended = 0
        self.removed = False
        self.resigned = False
        self.epochs = [(0, 0)]
        self.refuse: ErrorCode | None = None
        self.guards: list[object] = []
        log.partitions.append(self)

    def after_commit(self, fn: Callback) -> None:
        self.log.after_commit(fn)

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1][0]

    @leader_epoch.setter
    def leader_epoch(self, epoch: int) -> None:
        while self.epochs and self.epochs[-1][1] >= self.next_offset:
            self.epochs.pop()
        self.epochs.append((epoch, self.next_offset))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the end of a leader epoch, as the log does."""
        partition: Any = self
        return Partition.epoch_end(partition, epoch)

    def append(self, batch: memoryview, now_ms: int) -> None:
        if self.refuse is not None:
            raise KafkaError(self.refuse)
        head = read_head(batch)
        kept = bytearray(batch)
        kept[0:8] = self.next_appended.to_bytes(8, "big")
        self.batches.append(kept)
        self.next_appended += head.count

    append_records = append

    def append_offsets(self, batch: memoryview, guard: object, now_ms: int) -> None:
        """Append a batch of TxnOffsetCommit, as the log does."""
        self.guards.append(guard)
        self.append(batch, now_ms)

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> None:
        """Append a control batch, as the log does."""
        batch = pack_marker(
            marker.producer_id, marker.epoch, marker.coordinator_epoch, marker.kind, now_ms
        )
        self.append(memoryview(batch), now_ms)

    def lose_uncommitted(self) -> None:
        self.batches = [b for b in self.batches if read_head(b).base_offset < self.high_watermark]
        self.next_appended = self.next_offset = self.high_watermark

    def plan(self, offset: int, max_bytes: int, end: int, first: bool) -> FakePlan:
        return FakePlan(self, offset, max_bytes, end)

    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of everything appended."""
        return [
            (record.key, record.value)
            for batch in self.batches
            for position, _ in iter_batches(batch)
            for record in records(batch, position)
        ]


@dataclass
class FakeClock:
    """A wall clock set by hand; the loop's own for measuring."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class FakeFile:
    def __init__(self, data: bytearray) -> None:
        self.data = data

    def pwritev(self, buffers: Any, position: int) -> int:
        part = b"".join(buffers)
        self.data[position : position + len(part)] = part
        return len(part)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self.data[position : position + length])

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]

    def size(self) -> int:
        return len(self.data)

    def sync(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class FakeFs:
    """Files in a dict; `full` makes writes take only a part."""

    files: dict[str, bytearray] = field(default_factory=dict)

    def makedirs(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...

    def open(self, path: str, *, create: bool = False) -> FakeFile:
        if path not in self.files and not create:
            raise FileNotFoundError(path)
        return FakeFile(self.files.setdefault(path, bytearray()))

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        self.files.pop(path, None)


class InlineOffload:
    def submit(self, pool: str, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(fn(*args))
        except OSError as error:
            future.set_exception(error)
        return future

    def close(self) -> None: ...


def fake_env() -> Env:
    """An Env with a clock set by hand and files in a dict."""
    clock: Any = FakeClock()
    fs: Any = FakeFs()
    offload: Any = InlineOffload()
    seeded: Any = random.Random(7)
    return Env(clock, seeded, fs, offload, {}, OffloadWorker(offload, fs))


def id_of(topic: str) -> bytes:
    """The id of a topic in FakeTopics, also after it was deleted."""
    return topic.encode().rjust(16, b".")


class FakeTopics(dict[str, int]):
    """Topics by name, with their numbers of partitions; the id of a topic is made of its name."""

    def topic_revision(self) -> tuple[int, int]:
        return zlib.crc32(",".join(self).encode()), sum(self.values())

    def topic_id(self, name: str) -> bytes | None:
        return id_of(name) if name in self else None

    def topic_name(self, topic_id: bytes) -> str | None:
        name = topic_id.lstrip(b".").decode()
        return name if name in self else None

    def topic_size(self, name: str) -> int | None:
        return self.get(name)

    def topic_names(self) -> list[str]:
        return list(self)


class Bench:
    """One coordinator on a fake log, and short forms of the calls that tests make."""

    def __init__(self, env: Env | None = None, **changed: Any) -> None:
        self.env = env or fake_env()
        self.log = FakeCommitLog()
        self.partition = FakePartition(self.log)
        self.settings = GroupSettings(**changed)
        self.topics = FakeTopics({"t": 1, "u": 1})
        self.coordinator = self.make()

    def make(self) -> Coordinator:
        log: Any = self.log
        partition: Any = self.partition
        events = GroupEventLog(self.env.clock.monotonic)
        return Coordinator(
            self.env, self.settings, partition, log, "/groups", self.topics, events
        )  # fmt: skip

    @property
    def active(self) -> bool:
        return self.coordinator.phase is CoordinatorPhase.ACTIVE

    def begin(self) -> Bench:
        self.coordinator.begin_empty()
        return self

    async def reload(self) -> Bench:
        """Restart: another coordinator over what is committed."""
        self.coordinator.timers.clear()
        self.partition.lose_uncommitted()
        self.coordinator = self.make()
        await self.coordinator.load()
        assert self.active
        return self

    def ask(self, request: Any, version: int = 9, fresh_id: str = "id") -> asyncio.Future[Any]:
        return self.coordinator.handle_request(
            KIND_OF[type(request)], request, version, Client("c", "/h"), fresh_id
        )

    async def now(self, request: Any, version: int = 9) -> Any:
        """Ask, and commit until there is a response."""
        future = self.ask(request, version)
        for _ in range(10):
            if future.done():
                break
            await asyncio.sleep(0)
            self.log.commit()
        assert future.done()
        return future.result()
