"""Cutting the journals of a whole Log by hand: a broker with tiny journals, and its segments."""

from __future__ import annotations

from typing import Any

from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, World, batch
from tests.kit.waiting import settle

JOURNAL = 8192


ROOM = 1 << 20


async def fill(partition: Partition, count: int, size: int = 500) -> None:
    """Batches of one record each; the value contains the offset."""
    for _ in range(count):
        offset = partition.next_offset
        value = b"%d:" % offset + bytes(size)
        partition.append(batch(value, timestamp_ms=EPOCH_MS + offset), EPOCH_MS)
        await partition.log.wait_until_committed()
    await settle()


def expected(start: int, end: int, size: int = 500) -> list[tuple[int, bytes | None]]:
    return [(at, b"%d:" % at + bytes(size)) for at in range(start, end)]


async def started(topics: int = 1, **more: Any) -> World:
    """A broker whose journals are small and cold as soon as they are rolled."""
    world = World(journal_bytes=JOURNAL, hot_bytes=0, **more)
    await world.start()
    for at in range(topics):
        await world.topic(f"t{at}")
    return world


async def cut(world: World) -> None:
    await settle()
    assert await world.log.segments.cut()
    await world.log.checkpoint()
    await world.log.retention.reclaim()


def segments(world: World) -> list[str]:
    return [name for name in world.fs.listdir(f"{FOLDER}/segments") if name.endswith(".segment")]
