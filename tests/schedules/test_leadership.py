"""Schedules whose partitions, or those of their states, are lost and gained while the broker runs.

Covers: kafkawire.schedules.service, kafkawire.schedules.starter, kafkawire.schedules.states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.batches import Record
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.schedules.starter import ScheduleStarter
from tests.kit.schedules.broker import ScheduleWorld
from tests.kit.schedules.scripted import LATER
from tests.kit.seeds import quiet

OTHER = 2
Main = Callable[[ScheduleWorld], Awaitable[None]]


def simulated(main: Main) -> None:
    with quiet():
        ScheduleWorld().run(main)


def starter(world: ScheduleWorld) -> ScheduleStarter:
    """The object that the follower of metadata calls."""
    assert world.world.broker is not None
    return world.world.broker.parts.schedules


def led_by(world: ScheduleWorld, topic: str, leader: int) -> None:
    """Give partition 0 of a topic another leader in the catalog."""
    assert world.world.broker is not None
    catalog = world.world.broker.parts.catalog
    catalog.by_name[topic].partitions[0].leader = leader


async def values(world: ScheduleWorld) -> list[bytes | None]:
    return [row.value for row in await world.delivered()]


async def send(world: ScheduleWorld, *items: str, after_ms: int = 100) -> None:
    """Send records that are due soon."""
    due = world.now_ms() + after_ms
    await world.send([Record(n, due + n, b"k", item.encode()) for n, item in enumerate(items)])


async def delivering(world: ScheduleWorld, count: int) -> None:
    while len(world.service.deliverers) != count:
        await world.sleep(0.01)


def test_states_that_are_lost_end_deliveries_and_begin_them_when_gained() -> None:
    async def main(world: ScheduleWorld) -> None:
        await send(world, "a", "b")
        await world.sleep(1)
        (old,) = world.service.list_led()
        await send(world, "c", "d")
        await starter(world).resign([0])
        await delivering(world, 0)
        await world.sleep(2)
        assert old.phase is CoordinatorPhase.RESIGNED
        assert await values(world) == [b"a", b"b"]
        await starter(world).lead([0])
        await delivering(world, 1)
        await world.sleep(1)
        assert await values(world) == [b"a", b"b", b"c", b"d"]
        assert world.service.list_led() != [old]

    simulated(main)


def test_a_schedule_partition_that_is_lost_ends_and_begins_when_gained() -> None:
    async def main(world: ScheduleWorld) -> None:
        await send(world, "a")
        await world.sleep(1)
        await send(world, "b", after_ms=500)
        led_by(world, LATER, OTHER)
        await starter(world).resign([])
        await delivering(world, 0)
        await world.sleep(2)
        assert await values(world) == [b"a"]
        led_by(world, LATER, 1)
        await starter(world).lead([])
        await delivering(world, 1)
        await world.sleep(1)
        assert await values(world) == [b"a", b"b"]

    simulated(main)


def test_nothing_is_delivered_from_the_moment_when_the_log_has_unloaded_the_partition() -> None:
    """The service learns of it later."""

    async def main(world: ScheduleWorld) -> None:
        await send(world, "a")
        await world.sleep(1)
        await send(world, "b", after_ms=300)
        (states,) = world.service._states.values()
        unloaded: Any = SimpleNamespace(removed=True)
        states.partition = unloaded
        await world.sleep(2)
        assert await values(world) == [b"a"]
        await world.service.update()
        await world.sleep(1)
        assert await values(world) == [b"a", b"b"]

    simulated(main)


def test_a_deliverer_of_an_unloaded_partition_is_replaced() -> None:
    async def main(world: ScheduleWorld) -> None:
        before = world.deliverer
        partition = world.partition(LATER)
        partition.removed = True
        await world.service.update()
        partition.removed = False
        await world.service.update()
        assert world.deliverer is not before
        await send(world, "a")
        await world.sleep(1)
        assert await values(world) == [b"a"]

    simulated(main)


@pytest.mark.parametrize("pauses", [0, 1, 3, 10, 30])
def test_states_that_come_and_go_quickly(pauses: int) -> None:
    async def main(world: ScheduleWorld) -> None:
        await send(world, *map(str, range(50)), after_ms=50)
        for _ in range(20):
            await starter(world).resign([0])
            await world.sleep(0.001 * pauses)
            await starter(world).lead([0])
            await world.sleep(0.003 * pauses)
        for _ in range(60):
            if len(await values(world)) >= 50:
                break
            await world.sleep(1)
        await world.sleep(2)
        assert sorted(await values(world), key=lambda value: int(value or b"")) == [
            str(n).encode() for n in range(50)
        ]

    simulated(main)
