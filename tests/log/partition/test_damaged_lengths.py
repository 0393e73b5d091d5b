"""Lengths in stored batches are checked like those from the wire: damage raises one error type.

Covers: kafkawire.log.partition.damaged_ranges.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.codec.batches import HEAD_BYTES, LENGTH_AT, build
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.journal.file import POSITION_MASK, journal_name
from kafkawire.log.partition.read_plan import next_offset, skip_before, whole_batches
from kafkawire.log.partition.time_lookup import offset_for_time
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, values
from tests.kit.log.recovery import JOURNALS

END = 1 << 40

Walk = Callable[[bytes], int]
WALKS: dict[str, Walk] = {
    "skip_before": lambda data: skip_before(data, 0, len(data), END),
    "whole_batches": lambda data: whole_batches(data, 0, len(data), END, END, False),
    "next_offset": lambda data: next_offset(data, 0, len(data), 0),
}


def batches(count: int) -> bytes:
    parts = [
        build([(None, b"value-%d" % at)], base_offset=at, timestamp_ms=EPOCH_MS)
        for at in range(count)
    ]
    return b"".join(parts)


SIZE = len(batches(1))


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
@pytest.mark.parametrize("length", [0, -12, -(1 << 31), 1, 48, SIZE, (1 << 31) - 1])
def test_impossible_batch_length_is_corrupt(walk: Walk, length: int) -> None:
    data = bytearray(batches(1))
    data[LENGTH_AT : LENGTH_AT + 4] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(KafkaError) as caught:
        walk(bytes(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_any_damage_raises_corrupt_or_gives_position(walk: Walk) -> None:
    rng, sound = random.Random(12), batches(8)
    for _ in range(2000):
        data = bytearray(sound)
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.choice([1, 4, 8, HEAD_BYTES, len(data)]))
        match rng.randrange(3):
            case 0:
                data[start:stop] = bytes(stop - start)
            case 1:
                data[start:stop] = rng.randbytes(stop - start)
            case _:
                del data[start:]
        codes = set()
        try:
            walk(bytes(data))
        except KafkaError as error:
            codes.add(error.code)
        assert codes <= {ErrorCode.CORRUPT_MESSAGE}


def test_whole_batches_before_damage_are_returned() -> None:
    data = batches(3) + bytes(SIZE)
    assert whole_batches(data, 0, len(data), END, END, False) == 3 * SIZE


async def damaged_journal(damage: bytes, at: int, **more: Any) -> World:
    """Frames of a batch each; `damage` is written `at` so many bytes into the second.

    With hot_bytes=0 enough follow that the journal is rolled, and read from the disk.
    """
    world = World(**{"journal_bytes": 16 << 10, "hot_bytes": 1 << 30, **more})
    log = await world.start()
    (partition,) = await world.topic("t")
    for number in range(3 if world.config.hot_bytes else 200):
        partition.append(batch(b"%d" % number, timestamp_ms=EPOCH_MS + number), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    log_position = partition.rows.log_position[1]
    start = (log_position & POSITION_MASK) + at
    node = world.fs.files[f"{JOURNALS}/{journal_name(log_position >> 32)}"]
    node.data[start : start + len(damage)] = damage
    assert (log_position >= log.commit_log.journals.hot_from) == bool(world.config.hot_bytes)
    return world


@pytest.mark.parametrize("hot_bytes", [1 << 30, 0], ids=["mapped", "read"])
@pytest.mark.parametrize(
    ("damage", "at"),
    [(bytes(HEAD_BYTES), 0), ((-12).to_bytes(4, "big", signed=True), LENGTH_AT)],
    ids=["zeros", "negative"],
)
async def test_list_offsets_by_timestamp_with_damage(
    damage: bytes, at: int, hot_bytes: int
) -> None:
    world = await damaged_journal(damage, at, hot_bytes=hot_bytes)
    partition = next(iter(world.log.partitions.values()))
    with pytest.raises(KafkaError) as caught:
        await offset_for_time(partition, EPOCH_MS + 1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert await offset_for_time(partition, EPOCH_MS + 2) == (2, EPOCH_MS + 2)
    await world.log.close()


async def test_cold_read_returns_records_around_damaged_frame() -> None:
    world = await damaged_journal(bytes(HEAD_BYTES), 0, hot_bytes=0)
    log = world.log.commit_log
    partition = next(iter(world.log.partitions.values()))
    got = await log.read(partition.plan(0, 1 << 20, 3, True))
    assert values(got) == [(0, b"0")]
    with pytest.raises(KafkaError) as caught:
        await log.read(partition.plan(1, 1 << 20, 3, True))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert values(await log.read(partition.plan(2, 100, 3, True))) == [(2, b"2")]
    await world.log.close()
