"""Coordinators that come and go: leadership changes while the service opens, loads and closes.

A follower changes the leaders in the catalog, then those in the log, then reports them to the
service, under the lock that the creation of the topic takes, too. Loads fail and take their time;
clients open the service at any moment. Whatever the order: an index never has two coordinators, one
that has resigned is never started, and in the end there is one for each index that is led.

Covers: kafkawire.coordination.service.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import service as module
from kafkawire.coordination.service import CoordinatorService
from kafkawire.log.io.slices import Slices
from tests.kit.groups.log import fake_env
from tests.kit.waiting import until

INDEXES = 6
TOPIC = "__state"
CLOSED = ErrorCode.COORDINATOR_NOT_AVAILABLE
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class StatePartition:
    """A partition in memory, until the log unloads it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.removed = False


class OneCoordinator:
    """A coordinator of one index; `phase` is its last call."""

    def __init__(self, service: Service, partition: StatePartition) -> None:
        self.partition = partition
        self.phase = "made"
        self.service = service
        twins = [each for each in service.created if each.partition.index == partition.index]
        assert all(each.phase in ("resigned", "closed") for each in twins), "two of one index"
        service.created.append(self)

    def start(self, *, gained: bool = False) -> None:
        assert self.phase == "made"
        self.phase = "started"

    def begin_empty(self) -> None:
        assert self.phase == "made"
        self.phase = "begun"

    def resign(self) -> None:
        assert self.phase != "resigned"
        self.phase = "resigned"

    async def close(self, _patience_s: float) -> None:
        await asyncio.sleep(0)
        if self.phase != "resigned":
            self.phase = "closed"


class Service(CoordinatorService[Any]):
    topic = TOPIC

    def __init__(self, world: World) -> None:
        catalog: Any = SimpleNamespace(by_name=world.topics)
        internal: Any = world.internal
        super().__init__(fake_env(), catalog, internal)
        self.created: list[OneCoordinator] = []

    def new_coordinator(self, partition: Any) -> OneCoordinator:
        return OneCoordinator(self, partition)

    @staticmethod
    def partition_of(name: str, partitions: int) -> int:
        assert partitions == INDEXES
        return int(name)


class World:
    """A catalog, the partitions in memory, and the follower of changes by other brokers."""

    def __init__(self, seed: int = 0, *, exists: bool = True) -> None:
        self.dice = random.Random(seed)
        self.topics: dict[str, Any] = {}
        self.lock = asyncio.Lock()
        self.led: set[int] = set()
        self.loaded: dict[int, StatePartition] = {}
        self.failing = 0
        if exists:
            self.create()
        self.service = Service(self)

    def create(self) -> None:
        """Create the topic."""
        self.topics[TOPIC] = SimpleNamespace(partitions=[None] * INDEXES)
        self.led = {n for n in range(INDEXES) if self.dice.random() < 0.5}

    async def pause(self) -> None:
        """Let others run for a while."""
        for _ in range(self.dice.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)

    async def internal(self) -> list[StatePartition | None]:
        """Return the partitions, perhaps those of a moment ago."""
        if TOPIC not in self.topics:
            async with self.lock:
                await self.pause()
                if TOPIC not in self.topics:
                    self.create()
        led = set(self.led)
        await self.pause()
        if self.failing and self.dice.random() < 0.5:
            self.failing -= 1
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the database is gone")
        found = [self.partition(n) if n in led & self.led else None for n in range(INDEXES)]
        await self.pause()
        return found

    def partition(self, index: int) -> StatePartition:
        if index not in self.loaded:
            self.loaded[index] = StatePartition(index)
        return self.loaded[index]

    async def follow(self, led: set[int]) -> None:
        """Apply leaders that another process has changed, and report them."""
        async with self.lock:
            known = TOPIC in self.topics
            self.topics.setdefault(TOPIC, SimpleNamespace(partitions=[None] * INDEXES))
            lost, gained = (self.led - led, led - self.led) if known else (set(), led)
            self.led = led
            await self.pause()
            for index in lost:
                if index in self.loaded:
                    self.loaded.pop(index).removed = True
            await self.pause()
            await self.service.resign(lost)
            assert not any(each.partition.index in lost for each in self.service.list_led())
            for index in lost:
                assert self.service.absence(str(index)) in (ErrorCode.NOT_COORDINATOR, CLOSED)
            await self.pause()
            await self.service.lead(gained)
            for index in gained:
                there = self.service.find_coordinator(str(index)) is not None
                assert there or self.service.absence(str(index)) in (LOADING, CLOSED)

    async def open(self) -> None:
        """Open the service, as a client's search for a coordinator does."""
        with suppress(KafkaError):
            await self.service.open()

    def settled(self) -> bool:
        """Whether there is exactly one coordinator for each index that is led."""
        service = self.service
        started = {each.partition.index for each in service.list_led()}
        alive = [each for each in service.created if each.phase not in ("resigned", "closed")]
        running = all(each.phase in ("started", "begun") for each in alive)
        alone = len(alive) == len(started)
        return not service.gained and started == self.led and alone and running


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(module, "RETRY_MS", 1)


