"""Clients that do everything transactional at once, over any network, until they are stopped.

Writers and copiers (consume-transform-produce) take over their transactional ids again and again,
while the instance before may still be at work: those are the zombies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.kit.exactly_once.history import History, Key, Partition
from tests.kit.exactly_once.producer import Abortable, Fenced, Lost, Net, Transactional
from tests.kit.exactly_once.reader import (
    COMMITTED,
    Gone,
    check_offset,
    fetch,
    poll,
)

GROUP = "copy"
MAX_ROWS = 5
PAGE_BYTES = (1, 300, 2_000, 1 << 20)
"""Sizes of fetches: a single batch, some, everything."""


@dataclass
class Work:
    """The state that clients share. `net`: makes the network of one client; `over`: end soon;
    `hurry`: no transaction waits for its timeout any more; `instances`: counted by id; `prefix`: of
    their names."""

    net: Callable[[], Net]
    history: History
    partitions: list[Partition]
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    over: bool = False
    hurry: bool = False
    instances: dict[str, int] = field(default_factory=dict)
    prefix: str = ""

    def instance(self, transactional_id: str) -> Transactional:
        """The next instance of an id, on connections of its own."""
        net = self.net()
        number = self.instances[transactional_id] = self.instances.get(transactional_id, 0) + 1
        name = f"{self.prefix}{transactional_id}{number}"
        version, produce = self.versions[transactional_id]
        timeout_ms = 20_000 if self.hurry else net.rng.choice((1_500, 20_000, 20_000))
        return Transactional(
            net, self.history, name, transactional_id, version, produce, timeout_ms
        )


async def lives(
    work: Work,
    transactional_id: str,
    use: Callable[[Work, Transactional], Awaitable[None]],
    spawn: Callable[[Awaitable[None]], object],
) -> None:
    """Instances of one id, one after another, some of which overlap."""
    while not work.over:
        instance = work.instance(transactional_id)
        rng = instance.net.rng
        life = _life(work, instance, use)
        if rng.random() < 0.3:
            spawn(life)  # becomes a zombie when the next instance starts
            await instance.net.sleep(rng.random() * 1.5)
        else:
            await life


async def _life(
    work: Work, instance: Transactional, use: Callable[[Work, Transactional], Awaitable[None]]
) -> None:
    rng = instance.net.rng
    try:
        await instance.init()
        for _ in range(rng.randrange(1, 8)):
            if work.over:
                return
            await use(work, instance)
            if rng.random() < 0.1:
                return  # the client dies, whatever it has open
    except Fenced:
        return


async def write(work: Work, instance: Transactional) -> None:
    """One transaction over some partitions. Raises Fenced."""
    net = instance.net
    rng = net.rng
    attempt = instance.begin()
    try:
        for number in range(rng.randrange(1, 5)):
            partition = rng.choice(work.partitions)
            values = [f"{attempt}/{number}.{n}" for n in range(rng.randrange(1, 4))]
            await instance.send(partition, values)
            if rng.random() < 0.1:
                await net.sleep(rng.random() * (0.3 if work.hurry else 3))
            if rng.random() < 0.02:
                raise Fenced  # the client dies with an open transaction
        if rng.random() < 0.3:
            await instance.abort()
        else:
            await instance.commit()
    except Abortable:
        await instance.abort()


def copy(source: Partition, target: Partition) -> Callable[[Work, Transactional], Awaitable[None]]:
    """A copier of one partition, whose position is the group's committed offset."""
    key: Key = (GROUP, *source)

    async def step(work: Work, instance: Transactional) -> None:
        net = instance.net
        position = await check_offset(net, work.history, key, stable=True)
        if position is None:
            await net.sleep(0.1)
            return
        try:
            page = await fetch(net, source, max(position, 0), COMMITTED)
        except (Lost, Gone):
            page = None
        if page is None or not page.rows:
            await net.sleep(0.1)
            return
        rows = page.rows[: net.rng.randrange(1, MAX_ROWS)]
        attempt = instance.begin()
        for offset, _ in rows:
            work.history.consumed(attempt, GROUP, *source, offset)
        try:
            await instance.send(target, [f"{attempt}<{value}" for _, value in rows])
            await instance.commit_offsets(GROUP, {source: rows[-1][0] + 1})
            if net.rng.random() < 0.2:
                await instance.abort()
            else:
                await instance.commit()
        except Abortable:
            await instance.abort()

    return step


async def read(work: Work, name: str) -> None:
    """Read partitions from random positions on, near the end (hot) or from the start (cold)."""
    net = work.net()
    rng = net.rng
    ends: dict[Partition, int] = {}
    while not work.over:
        partition = rng.choice(work.partitions)
        position = rng.randrange(ends.get(partition, 0) + 1) if rng.random() < 0.5 else 0
        for _ in range(rng.randrange(1, 12)):
            page = await poll(net, work.history, name, partition, position, rng.choice(PAGE_BYTES))
            if page is None:
                break
            position = page.end
            ends[partition] = max(ends.get(partition, 0), position)
            await net.sleep(rng.random() * 0.2)
        await net.sleep(rng.random() * 0.2)


async def watch_offsets(work: Work, keys: list[Key]) -> None:
    """Read committed offsets, stable ones and others."""
    net = work.net()
    while not work.over:
        key, stable = net.rng.choice(keys), net.rng.random() < 0.5
        await check_offset(net, work.history, key, stable=stable)
        await net.sleep(net.rng.random() * 0.3)
