"""An old journal is rolled though it is not full, and nothing of it is lost at any end."""

from __future__ import annotations

import asyncio

from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.log.logs import World, batch, read_all
from tests.kit.waiting import settle


async def one_more(world: World, value: bytes) -> None:
    world.find("t").append(batch(value), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await settle()


async def ready(world: World) -> None:
    world.log.journals._tried = -1
    world.log.journals.prepare()
    await settle()


async def test_roll_starts_next_journal_and_recovery_reads_both() -> None:
    world = World()
    await world.start()
    await world.topic("t")
    await one_more(world, b"one")
    first = world.log.journals.active
    await ready(world)
    world.log.commit_log.roll()
    await settle()
    assert world.log.journals.active is not first
    assert first.rolled
    assert not world.log.journals.rolling
    await one_more(world, b"two")
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"one"), (1, b"two")]
    assert len(list(world.log.journals)) == 2


async def test_empty_journal_is_not_rolled() -> None:
    world = World()
    await world.start()
    world.log.commit_log.roll()
    await settle()
    assert len(list(world.log.journals)) == 1


async def test_failed_roll_is_repeated_with_next_write() -> None:
    world = World()
    await world.start()
    await world.topic("t")
    await one_more(world, b"one")
    first = world.log.journals.active
    await ready(world)
    world.fs.faults.failing_writes = 1
    world.log.commit_log.roll()
    await settle()
    assert world.log.journals.active is first
    await one_more(world, b"two")
    assert world.log.journals.active is not first
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"one"), (1, b"two")]


async def test_end_waits_for_a_journal_that_is_being_prepared() -> None:
    """Otherwise it would be renamed while the next process starts, which has found it."""
    world = World()
    await world.start()
    await world.topic("t")
    await one_more(world, b"one")
    offload = world.env.offload
    assert isinstance(offload, InlineOffload)
    offload.hold("files")
    await ready(world)
    assert world.log.journals.preparing
    closing = asyncio.ensure_future(world.log.close())
    await settle()
    assert not closing.done()
    offload.release("files")
    await closing
    assert not world.log.journals.preparing
    await world.start()
    assert await read_all(world.find("t")) == [(0, b"one")]
