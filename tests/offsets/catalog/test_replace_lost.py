"""`replace_lost` of every storage: mappings whose files are lost, replaced by finished objects."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    DELETING,
    LIVE,
    NEVER,
    EnteredObject,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
)
from tests.kit.offsets.rows import ALL, everything, thing, uploaded, uuid
from tests.kit.offsets.worlds import (
    FOREIGN,
    UNKNOWN,
    KeyValueWorld,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
    within,
)


async def merged(storage: SegmentCatalog, *sources: SegmentRow) -> tuple[SegmentRow, Swap]:
    """Merge the mappings of partition 1 in these segments; return the segment, and a swap that
    removes its mapping."""
    rows = await storage.segment_mappings([row.id for row in sources])
    rows = [row for row in rows if row.number == 1]
    whole = mapping(1, rows[0].base_offset, rows[-1].end_offset)
    made = await finished(storage, whole, removed=rows)
    return made, Swap([], within(made, whole))


async def entry(storage: SegmentCatalog, at: int, *rows: SegmentRange) -> EnteredObject:
    """The row that is entered into object `at`, as a manifest describes it."""
    (made,) = await storage.objects_by_uuid([uuid(at)])
    row = segment(100 + at)
    row.size_bytes, row.generation, row.max_timestamp = 4096, 3, 55
    return row, made, list(rows)


async def test_replaced_objects_become_readable_again(world: World) -> None:
    storage = await world.start()
    dead = await uploaded(storage, 1, mapping(1, 0, 10))
    gone = await uploaded(storage, 2, mapping(1, 10, 20))
    shared = await uploaded(storage, 3, mapping(1, 20, 30), mapping(2, 0, 5))
    whole, swap = await merged(storage, dead, gone, shared)
    await storage.drop_segments([gone.id])
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(1), uuid(2)]
    (before,) = await storage.stats([1])

    parts = [mapping(1, 0, 10, due_ms=4), mapping(1, 10, 20), mapping(1, 20, 30)]
    rows = [await entry(storage, at, part) for at, part in enumerate(parts, 1)]
    await storage.replace_lost(swap, rows)

    storage = await world.start()
    (found,) = await storage.load_partitions([1])
    again = {row.uuid: row.segment_id for row in await storage.objects(1, [COPY_FINISHED], 9)}
    assert found.mappings == [
        part._replace(segment_id=again[uuid(at)]) for at, part in enumerate(parts, 1)
    ]
    assert again[uuid(1)] == dead.id
    assert again[uuid(2)] not in (dead.id, gone.id, shared.id, whole.id)
    assert again[uuid(3)] == shared.id
    assert await storage.stats([1]) == [replace(before, mappings=3)]
    segments = {row.id: row for row in await storage.segments_by_id([*again.values(), whole.id])}
    assert segments[whole.id].state == DELETING
    for at, local in ((1, False), (2, False), (3, True)):
        row = segments[again[uuid(at)]]
        assert (row.state, row.local, row.object) == (LIVE, local, uuid(at))
        assert row.live_bytes == (150 if at == 3 else 100)
    new = segments[again[uuid(2)]]
    assert (new.uuid, new.generation, new.size_bytes, new.max_timestamp) == (
        segment(102).uuid,
        3,
        4096,
        55,
    )
    assert await storage.unneeded_objects(1, 9) == []
    assert [row.base_offset for row in await storage.expiring(NEVER, 9)] == [0]
    # It is a segment like any other: its object becomes unneeded with its last mapping.
    await storage.remove_mappings({1: 20})
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(1), uuid(2)]


async def test_a_new_segment_may_replace_a_part(world: World) -> None:
    storage = await world.start()
    one = await uploaded(storage, 1, mapping(1, 0, 10))
    _, swap = await merged(storage, one, await finished(storage, mapping(1, 10, 20)))
    row = segment(7)
    (row.id,) = await storage.start_segments([row])
    swap.finished = [(row, [mapping(1, 10, 15)])]
    await storage.replace_lost(swap, [await entry(storage, 1, mapping(1, 0, 10))])
    (found,) = await storage.load_partitions([1])
    assert [(m.base_offset, m.end_offset, m.segment_id) for m in found.mappings] == [
        (0, 10, one.id),
        (10, 15, row.id),
    ]
    (now,) = await storage.segments_by_id([row.id])
    assert (now.state, now.local, now.object) == (LIVE, True, b"")


async def test_removed_and_entered_mappings_of_one_segment(world: World) -> None:
    storage = await world.start()
    both = await uploaded(storage, 1, mapping(1, 0, 10), mapping(2, 0, 10))
    _, swap = await merged(storage, both)
    swap.removed += within(both, mapping(2, 0, 10))
    await storage.replace_lost(swap, [await entry(storage, 1, mapping(1, 0, 10))])
    (row,) = await storage.segments_by_id([both.id])
    assert (row.state, row.live_bytes, row.object) == (LIVE, 100, uuid(1))
    assert [each.number for each in await storage.segment_mappings([both.id])] == [1]
    assert await storage.unneeded_objects(1, 9) == []


async def test_partitions_without_a_row_are_left_out(world: World) -> None:
    storage = await world.start()
    row = await uploaded(storage, 1, mapping(1, 0, 10))
    await storage.remove_mappings({1: 10})
    before = await everything(storage)
    await storage.replace_lost(Swap([]), [await entry(storage, 1, mapping(UNKNOWN, 0, 10))])
    assert await everything(storage) == before
    assert await storage.segment_mappings([row.id]) == []


async def test_changed_rows_are_not_replaced(world: World) -> None:
    storage = await world.start()
    one = await uploaded(storage, 1, mapping(1, 0, 10))
    live = await uploaded(storage, 2, mapping(2, 0, 10))
    other = await finished(storage, mapping(3, 0, 10))
    await storage.start_objects([thing(3, other)], {})
    _, swap = await merged(storage, one)
    before = await everything(storage)
    part = [mapping(1, 0, 10)]
    absent = (segment(5), ObjectRow(uuid(9), 0, 1), part)
    moved = await entry(storage, 1, *part)
    moved[1].tier = 3
    calls: list[tuple[Swap, list[Any]]] = [
        (swap, [absent]),
        (swap, [moved]),
        (swap, [await entry(storage, 3, *part)]),
        (Swap([], within(live, mapping(1, 0, 10))), [await entry(storage, 1, *part)]),
        (Swap([]), [await entry(storage, 1, *part)]),
        (swap, [await entry(storage, 1, mapping(2, 5, 15))]),
        (swap, [await entry(storage, 2, mapping(2, 0, 10))]),
        (swap, [await entry(storage, 1, *part), await entry(storage, 2, mapping(1, 5, 20))]),
    ]
    for stale, entered in calls:
        with pytest.raises(StaleSwap):
            await storage.replace_lost(stale, entered)
        assert await everything(storage) == before
    with pytest.raises(KafkaError) as caught:
        await storage.replace_lost(swap, [await entry(storage, 1, mapping(FOREIGN, 0, 10))])
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await everything(storage) == before
    await storage.delete_objects([uuid(1)], 5)
    with pytest.raises(StaleSwap):
        await storage.replace_lost(swap, [await entry(storage, 1, *part)])


@pytest.mark.parametrize("seed", [1, 2])
async def test_storages_replace_in_the_same_way(world: World, seed: int) -> None:
    """Random segments, of which some were merged, deleted and dropped; then all at once."""
    other = KeyValueWorld()
    results = []
    for each in (world, other):
        storage = await each.start()
        rng = random.Random(seed)
        kept: list[EnteredObject] = []
        removed: list[SegmentRange] = []
        numbers = iter(range(10_000))
        for at in range(1, 20):
            base = 10 * at
            rows = [mapping(number, base, base + 10) for number in (1, 2, 3) if rng.random() < 0.7]
            if not rows:
                continue
            row = segment(next(numbers))
            (row.id,) = await storage.start_segments([row])
            await storage.finish_segments(Swap([(row, rows)]))
            await storage.start_objects([thing(at, row)], {})
            await storage.finish_objects([uuid(at)], {})
            if rng.random() < 0.3:
                continue
            gone = within(row, *rows[: rng.randint(1, len(rows))])
            made = segment(next(numbers))
            (made.id,) = await storage.start_segments([made])
            whole = [one._replace(length=7) for one in gone]
            await storage.finish_segments(Swap([(made, whole)], gone))
            if len(gone) == len(rows) and rng.random() < 0.5:
                await storage.drop_segments([row.id])
            removed += within(made, *whole)
            kept.append(await entry(storage, at, *[one._replace(segment_id=0) for one in gone]))
        assert kept
        await storage.replace_lost(Swap([], removed), kept)
        results.append((await everything(storage), await storage.objects(1, ALL, 99)))
    assert results[0] == results[1]
    await other.close()
    assert {row.state for row in results[0][1]} == {COPY_FINISHED}
