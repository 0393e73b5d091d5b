"""Partitions are handed over between two logs in one data folder, seeded, with crashes.

Writers append, readers read, log starts move, segments are cut and merged. A move hands over,
changes the leader in the database or fails, and each node learns of it at its own time. A process
is killed, or the power fails for both, at any write or sync of the disk. It must hold:

- a record that was acknowledged is found with its value by the leader of the moment, and no offset
  has two values;
- rows of a partition are written by its leader only (tests.kit.log.moving checks that);
- nothing of a moved partition is left in journals alone.

With `seizes` the leader also changes without a cut. Then what was acknowledged above the end of the
segments may be lost, and still no offset that the leader of the moment serves has two values.

`SIM_SEEDS=500 pytest tests/log/test_handover_simulation.py` runs more. The mutations at the end
must be found within a few of them.

Covers: kafkawire.log.handover.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest

from kafkawire.codec.errors import AbsentOffsets, ErrorCode, KafkaError
from kafkawire.log.handover import HandOver
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.partition.loader import Loader
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from kafkawire.log.recovery.earlier_terms import EarlierTerms
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.storage.memory import MemoryStorage
from tests.kit.env import EPOCH_MS, sim_env
from tests.kit.leaders import move
from tests.kit.log.life import expect
from tests.kit.log.logs import batch, values
from tests.kit.log.moving import Node
from tests.kit.memfs import MemFile, MemFileSystem, MemLock
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import SimLoop, run

SEEDS = int(os.environ.get("SIM_SEEDS", "40"))
MUTANT_SEEDS = 80
PARTITIONS = 3
MOVES = 6
MOST_ROUNDS = 40
T = TypeVar("T")


class Died(Exception):
    """The process of the call has ended."""


class ProcessFiles(MemFileSystem):
    """The machine's disk as one process sees it, until it ends."""

    def __init__(self, disk: MemFileSystem, pause: Callable[[str], None]) -> None:
        super().__init__(disk.rng, pause)
        self.files, self.folders, self.durable = disk.files, disk.folders, disk.durable
        self._changes, self.locks = disk._changes, disk.locks
        self.held: set[str] = set()

    def end(self) -> None:
        """End the process: nothing of it changes the disk any more."""
        self.life += 1
        self.locks -= self.held
        self.files, self.durable, self._changes = {}, {}, {}
        self.folders, self.locks = {"/"}, set()

    def open(self, path: str, *, create: bool = False) -> MemFile:
        if self.life:
            raise OSError(errno.EIO, "this process has crashed")
        return super().open(path, create=create)

    def rename(self, old: str, new: str) -> None:
        if self.life:
            raise OSError(errno.EIO, "this process has crashed")
        super().rename(old, new)

    def lock(self, path: str) -> MemLock:
        self.held.add(path)
        return super().lock(path)


class Life(Node):
    """A node that is started again after its process has ended."""

    def __init__(
        self,
        node_id: int,
        loop: SimLoop,
        rng: random.Random,
        database: MemoryDatabase,
        disk: MemFileSystem,
        step: Callable[[Life], None],
        seizes: bool,
    ) -> None:
        super().__init__(node_id, loop, rng, database)
        self.loop, self.disk, self.step, self.seizes = loop, disk, step, seizes
        self.died = asyncio.Event()
        self.alive = self.up = self.has_log = self.faulty = False

    async def begin(self, known: dict[int, tuple[int, int]]) -> None:
        """Start a process."""
        self.died, self.has_log, self.alive = asyncio.Event(), False, True
        self.fs = ProcessFiles(self.disk, lambda _: self.step(self))
        self.env = sim_env(self.loop, self.rng, self.fs)
        self.metadata = MemoryMetadata(self.database, self._pause, self._fault)
        self.following = asyncio.Lock()
        await self.during(self.start(known))
        self.up = self.has_log = True

    def _fault(self, method: str) -> Exception | None:
        wrong = self.faulty and self.rng.random() < 0.2
        return MetadataError(f"{method}: the database is away") if wrong else None

    def end(self) -> None:
        """End the process; the disk is left to the caller."""
        self.alive = self.up = False
        self.died.set()
        self.fs.end()
        self.metadata.crash()
        self.env.offload.close()
        if self.has_log:
            self.log.commit_log.disk_sink.stop()
        for task in list(self.env.tasks):
            task.cancel()

    async def during(self, call: Awaitable[T]) -> T:
        """Await a call of the process. Died if the process ends first."""
        ended = self.died  # of this process; the next one has another
        task = asyncio.ensure_future(call)
        died = asyncio.ensure_future(ended.wait())
        await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if ended.is_set():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise Died
        return task.result()

    async def learn(self, numbers: list[int], leader: int) -> None:
        """Learn from the database who leads, after a while."""
        async with self.following:
            await self.env.sleep(self.rng.random() * 0.02)
            before = {number: self.catalog.leader_of(number) for number in numbers}
            assert self.database.catalog is not None
            group = self.database.catalog.group(leader)
            assert group is not None
            self.catalog.set_groups([group])
            for number in numbers:
                location = self.database.catalog.locate(number)
                assert location is not None
                base = location.leader_epoch - group.epoch
                self.catalog.move_partition(number, group.id, base)
            if leader == self.node_id:
                await self.log.lead([n for n in numbers if before[n] != leader])
            else:
                await self.log.resign([n for n in numbers if before[n] == self.node_id])
                assert self.seizes or not self.log.leadership.kept


