"""A fixed conversation of transactional clients with a whole broker, which a fault interrupts.

The conversation has a transaction of every kind: committed, aborted, timed out, fenced, over some
partitions, with offsets, of both versions, at the last epoch of a producer id, and of an id that
expires; segments are cut and uploaded meanwhile. It runs once to count its points (each
change of a file and of SQL), then once for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from kafkawire.transactions.machine.records import TransactionRecord, batches_of
from kafkawire.transactions.machine.transaction import Transaction
from tests.kit.exactly_once.checker import check
from tests.kit.exactly_once.clients import GROUP, Work, copy
from tests.kit.exactly_once.history import Key, Partition
from tests.kit.exactly_once.producer import Abortable, Fenced, Transactional
from tests.kit.exactly_once.reader import finish, poll
from tests.kit.exactly_once.simulation import (
    COPIES,
    DONE_WITHIN_S,
    PLAIN,
    SOURCES,
    TIERED,
    Violations,
    prepare,
)
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.tier.crash_points import Points

A0, A1, B0 = SOURCES[0], SOURCES[1], PLAIN[0]
VERSIONS = {"one": (1, 11), "two": (2, 12), "last": (2, 12), "copy": (2, 12), "copy-1": (1, 10)}
LAST_EPOCHS = 32_764
NEVER_LEASED = 1_000_000_000
"""A producer id that the broker does not give in a test."""
EXPIRATION_MS = 6_000

Step = Callable[[Transactional], Awaitable[None]]


class FaultyPoint(Points):
    """At one point a disk fails in place of the process: it is "full" for a second, or the next
    "write" or "sync" fails."""

    def __init__(self, at: int, fault: str) -> None:
        super().__init__(-1)
        self.at, self.fault = at, fault
        self.world: World | None = None

    def hit(self, name: str) -> None:
        super().hit(name)
        world = self.world
        if world is None or not self.on or len(self.names) - 1 != self.at:
            return
        faults = world.fs.faults
        if self.fault == "full":
            faults.room_bytes = 0
            world.later(1.0, lambda: setattr(faults, "room_bytes", None))
        elif self.fault == "write":
            faults.failing_writes = 1
        else:
            faults.failing_syncs = 1


class Script:
    """One run. `points`: of the first broker, counted from the first request of a producer on."""

    def __init__(self, points: Points, how: str = "kill") -> None:
        self.world = world = World(
            1,
            journal_bytes=1 << 14,
            transactional_id_expiration_ms=EXPIRATION_MS,
            transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
        )
        world.points, world.how = points, how
        if isinstance(points, FaultyPoint):
            points.world = world
        self.points = points
        everything = SOURCES + PLAIN
        self.work = Work(lambda: SimNet(world), world.history, everything, VERSIONS, hurry=True)

    def run(self) -> Script:
        """Run to the end. Raises Violations."""
        self.world.run(self.main())
        found = check(self.world.history)
        if found:
            raise Violations(found)
        return self

    async def main(self) -> None:
        world = self.world
        assert await world.start()
        await prepare(SimNet(world), TIERED)
        assert world.broker is not None
        await last_epochs(world, "last")
        self.points.on = True
        clients = [
            world.spawn(self.client("one", [self.commit, self.abort, self.time_out, self.commit])),
            world.spawn(self.client("two", [self.commit, self.commit, self.abort, self.leave])),
            world.spawn(self.client("last", [self.commit] * 3)),
            world.spawn(self.client("copy", [copier(A0, COPIES[0])] * 3)),
            world.spawn(self.client("copy-1", [copier(A1, COPIES[1])] * 2)),
            world.spawn(self.read()),
        ]
        await self.until_done(clients)
        await world.sleep(EXPIRATION_MS / 1000 + 2)  # cuts, uploads; ids expire
        again = [world.spawn(self.client(name, [self.commit])) for name in ("one", "two")]
        await self.until_done(again)
        self.points.on = False
        keys: list[Key] = [(GROUP, *each) for each in SOURCES]
        await finish(SimNet(world), world.history, SOURCES + PLAIN + COPIES, keys)

    async def until_done(self, clients: list[asyncio.Task[Any]]) -> None:
        """Start the broker again whenever it has ended."""
        world = self.world
        began = world.loop.now
        while not all(task.done() for task in clients):
            assert world.loop.now - began < DONE_WITHIN_S, "clients wait forever"
            await world.sleep(0.1)
            broker = world.broker
            assert broker is not None
            if not broker.over and broker.log.commit_log.failed is not None:
                broker.end(world.how)  # as an operator does: nothing is written any more
            if broker.over:
                await world.bury()
                world.fs.faults.failing_syncs = 0
                while not await world.start():
                    pass
        for task in clients:
            task.result()

    async def client(self, transactional_id: str, steps: list[Step]) -> None:
        """Take the steps, by one instance after another where one is fenced."""
        left = list(steps)
        while left:
            instance = self.work.instance(transactional_id)
            try:
                await instance.init()
                while left:
                    await left[0](instance)
                    left.pop(0)
                    await self.world.sleep(0.3)
            except Fenced:
                if left and left[0] in (self.leave, self.time_out):
                    left.pop(0)

    async def send_all(self, instance: Transactional) -> None:
        attempt = instance.begin()
        for number, partition in enumerate((A0, A1, B0)):
            await instance.send(partition, [f"{attempt}/{number}.{n}" for n in range(2)])

    async def commit(self, instance: Transactional) -> None:
        """A transaction over three partitions that commits, in a second try if it must."""
        try:
            await self.send_all(instance)
            await instance.commit()
        except Abortable:
            await instance.abort()

    async def abort(self, instance: Transactional) -> None:
        with suppress(Abortable):
            await self.send_all(instance)
        await instance.abort()

    async def leave(self, instance: Transactional) -> None:
        """Die with an open transaction, which the next instance fences."""
        with suppress(Abortable):
            await self.send_all(instance)
        raise Fenced

    async def time_out(self, instance: Transactional) -> None:
        """Wait until the broker has aborted the transaction."""
        short = self.work.instance(instance.id)
        short.timeout_ms = 500
        await short.init()
        with suppress(Abortable):
            await self.send_all(short)
        await self.world.sleep(1.5)
        raise Fenced

    async def read(self) -> None:
        """Read what is committed, from the start, some times."""
        net = SimNet(self.world)
        for _ in range(4):
            for partition in SOURCES + PLAIN:
                page = await poll(net, self.world.history, "r", partition, 0, 1 << 20)
                if page is not None and page.end > 2:
                    await poll(net, self.world.history, "r", partition, page.end // 2, 500)
            await self.world.sleep(0.7)


def copier(source: Partition, target: Partition) -> Step:
    """Copy some rows, once there are some."""
    step = copy(source, target)

    async def act(instance: Transactional) -> None:
        work = Work(lambda: instance.net, instance.history, [source])
        before = instance.count
        while instance.count == before:
            await step(work, instance)

    return act


async def last_epochs(world: World, transactional_id: str) -> None:
    """Store an id whose producer has few epochs left, and have the broker load it."""
    broker = world.broker
    assert broker is not None
    service = broker.parts.transactions
    coordinator = service.find_coordinator(transactional_id)
    assert coordinator is not None
    now_ms = broker.env.clock.now_ms()
    at = Transaction(NEVER_LEASED, LAST_EPOCHS, 20_000, updated_ms=now_ms)
    record = TransactionRecord(transactional_id, at)
    for batch in batches_of([record], 100_000, 2, now_ms):
        coordinator.partition.append(memoryview(bytearray(batch)), now_ms)
    await broker.log.commit_log.wait_until_committed()
    coordinator.reload()
    while coordinator.phase.value:
        await world.sleep(0.05)
    assert transactional_id in coordinator.shard.transactions
