"""Logs that are filled, rolled and damaged, for tests of recovery at a start."""

from __future__ import annotations

from typing import Any

from kafkawire.log.journal.file import POSITION_MASK, journal_name
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, NEVER_MS, World, batch, read_all

JOURNALS = f"{FOLDER}/journals"


async def start(*values: bytes, **settings: Any) -> tuple[World, Partition]:
    """A log whose only partition holds these values, each committed by itself. What is appended
    later is not committed by a timer, however slow the machine is."""
    world = World(**{"commit_delay_ms": NEVER_MS, **settings})
    await world.start()
    (partition,) = await world.topic("t")
    for value in values:
        partition.append(batch(value), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    return world, partition


def flip_bit(world: World, log_position: int, *, bit: int = 1) -> None:
    """Flip one bit at a position of a file."""
    node = world.fs.files[f"{JOURNALS}/{journal_name(log_position >> 32)}"]
    node.data[log_position & POSITION_MASK] ^= bit
    node.durable[log_position & POSITION_MASK] ^= bit


def write_zeros(world: World, log_position: int, count: int) -> None:
    """Overwrite bytes of a file."""
    node = world.fs.files[f"{JOURNALS}/{journal_name(log_position >> 32)}"]
    at = log_position & POSITION_MASK
    node.data[at : at + count] = node.durable[at : at + count] = bytes(count)


async def everything(world: World) -> list[bytes | None]:
    return [value for _, value in await read_all(world.find("t"))]


async def roll(world: World, count: int, size_bytes: int = 1000) -> None:
    """Append until journals have been rolled."""
    for _ in range(count):
        world.find("t").append(batch(bytes(size_bytes)), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    for _ in range(20):
        await world.env.sleep(0)