class TwoProcesses:
    """Two nodes of one machine, their clients, and what was answered to these."""

    def __init__(self, seed: int, *, seizes: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seizes = seizes
        self.absent: set[tuple[int, int]] = set()  # acknowledged, and left at another node
        self.loop = SimLoop()
        self.database = MemoryDatabase(seed)
        self.disk = MemFileSystem(self.rng)
        self.nodes = [
            Life(number, self.loop, self.rng, self.database, self.disk, self._step, seizes)
            for number in (1, 2)
        ]
        self.known: dict[int, tuple[int, int]] = {}
        self.stored: dict[tuple[int, int], bytes] = {}  # acknowledged, or read
        self.trimmed = dict.fromkeys(range(PARTITIONS), 0)
        self.steps_left = -1
        self.moves = self.rounds = self.seized = self.sent = self.acked = self.crashes = (
            self.failed
        ) = 0
        self.restarting = asyncio.Lock()

    async def main(self) -> None:
        first = self.nodes[0]
        metadata = MemoryMetadata(self.database)
        await metadata.open()
        for number in (2, 1):
            await metadata.register_broker(number, {}, None)
        await metadata.create_topics([NewTopic("t", [1] * PARTITIONS, {})])
        for node in self.nodes:
            await node.begin(self.known)
        self.numbers = [row.number for row in first.catalog.by_name["t"].partitions]
        clients = [asyncio.ensure_future(self.writer()) for _ in range(3)]
        clients += [asyncio.ensure_future(self.reader(index)) for index in range(PARTITIONS)]
        clients += [asyncio.ensure_future(self.trimmer()), asyncio.ensure_future(self.crasher())]
        mover = asyncio.ensure_future(self.mover())
        await asyncio.wait([mover, *clients], return_when=asyncio.FIRST_COMPLETED)
        for task in (mover, *clients):
            if task.done():
                task.result()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        self.steps_left = -1
        await self.restart()
        for index in range(PARTITIONS):
            await self.check(index)

    # -- crashes

    def _step(self, node: Life) -> None:
        """A process is about to write or sync."""
        if self.steps_left == 0:
            self.steps_left = -1
            self._crash(node)
            raise OSError(errno.EIO, "this process has crashed")
        self.steps_left -= self.steps_left > 0

    def _crash(self, node: Life) -> None:
        self.crashes += 1
        power = self.rng.random() < 0.3
        for each in self.nodes if power else [node]:
            if each.alive:
                each.end()
        if power:
            self.disk.crash()

    async def restart(self) -> None:
        """Start what has ended."""
        async with self.restarting:
            for node in self.nodes:
                while not node.up:
                    with suppress(Died):
                        await node.begin(self.known)

    async def crasher(self) -> None:
        while True:
            await self.pause(0.2)
            if self.rng.random() < 0.5:
                self.steps_left = self.rng.randrange(60)
            await self.restart()

    # -- clients

    async def pause(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.random() * most_s)

    async def found(self, index: int) -> tuple[Life, Partition]:
        """Return the leader of a partition, as clients find it."""
        while True:
            for node in self.nodes:
                if not node.up:
                    continue
                try:
                    return node, await node.during(node.find(index))
                except KafkaError as failure:
                    if failure.code != ErrorCode.KAFKA_STORAGE_ERROR:  # a fault while loading
                        expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                except (Died, OSError):
                    pass
            await self.pause(0.01)

    def note(self, index: int, offset: int, value: bytes | None) -> None:
        """A value was acknowledged or read: the offset has no other."""
        assert value is not None
        self.absent.discard((index, offset))
        known = self.stored.setdefault((index, offset), value)
        assert known == value, f"offset {offset} of {index} is {known[:9]!r} and {value[:9]!r}"

    async def writer(self) -> None:
        while True:
            await self.pause(0.01)
            index = self.rng.randrange(PARTITIONS)
            node, partition = await self.found(index)
            value = b"%d:" % self.sent + bytes(self.rng.randrange(300))
            self.sent += 1
            try:
                data = batch(value, timestamp_ms=EPOCH_MS)
                done = partition.append(data, node.env.clock.now_ms())
            except KafkaError as failure:
                expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            node.log.commit_log.after_commit(
                self._acknowledge(node, partition, done.base_offset, value)
            )

    def _leads(self, node: Life, partition: Partition) -> bool:
        """Whether a node leads a partition in the term of this object, according to the
        database."""
        assert self.database.catalog is not None
        location = self.database.catalog.locate(partition.number)
        return (
            location is not None
            and location.leader == node.node_id
            and location.leader_epoch == partition.leader_epoch
        )

    def _acknowledge(
        self, node: Life, partition: Partition, offset: int, value: bytes
    ) -> Callable[[BaseException | None], None]:
        died, index = node.died, partition.index

        def acknowledged(failure: BaseException | None) -> None:
            if failure is None and not died.is_set() and self._leads(node, partition):
                self.acked += 1
                self.note(index, offset, value)

        return acknowledged

    async def reader(self, index: int) -> None:
        offset = 0
        while True:
            await self.pause(0.02)
            node, partition = await self.found(index)
            offset = max(offset, partition.log_start)
            if offset < partition.high_watermark:
                offset = await self.read(node, partition, offset)

    async def read(self, node: Life, partition: Partition, offset: int) -> int:
        """Read, and return where to read next."""
        try:
            plan = partition.plan(offset, 1 << 20, partition.high_watermark, True)
            if isinstance(plan, HotRead):
                views, release = partition.log.views(plan)
                got = values(list(views))
                release()
            else:
                got = values(await node.during(partition.log.read(plan)))
        except (Died, OSError):
            return offset
        except AbsentOffsets as failure:
            assert self.seizes
            return failure.end
        except KafkaError as failure:
            if failure.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return max(offset, partition.log_start)
        if not self._leads(node, partition):
            return offset  # a reader of a leader that does not know yet; it may read anything
        for at, value in got:
            if at >= offset:
                self.note(partition.index, at, value)
        return max([offset, *(at + 1 for at, _ in got)])

    async def trimmer(self) -> None:
        while True:
            await self.pause(0.3)
            index = self.rng.randrange(PARTITIONS)
            node, partition = await self.found(index)
            target = partition.log_start + self.rng.randrange(10)
            if target <= partition.high_watermark:
                self.trimmed[index] = max(self.trimmed[index], target)
                try:
                    await node.during(partition.delete_records(target))
                except KafkaError as failure:
                    expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                except (Died, OSError):
                    pass

    # -- moves

    async def mover(self) -> None:
        while self.moves < MOVES and self.rounds < MOST_ROUNDS:
            await self.pause(0.3)
            await self.restart()
            indexes = self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
            source = self.database.leader_of(self.numbers[indexes[0]])
            numbers = [self.numbers[index] for index in indexes]
            numbers = [each for each in numbers if self.database.leader_of(each) == source]
            old, new = self.nodes if source == 1 else self.nodes[::-1]
            if self.seizes and self.rng.random() < 0.3:
                self.seize(new, numbers)
            else:
                with suppress(Died, OSError):
                    await old.during(self.move(old, new, numbers))
            await self.agree(numbers)
            self.rounds += 1

    async def move(self, old: Life, new: Life, numbers: list[int]) -> None:
        old.faulty = self.rng.random() < 0.3
        try:
            handed = await old.log.hand_over(numbers)
        except MetadataError:
            self.failed += 1
            return
        finally:
            old.faulty = False
        assert self.seizes or handed.ready == sorted(numbers), handed.refused
        await self.pause(0.01)
        if self.rng.random() < 0.3 or handed.refused:
            self.failed += 1
            old.log.resume(handed.ready)
            return
        assert self.database.catalog is not None
        move(self.database.catalog, numbers, new.node_id)
        self.moves += 1

    def seize(self, new: Life, numbers: list[int]) -> None:
        """Change the leader although nothing was cut. The next leader continues at the end of what
        is stored; what the old one has above it is lost, and what no segment has cannot be read."""
        assert self.database.catalog is not None
        storage = MemoryStorage(self.database.offsets, 0, lambda: 0)
        for number in numbers:
            row = storage._partition(number)
            index = self.numbers.index(number)
            cut = max([0, *(mapping.end_offset for mapping in row.mappings)])
            end = max(cut, row.checkpoint.next_offset if row.checkpoint is not None else 0)
            for at in [at for key, at in self.stored if key == index and at >= cut]:
                if at >= end:
                    del self.stored[index, at]
                self.absent.add((index, at))
        move(self.database.catalog, numbers, new.node_id)
        self.seized += 1

    async def agree(self, numbers: list[int]) -> None:
        """Have both nodes learn who leads now."""
        for node in self.rng.sample(self.nodes, 2):
            while True:
                await self.restart()
                by_leader: dict[int, list[int]] = {}
                for number in numbers:
                    leader = self.database.leader_of(number)
                    assert leader is not None
                    if node.catalog.leader_of(number) != leader:
                        by_leader.setdefault(leader, []).append(number)
                try:
                    for leader, some in by_leader.items():
                        await node.during(node.learn(some, leader))
                    break
                except (Died, OSError):
                    pass

    async def check(self, index: int) -> None:
        """Read everything again."""
        node, partition = await self.found(index)
        await partition.log.wait_until_committed()
        assert partition.log_start <= self.trimmed[index]
        offset, end = partition.log_start, partition.high_watermark
        wanted = {at for key, at in self.stored.keys() - self.absent if key == index}
        wanted = {at for at in wanted if at >= offset}
        seen: set[int] = set()
        while offset < end:
            before, offset = offset, await self.read(node, partition, offset)
            assert offset > before
            seen.update(range(before, offset))
        assert wanted <= seen, f"offsets {sorted(wanted - seen)} of {index} are gone"


def simulate(seed: int, *, seizes: bool = False) -> TwoProcesses:
    world = TwoProcesses(seed, seizes=seizes)
    run(world.loop, world.main())
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_hand_overs_lose_nothing(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.parametrize("first", range(0, SEEDS // 2, AT_ONCE))
def test_changes_without_a_cut_mix_nothing(first: int) -> None:
    run_seeds(partial(simulate, seizes=True), first, SEEDS)


def found_by_simulation(*, seizes: bool = False) -> bool:
    with quiet():
        for seed in range(MUTANT_SEEDS):
            try:
                simulate(seed, seizes=seizes)
            except Exception:
                return True
    return False


@pytest.mark.slow
def test_mutation_appends_during_a_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "close_appends", lambda self: None)
    assert found_by_simulation()


@pytest.mark.slow
def test_mutation_move_without_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(HandOver, "_cut", nothing)
    monkeypatch.setattr(HandOver, "_refuse_uncut", lambda *_: None)
    assert found_by_simulation()


@pytest.mark.slow
def test_mutation_segments_of_others_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(SegmentStore, "learn", nothing)
    assert found_by_simulation()


@pytest.mark.slow
def test_mutation_records_of_earlier_terms_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: EarlierTerms, found: object, number: int, rows: IndexColumns) -> object:
        return rows

    monkeypatch.setattr(EarlierTerms, "current", all_of_them)
    assert found_by_simulation(seizes=True)


@pytest.mark.slow
def test_mutation_epoch_is_not_stored_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(Loader, "_begin_terms", nothing)
    assert found_by_simulation(seizes=True)