@pytest.mark.parametrize("seed", range(300))
async def test_any_order_of_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, exists=seed % 3 > 0)

    async def give_way(slices: object) -> None:
        await world.pause()

    monkeypatch.setattr(Slices, "give_way", give_way)
    dice, service = world.dice, world.service
    world.failing = dice.choice((0, 0, 3))
    tasks: list[asyncio.Task[None]] = []
    for _ in range(dice.randrange(1, 12)):
        if dice.random() < 0.25:
            tasks.append(asyncio.create_task(world.open()))
        else:
            led = {n for n in range(INDEXES) if dice.random() < 0.5}
            tasks.append(asyncio.create_task(world.follow(led)))
        await world.pause()
    closing = dice.random() < 0.3
    if closing:
        tasks.append(asyncio.create_task(service.close()))
    await asyncio.gather(*tasks)
    if not closing:
        await world.follow(set(world.led))
        world.failing = 0
        await world.open()
        await until(world.settled)
        assert service.absence("0") is ErrorCode.NOT_COORDINATOR
    await service.close()
    await until(lambda: service._creating is None or service._creating.done())
    assert all(each.phase in ("resigned", "closed") for each in service.created)
    assert not service.gained


async def test_a_topic_of_another_process_opens_a_service_that_was_never_opened() -> None:
    world = World(exists=False)
    await world.follow({1, 3})
    assert world.service.absence("1") is LOADING
    assert world.service.absence("2") is ErrorCode.NOT_COORDINATOR
    assert world.service.find_coordinator("1") is None
    await until(world.settled)
    assert [each.phase for each in world.service.created] == ["started", "started"]


async def test_resigning_and_leading_again_replaces_the_coordinator() -> None:
    world = World()
    await world.follow({0})
    await until(world.settled)
    (first,) = world.service.list_led()
    await world.follow(set())
    assert first.phase == "resigned"
    assert world.service.find_coordinator("0") is None
    assert world.service.absence("0") is ErrorCode.NOT_COORDINATOR
    await world.follow({0})
    await until(world.settled)
    assert world.service.find_coordinator("0") is not first
    assert [each.partition for each in world.service.list_led()] == [world.loaded[0]]


async def test_leading_twice_keeps_the_coordinator() -> None:
    world = World()
    await world.follow({0})
    await until(world.settled)
    first = world.service.find_coordinator("0")
    await world.service.lead([0])
    assert not world.service.gained
    assert world.service.find_coordinator("0") is first


async def test_failed_loads_are_retried(caplog: pytest.LogCaptureFixture) -> None:
    world = World(exists=False)
    world.failing = 5
    await world.follow({0})
    await until(world.settled)
    assert caplog.text.count("cannot be loaded, it is retried every second") <= 1


async def test_a_defect_is_retried_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "DEFECT_RETRY_MS", 1)
    world = World(exists=False)
    failures = [ValueError("defect")]
    internal = world.internal

    async def fail_once() -> Any:
        if failures:
            raise failures.pop()
        return await internal()

    monkeypatch.setattr(world.service, "_internal", fail_once)
    await world.follow({0})
    await until(world.settled)
    assert "loading gained partitions failed" in caplog.text


async def test_a_partition_that_was_unloaded_meanwhile_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.follow(set())
    await world.open()
    internal, outdated = world.internal, [StatePartition(0)]
    outdated[0].removed = True

    async def outdated_once() -> Any:
        return [outdated.pop(), *[None] * (INDEXES - 1)] if outdated else await internal()

    monkeypatch.setattr(world.service, "_internal", outdated_once)
    await world.follow({0})
    await until(world.settled)
    assert [each.partition for each in world.service.list_led()] == [world.loaded[0]]
