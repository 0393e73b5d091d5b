"""The leadership of partitions moves to and fro between two logs over one database, seeded.

Writers append, readers read and wait, journals are cut, checkpoints stored. Before a move appends
of the partitions stop, and everything is cut; then the leader changes. Each node learns of that at
its own time. Some moves are late: more is appended before the old leader learns of them, which is
lost. It must hold:

- only NOT_LEADER_OR_FOLLOWER is answered, and every waiting reader wakes up;
- a record that was acknowledged before a move is found with its value, and no offset has two;
- rows of a partition are written by its leader only, and those of an earlier term never
  (tests.kit.log.moving checks that).

`SIM_SEEDS=500 pytest tests/log/test_leadership_simulation.py` runs more.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import NewTopic
from tests.kit.env import EPOCH_MS
from tests.kit.leaders import move
from tests.kit.log.life import expect
from tests.kit.log.logs import batch
from tests.kit.log.moving import Node, read
from tests.kit.memory_metadata import MemoryDatabase
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import SimLoop, run

SEEDS = int(os.environ.get("SIM_SEEDS", "50"))
PARTITIONS = 3
MOVES = 8


class TwoLogs:
    """Two nodes, their clients, and what was answered to these."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop()
        self.database = MemoryDatabase(seed)
        self.nodes = [Node(number, self.loop, self.rng, self.database) for number in (1, 2)]
        self.stored: dict[tuple[int, int], bytes] = {}  # acknowledged, or read
        self.stopped: set[int] = set()  # indexes that are being moved
        self.moves = self.sent = self.reads = self.wakes = 0
        self.trace: list[object] = []

    async def main(self) -> None:
        first, second = self.nodes
        await first.metadata.open()
        await first.metadata.register_broker(1, {}, None)
        await first.metadata.create_topics([NewTopic("t", [1] * PARTITIONS, {})])
        known: dict[int, tuple[int, int]] = {}
        await first.start(known)
        await second.start(known)
        self.numbers = [row.number for row in first.catalog.by_name["t"].partitions]
        env = first.env
        clients = [env.spawn(self.writer(), f"writer {at}") for at in range(3)]
        clients += [env.spawn(self.reader(index), "reader") for index in range(PARTITIONS)]
        mover = env.spawn(self.mover(), "mover")
        await asyncio.wait([mover, *clients], return_when=asyncio.FIRST_COMPLETED)
        for task in (mover, *clients):
            if task.done():
                task.result()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for index in range(PARTITIONS):
            await self.check(index)
        for node in self.nodes:
            await node.log.close()
            assert node.log.commit_log.failed in (None, "the broker is shutting down")
        self.trace.append((self.loop.now, self.sent, self.reads, self.rng.random()))

    async def pause(self, most_s: float) -> None:
        await self.nodes[0].env.sleep(self.rng.random() * most_s)

    async def found(self, index: int) -> tuple[Node, Partition]:
        """Return the leader of a partition, as clients find it."""
        while True:
            for node in self.nodes:
                try:
                    return node, await node.find(index)
                except KafkaError as failure:
                    expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await self.pause(0.01)

    def note(self, index: int, offset: int, value: bytes | None) -> None:
        """A value was acknowledged or read: the offset has no other."""
        assert value is not None
        known = self.stored.setdefault((index, offset), value)
        assert known == value, f"offset {offset} of {index} is {known!r} and {value!r}"

    async def writer(self) -> None:
        while True:
            await self.pause(0.01)
            index = self.rng.randrange(PARTITIONS)
            if index in self.stopped:
                continue
            node, partition = await self.found(index)
            if index in self.stopped:
                continue
            self.append(node, partition)

    def append(self, node: Node, partition: Partition) -> None:
        value = b"%d:" % self.sent + bytes(self.rng.randrange(300))
        self.sent += 1
        try:
            done = partition.append(batch(value, timestamp_ms=EPOCH_MS), node.env.clock.now_ms())
        except KafkaError as failure:
            expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return

        def acknowledged(failure: BaseException | None) -> None:
            if failure is None and not partition.resigned:
                self.note(partition.index, done.base_offset, value)

        node.log.commit_log.after_commit(acknowledged)

    async def reader(self, index: int) -> None:
        offset = 0
        while True:
            _, partition = await self.found(index)
            if offset >= partition.high_watermark:
                await self.wait(partition)
                continue
            offset = await self.read_once(partition, index, offset)

    async def read_once(self, partition: Partition, index: int, offset: int) -> int:
        """Read, and return where to read next."""
        try:
            got = await read(self.nodes, partition, offset)
        except KafkaError as failure:
            expect(failure, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            assert partition.resigned
            return offset
        if partition.resigned:
            return offset  # a late move may have lost it meanwhile
        for at, value in got:
            self.note(index, at, value)
            self.reads += 1
        return got[-1][0] + 1

    async def wait(self, partition: Partition) -> None:
        """Wait for records, as a parked Fetch does."""
        woken = asyncio.Event()

        def wake(_: Partition) -> None:
            woken.set()

        partition.watch(wake)
        try:
            async with asyncio.timeout(1.0):
                await woken.wait()
                self.wakes += 1
        except TimeoutError:
            assert not partition.resigned, "a reader was not woken"
        finally:
            partition.unwatch(wake)

    async def mover(self) -> None:
        for _ in range(MOVES):
            await self.pause(0.3)
            indexes = self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
            source = self.database.leader_of(self.numbers[indexes[0]])
            numbers = [self.numbers[index] for index in indexes]
            numbers = [each for each in numbers if self.database.leader_of(each) == source]
            indexes = [self.numbers.index(each) for each in numbers]
            old, new = self.nodes if source == 1 else self.nodes[::-1]
            self.stopped.update(indexes)
            await self.cut(old, numbers)
            if self.rng.random() < 0.4:
                await self.change_late(numbers, old, new)
            else:
                self.change(numbers, new)
                await asyncio.gather(*(node.follow(numbers, new.node_id) for node in self.nodes))
            self.stopped.difference_update(indexes)

    async def cut(self, node: Node, numbers: list[int]) -> None:
        """Cut everything of the partitions into segments, and store their states."""
        log = node.log
        await log.commit_log.disk_sink.wait_until_durable()
        while any(
            each.cut_offset < each.next_offset
            for number in numbers
            if (each := log.partitions.get(number)) is not None
        ):
            if log.journals.ready:
                log.commit_log.roll()
            else:
                log.journals.prepare(again=True)
            await node.env.sleep(0.02)
        await log.checkpoint()

    def change(self, numbers: list[int], new: Node) -> None:
        """Change the leader in the database."""
        assert self.database.catalog is not None
        move(self.database.catalog, numbers, new.node_id)
        self.moves += 1

    async def change_late(self, numbers: list[int], old: Node, new: Node) -> None:
        """Change the leader while the old one appends: the new one does not get that."""
        await old.log.loader.load(numbers)
        ends = {number: old.log.loader.get(number).next_offset for number in numbers}
        for number in numbers:
            self.append(old, old.log.loader.get(number))
        self.change(numbers, new)
        self.stopped.difference_update(self.numbers.index(number) for number in numbers)
        await old.follow(numbers, new.node_id)
        for number, end in ends.items():
            index = self.numbers.index(number)
            for at in [key for key in self.stored if key[0] == index and key[1] >= end]:
                del self.stored[at]
        await new.follow(numbers, new.node_id)

    async def check(self, index: int) -> None:
        """Read everything again."""
        _, partition = await self.found(index)
        await partition.log.wait_until_committed()
        offset = partition.log_start
        seen: set[int] = set()
        while offset < partition.high_watermark:
            before = offset
            offset = await self.read_once(partition, index, offset)
            seen.update(range(before, offset))
        missing = {at for key, at in self.stored if key == index} - seen
        assert not missing, f"offsets {missing} of {index} are gone"


def simulate(seed: int) -> TwoLogs:
    world = TwoLogs(seed)
    run(world.loop, world.main())
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_leadership_moves_to_and_fro(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run_and_moves() -> None:
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.trace == again.trace
    assert once.moves == MOVES
    assert once.reads
    assert once.wakes
