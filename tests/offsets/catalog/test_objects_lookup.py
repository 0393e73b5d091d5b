"""Lookups of objects in a `SegmentCatalog`, in every implementation."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.offsets.catalog.port import COPY_FINISHED, COPY_STARTED, DELETE_STARTED, PartitionRow
from tests.kit.offsets.rows import ALL, at_of, ends, everything, thing, uploaded, uuid
from tests.kit.offsets.worlds import (
    FOREIGN,
    UNKNOWN,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
    within,
)


async def test_objects_are_found_by_broker_state_and_uuid(world: World) -> None:
    storage = await world.start()
    row = await finished(storage, mapping(1, 0, 10))
    rows = [thing(at, row, node_id=1 + (at == 4)) for at in (6, 1, 4, 2, 5, 3)]
    await storage.start_objects(rows, {})
    await storage.delete_objects([uuid(2), uuid(5)], 9)
    mine = [row for row in sorted(rows, key=lambda row: row.uuid) if row.node_id == 1]

    async def found(states: tuple[int, ...], limit: int = 9, after: bytes = b"") -> list[int]:
        some = await storage.objects(1, states, limit, after)
        return [at_of(row) for row in some]

    assert await found(ALL) == [1, 2, 3, 5, 6]
    assert await found((COPY_STARTED, DELETE_STARTED), 2) == [1, 2]
    assert await found((COPY_STARTED, DELETE_STARTED), 2, uuid(2)) == [3, 5]
    assert await found((COPY_STARTED,), 9, uuid(1)) == [3, 6]
    assert await found((DELETE_STARTED,), 1) == [2]
    assert await found((COPY_FINISHED,)) == []
    assert [row.uuid for row in await storage.objects(2, ALL, 9)] == [uuid(4)]
    asked = [uuid(6), uuid(9), uuid(1), uuid(6)]
    assert await storage.objects_by_uuid(asked) == [mine[0], mine[-1]]


async def test_objects_of_segments_without_readers_are_found(world: World) -> None:
    storage = await world.start()
    rows = [await uploaded(storage, at, mapping(1, 10 * at, 10 * at + 10)) for at in range(4)]
    late = await finished(storage, mapping(2, 0, 10))
    await storage.start_objects([thing(9, late)], {})
    assert await storage.unneeded_objects(1, 9) == []
    await storage.remove_mappings({1: 30, 2: 10})
    storage = await world.start()
    found = [row.uuid for row in await storage.unneeded_objects(1, 9)]
    assert found == [uuid(0), uuid(1), uuid(2)], "an unfinished object is deleted by its uploader"
    assert await storage.unneeded_objects(2, 9) == []
    await storage.drop_segments([rows[1].id, rows[2].id])
    assert [row.uuid for row in await storage.unneeded_objects(1, 2)] == [uuid(0), uuid(1)]
    rest = await storage.unneeded_objects(1, 2, uuid(1))
    assert [row.uuid for row in rest] == found[2:]
    assert await storage.unneeded_objects(1, 2, found[-1]) == []
    await storage.delete_objects(found[:2], 5)
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(2)]
    await storage.delete_objects(found, 6)
    assert await storage.unneeded_objects(1, 9) == []
    merged = within(rows[3], mapping(1, 30, 40))
    await finished(storage, mapping(1, 30, 40), removed=merged)
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(3)]


async def test_only_uploaded_segments_may_lose_their_file(world: World) -> None:
    storage = await world.start()
    there = await uploaded(storage, 1, mapping(1, 0, 10))
    alone = await finished(storage, mapping(1, 10, 20))
    dead = await uploaded(storage, 2, mapping(2, 0, 10))
    await storage.remove_mappings({2: 10})
    ids = [dead.id, alone.id, there.id]
    rows = await storage.set_local([*ids, 4711], False)
    assert [(row.id, row.local) for row in rows] == [
        (there.id, False),
        (alone.id, True),
        (dead.id, True),
    ]
    storage = await world.start()
    assert await storage.segments_by_id(ids) == rows
    (back,) = await storage.set_local([there.id], True)
    assert back.local
    assert await storage.segments_by_id([there.id]) == [back]


async def test_tiering_offsets_only_rise(world: World) -> None:
    storage = await world.start()
    await storage.save_tiering_offsets({1: (10, 5), 2: (3, 0), UNKNOWN: (1, 1)})
    await storage.save_tiering_offsets({1: (8, 7)})
    row = await finished(storage, mapping(2, 0, 10))
    await storage.start_objects([thing(1, row)], {2: 2, 1: 12})
    storage = await world.start()
    assert [await ends(storage, number) for number in (1, 2)] == [(12, 7), (3, 0)]
    await storage.finish_objects([uuid(1)], {1: 6, 2: 4})
    assert [await ends(storage, number) for number in (1, 2)] == [(12, 7), (4, 4)]
    assert (await storage.load_partitions([UNKNOWN])) == [PartitionRow(UNKNOWN)]


async def test_dispatched_uncommitted_segments_are_found(world: World) -> None:
    storage = await world.start()
    assert await storage.list_uncommitted(9) == []
    await storage.save_tiering_offsets({1: (10, 5), 2: (3, 3), 8: (4, 0), 9: (7, 6)})
    storage = await world.start()
    assert await storage.list_uncommitted(9) == [1, 8, 9]
    assert await storage.list_uncommitted(2) == [1, 8]
    assert await storage.list_uncommitted(9, 1) == [8, 9]
    await storage.save_tiering_offsets({8: (4, 4)})
    assert await storage.list_uncommitted(9) == [1, 9]


async def test_partitions_of_other_brokers_are_not_written(world: World) -> None:
    storage = await world.start()
    row = await finished(storage, mapping(1, 0, 10))
    await storage.start_objects([thing(1, row)], {})
    before = await everything(storage)
    for call in (
        storage.start_objects([thing(2, row)], {1: 5, FOREIGN: 5}),
        storage.finish_objects([uuid(1)], {FOREIGN: 5}),
        storage.save_tiering_offsets({1: (1, 1), FOREIGN: (1, 1)}),
        storage.enter_remote([(segment(5), thing(5, row), [mapping(FOREIGN, 0, 5)])]),
    ):
        with pytest.raises(KafkaError) as caught:
            await call
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await everything(storage) == before
