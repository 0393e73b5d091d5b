"""One seed: a whole broker through several lives, with clients that do everything at once.

Ends of lives, faults of disk, clock, network and bucket, and what clients do are decided by the
seed. In the last life nothing fails; then the clients end, and the history is judged.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.kit.exactly_once.checker import Finding, check
from tests.kit.exactly_once.clients import GROUP, Work, copy, lives, read, watch_offsets, write
from tests.kit.exactly_once.history import Key, Partition
from tests.kit.exactly_once.producer import Lost
from tests.kit.exactly_once.reader import finish
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.tier.crash_points import Points
from tests.kit.tier.fake_bucket import StoreFaults

SOURCES: list[Partition] = [("a", 0), ("a", 1)]
PLAIN: list[Partition] = [("b", 0)]
COPIES: list[Partition] = [("c", 0), ("c", 1)]
TIERED = {
    "remote.storage.enable": "true",
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "local.retention.ms": "1",
    "retention.ms": "-1",
}
DONE_WITHIN_S = 600.0
"""Virtual time in which every client ends; far more than their longest waits together."""
HOUR_MS = 3_600_000
UPGRADE, SAFE_DOWNGRADE = 1, 2
MAX_CLOCK_MS = 10 * HOUR_MS
"""Below producer.id.expiration.ms, after which Kafka forgets sequences too."""


class Violations(AssertionError):
    """The checker has found something."""

    def __init__(self, found: list[Finding]) -> None:
        super().__init__("\n".join(str(each) for each in found[:20]))
        self.found = found


class Simulation:
    """`lives`: how many broker processes before the last one; `seconds`: of each at most; `late`:
    the share of requests that the network delays; `version`: of all transactions; `levels`: whether
    the level of transaction.version changes meanwhile."""

    def __init__(
        self,
        seed: int,
        lives: int = 3,
        seconds: float = 8.0,
        late: float | None = None,
        version: int = 0,
        levels: bool = False,
        **values: Any,
    ) -> None:
        self.world = World(seed, **{"journal_bytes": 1 << 14, **values})
        self.rng = self.world.rng
        self.lives, self.seconds = lives, seconds
        self.levels = levels
        self.finalized: set[int] = set()
        self.late = self.rng.choice((0.0, 0.01, 0.05)) if late is None else late
        world = self.world
        self.work = Work(lambda: SimNet(world), world.history, SOURCES + PLAIN)
        for name in ("w", "x", "copy-0", "copy-1"):
            spoken = version or self.rng.choice((1, 2))
            produce = 12 if spoken == 2 else self.rng.choice((9, 10, 11))
            self.work.versions[name] = spoken, produce

    def run(self) -> Simulation:
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
        world.late = self.late
        self._begin_clients()
        troubles = [world.spawn(self.trouble())]
        if self.levels:
            troubles.append(world.spawn(self.change_levels()))
        for _ in range(self.lives):
            how = self.rng.choice(("kill", "power", "close"))
            await world.life(self.rng.random() * self.seconds, how)
            world.fs.faults.__init__()  # type: ignore[misc]
            while not await world.start():
                pass
        for trouble in troubles:
            trouble.cancel()
        await self.end()

    def _begin_clients(self) -> None:
        world, work = self.world, self.work
        self.actors = [
            lives(work, "w", write, self.spawn),
            lives(work, "x", write, self.spawn),
            read(work, "r"),
            read(work, "s"),
            watch_offsets(work, [(GROUP, *each) for each in SOURCES]),
        ]
        for number, (source, target) in enumerate(zip(SOURCES, COPIES, strict=True)):
            self.actors.append(lives(work, f"copy-{number}", copy(source, target), self.spawn))
        self.tasks = [world.spawn(actor) for actor in self.actors]

    def spawn(self, life: Awaitable[None]) -> None:
        """Run an instance concurrently with its successors."""
        coro: Any = life
        self.tasks.append(self.world.spawn(coro))

    async def end(self) -> None:
        """Let everything come to its end without faults, and read it all."""
        world, work = self.world, self.work
        world.fs.faults.__init__()  # type: ignore[misc]
        world.bucket.faults = StoreFaults(delay_s=(0.001, 0.01))
        world.late = 0.0
        work.hurry = True
        await world.sleep(2.0)
        work.over = True
        began = world.loop.now
        while not all(task.done() for task in self.tasks):
            assert world.loop.now - began < DONE_WITHIN_S, "clients wait forever"
            await world.sleep(0.5)
        for task in self.tasks:
            task.result()
        await world.sleep(self.rng.choice((0.0, 30.0)))  # the second: everything is in the tier
        keys: list[Key] = [(GROUP, *each) for each in SOURCES]
        await finish(SimNet(world), world.history, SOURCES + PLAIN + COPIES, keys)

    async def trouble(self) -> None:
        """Faults of disk, bucket and clock."""
        world, rng = self.world, self.rng
        while True:
            await world.sleep(rng.random() * 3)
            faults = world.fs.faults
            match rng.randrange(8):
                case 0:
                    faults.room_bytes = rng.randrange(2_000)
                    await world.sleep(rng.random())
                    faults.room_bytes = None
                case 1:
                    faults.short_writes = rng.randrange(1, 4)
                case 2:
                    faults.failing_writes = rng.randrange(1, 4)
                case 3 if rng.random() < 0.2:
                    faults.failing_syncs = 1
                case 4:
                    by_ms = rng.choice((-HOUR_MS, -2_000, 2_000, 25_000, HOUR_MS))
                    if abs(world.clock_ms + by_ms) < MAX_CLOCK_MS:
                        world.set_clock(by_ms)
                case 5:
                    world.bucket.faults = StoreFaults(error_rate=0.3, lost_rate=0.2)
                case 6:
                    world.bucket.faults = StoreFaults(delay_s=(0.001, 0.01))
                case _:
                    pass

    async def change_levels(self) -> None:
        """Change the level of transaction.version again and again."""
        net = SimNet(self.world)
        while True:
            await self.world.sleep(self.rng.random() * 2)
            level = self.rng.randrange(3)
            for kind in (UPGRADE, SAFE_DOWNGRADE):  # one of them is refused, unless it is the same
                key = FeatureUpdateKey("transaction.version", level, upgrade_type=kind)
                with suppress(Lost):
                    answer = await net.call(UpdateFeaturesRequest(feature_updates=[key]), 2)
                    if not answer.error_code:
                        self.finalized.add(level)


async def prepare(net: SimNet, configs: dict[str, str]) -> None:
    """Create the topics, and have the broker create its own."""
    rows = [CreatableTopicConfig(name, value) for name, value in configs.items()]
    topics = [CreatableTopic(name, 2, 1, configs=rows) for name in ("a", "b", "c")]
    answer = await net.call(CreateTopicsRequest(topics, 5_000), 7)
    assert not any(topic.error_code for topic in answer.topics), answer
    for kind in (0, 1):
        while True:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["w"])
            try:
                answer = await net.call(request, 4)
            except Lost:
                continue
            if not answer.coordinators[0].error_code:
                break
            await net.sleep(0.1)


def simulate(seed: int, points: Points | None = None) -> Simulation:
    """One seed. Raises Violations."""
    made = Simulation(seed)
    if points is not None:
        made.world.points = points
    return made.run()
