"""Storages keep offsets in the same way: atomically, in large numbers, in any order of calls."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kafkawire.metadata import session
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
from kafkawire.offsets.catalog.kv.store import MemoryStore
from kafkawire.offsets.catalog.kv.threaded import PluggedStore
from kafkawire.offsets.catalog.port import (
    DELETING,
    EVERYTHING,
    PartitionRow,
    SegmentCatalog,
    SegmentRange,
    StaleSwap,
    Swap,
)
from kafkawire.offsets.catalog.sql import statements as sql_statements
from tests.kit.offsets.rows import everything, state
from tests.kit.offsets.worlds import (
    MINE,
    KeyValueWorld,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
    within,
)


async def test_failed_transaction_changes_no_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await world.start()
    one = await finished(storage, mapping(1, 0, 10, due_ms=5), checkpoints=[state(1)])
    row = segment(99)
    (row.id,) = await storage.start_segments([row])
    before = await everything(storage)

    def fail(*_: object) -> None:
        raise MetadataError("the disk is full")

    def lines() -> list[Any]:
        swap = Swap([(row, [mapping(1, 0, 20)])], within(one, mapping(1, 0, 10)), [state(1, 50)])
        return [
            storage.finish_segments(swap),
            storage.save_checkpoint(Checkpoint(1, 50, [state(2)])),
        ]

    with monkeypatch.context() as patch:  # after the first writes of the transaction
        patch.setattr(sql_statements, "save_states", fail)
        patch.setattr(MemoryStore, "write", fail)
        patch.setattr(RocksStore, "write", fail)
        patch.setattr(PluggedStore, "write", fail)
        for call in lines():
            with pytest.raises(MetadataError, match="full"):
                await call
    assert await everything(storage) == before
    for call in lines():
        await call
    assert await everything(await world.start()) != before


async def test_more_offsets_than_fit_into_one_statement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PART", 3)
    storage = await world.start()
    await storage.save_checkpoint(Checkpoint(1, 1, [state(number) for number in MINE]))
    rows = [mapping(number, base, base + 10) for number in MINE for base in range(0, 70, 10)]
    one = await finished(storage, *rows)
    rows = within(one, *rows)
    loaded = await storage.load_partitions(MINE)
    assert [row.checkpoint for row in loaded] == [state(number) for number in MINE]
    assert [each for row in loaded for each in row.mappings] == rows
    ranges = [(row.number, row.base_offset, row.end_offset) for row in rows]
    assert await storage.mappings(ranges) == [[row] for row in rows]
    new = segment(100)
    (new.id,) = await storage.start_segments([new])
    whole = [mapping(number, 0, 70) for number in MINE]
    await storage.finish_segments(Swap([(new, whole)], rows))
    assert await storage.segment_mappings([one.id, new.id]) == within(new, *whole)
    (gone,) = await storage.remove_mappings(dict.fromkeys(MINE, EVERYTHING))
    assert (gone.id, gone.state, gone.live_bytes) == (new.id, DELETING, 0)
    assert await storage.load_partitions(MINE) == [PartitionRow(number) for number in MINE]


async def test_concurrent_calls_are_serialised(world: World) -> None:
    storage = await world.start()
    made = await asyncio.gather(*(storage.start_segments([segment(at)] * 1) for at in range(9)))
    assert len({segment_id for (segment_id,) in made}) == 9
    calls = [finished(storage, mapping(1, 0, 10)) for _ in range(5)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, StaleSwap) for each in done) == 4
    assert len((await storage.load_partitions([1]))[0].mappings) == 1


async def test_storage_is_usable_after_cancelled_call(world: World) -> None:
    storage = await world.start()
    for steps in range(8):
        call = asyncio.ensure_future(storage.start_segments([segment(steps)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    row = await finished(storage, mapping(1, 0, 10))
    assert [each.segment_id for each in (await storage.mappings([(1, 0, 1)]))[0]] == [row.id]


async def test_closed_storage_raises(world: World) -> None:
    storage = await world.start()
    await storage.load_log_position(1)
    await world.close()
    await storage.close()
    with pytest.raises(MetadataError, match="closed"):
        await storage.load_log_position(1)
    with pytest.raises(MetadataError, match="closed"):
        await storage.save_checkpoint(Checkpoint(1, 1, []))


@pytest.mark.parametrize("seed", [3, 5])
async def test_offset_storages_match_memory_storage(world: World, seed: int) -> None:
    """Random operations, applied to two storages."""
    other = KeyValueWorld()
    rng = random.Random(seed)
    storages = [await world.start(), await other.start()]
    live: dict[int, list[SegmentRange]] = {number: [] for number in MINE}
    for step in range(40):
        world.clock.ms = other.clock.ms = 1_000 + step
        call = _made_up(rng, live, step)
        results = [await call(storage) for storage in storages]
        assert results[0] == results[1], step
        if rng.random() < 0.1:
            storages = [await world.start(), await other.start()]
        if step % 4 == 3:
            assert await everything(storages[0]) == await everything(storages[1]), step
        rows = await storages[1].load_partitions(MINE)
        live = {row.number: row.mappings for row in rows}


def _made_up(rng: random.Random, live: dict[int, list[SegmentRange]], step: int) -> Any:
    what = rng.choice(["cut", "cut", "rewrite", "remove", "due", "checkpoint", "ranges"])
    numbers = sorted(rng.sample(MINE, rng.randint(1, 4)))
    if what == "checkpoint":
        saved = Checkpoint(1, step, [state(number, step) for number in numbers])
        return lambda storage: storage.save_checkpoint(saved)
    if what == "due":
        some = rng.choice([None, numbers])
        return lambda storage: storage.set_due(some, step)
    if what == "remove":
        below = {number: rng.choice([*range(0, 90, 7), EVERYTHING]) for number in numbers}
        return lambda storage: storage.remove_mappings(below, step)
    if what == "ranges":
        ranges = [(number, rng.randint(0, 40), rng.randint(0, 90)) for number in numbers]
        return lambda storage: storage.mappings(ranges)
    removed: list[SegmentRange] = []
    added = []
    for number in numbers:
        rows = live[number]
        end = rows[-1].end_offset if rows else 0
        if what == "rewrite" and rows:
            removed += rows
            added.append(mapping(number, rows[0].base_offset, end, step))
        else:
            added.append(mapping(number, end, end + rng.randint(1, 9), step))

    async def swap(storage: SegmentCatalog) -> None:
        row = segment(10_000 + step)
        (row.id,) = await storage.start_segments([row])
        await storage.finish_segments(Swap([(row, added)], removed, delete_after_ms=step))

    return swap
