"""What `OffsetStorage` promises of objects in the remote tier, asked of every implementation."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata import session
from kafkawire.metadata.checkpoint import Checkpoint, FormatError, PartitionCheckpoint
from kafkawire.metadata.store import MetadataError
from offsets import sql_objects
from offsets.kv_store import MemoryStore
from offsets.rocks_storage import RocksStorage, RocksStore
from offsets.storage import (
    BEING_LEFT,
    COPY_FINISHED,
    COPY_STARTED,
    CURRENT,
    DELETE_STARTED,
    DELETING,
    EVERYTHING,
    LIVE,
    NEVER,
    STARTED,
    Mapping,
    ObjectRow,
    OffsetStorage,
    PartitionRow,
    SegmentRow,
    StaleSwap,
    Swap,
    TierRow,
    pack_ranges,
    unpack_ranges,
)
from tests.kit.offset_worlds import (
    FOREIGN,
    GONE,
    MINE,
    UNKNOWN,
    WORLDS,
    KeyValueWorld,
    World,
    finished,
    make_world,
    mapping,
    segment,
    within,
)
from tests.kit.postgres import postgres

ALL = (COPY_STARTED, COPY_FINISHED, DELETE_STARTED)
FIRST = 1 << 120


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = await make_world(request, tmp_path)
    yield made
    await made.close()


def uuid(at: int) -> bytes:
    return (FIRST + at).to_bytes(16, "big")


def at_of(row: ObjectRow) -> int:
    return int.from_bytes(row.uuid, "big") - FIRST


def thing(at: int, row: SegmentRow, tier: int = 0, node_id: int = 1) -> ObjectRow:
    ranges = pack_ranges([(at, 0, 10)])
    return ObjectRow(uuid(at), row.id, node_id, tier, COPY_STARTED, 4096, 700 + at, 0, ranges)


async def uploaded(storage: OffsetStorage, at: int, *rows: Mapping, tier: int = 0) -> SegmentRow:
    """A segment with a finished object `at`; as it was handed over."""
    row = await finished(storage, *rows)
    assert await storage.start_objects([thing(at, row, tier)], {}) == [uuid(at)]
    (now,) = await storage.finish_objects([uuid(at)], {})
    assert (now.object, now.tier) == (uuid(at), tier)
    return row


async def states(storage: OffsetStorage) -> dict[int, int]:
    rows = await storage.objects(1, ALL, 1000)
    return {at_of(row): row.state for row in rows}


async def ends(storage: OffsetStorage, number: int) -> tuple[int, int]:
    (row,) = await storage.load_partitions([number])
    return row.dispatch_offset, row.commit_offset


async def everything(storage: OffsetStorage) -> list[Any]:
    """All that is stored, as the port shows it."""
    return [
        await storage.load_partitions([*MINE, FOREIGN, *GONE]),
        await storage.segments(1, (STARTED, LIVE, DELETING), 1000),
        await storage.objects(1, ALL, 1000),
        await storage.objects(2, ALL, 1000),
        await storage.unneeded_objects(1, 1000),
        await storage.tiers(),
        await storage.metrics(),
    ]


def test_ranges_are_packed_and_read_again() -> None:
    ranges = [(2**63, 0, 2**62), (1, 5, 9)]
    assert unpack_ranges(pack_ranges(ranges)) == ranges
    assert unpack_ranges(b"") == []
    with pytest.raises(FormatError, match="25 bytes, no multiple of 24"):
        unpack_ranges(bytes(25))


async def test_a_new_storage_has_no_objects(world: World) -> None:
    storage = await world.start()
    assert await storage.objects(1, ALL, 9) == []
    assert await storage.objects(1, [], 9) == []
    assert await storage.objects_by_uuid([uuid(1)]) == []
    assert await storage.unneeded_objects(1, 9) == []
    assert await storage.tiers() == []
    assert await storage.set_local([1], False) == []
    assert await storage.start_objects([], {}) == []
    assert await storage.finish_objects([], {}) == []
    assert await storage.relocate_objects({}) == []
    assert await storage.enter_remote([]) == []
    await storage.delete_objects([uuid(1)], 5)
    await storage.drop_objects([uuid(1)])
    await storage.save_tiering_offsets({})


async def test_an_object_is_started_then_finished(world: World) -> None:
    storage = await world.start()
    one = await finished(storage, mapping(1, 0, 10), mapping(2, 0, 10))
    two = await finished(storage, mapping(1, 10, 20))
    rows = [thing(7, one), thing(3, two)]
    assert await storage.start_objects(rows, {1: 20, 2: 10}) == [uuid(7), uuid(3)]
    storage = await world.start()
    assert await storage.objects(1, [COPY_STARTED], 9) == [rows[1], rows[0]]
    assert [await ends(storage, number) for number in (1, 2, 3)] == [(20, 0), (10, 0), (0, 0)]
    found = await storage.segments_by_id([one.id, two.id])
    assert [(row.local, row.object, row.tier) for row in found] == [(True, b"", 0)] * 2
    now = await storage.finish_objects([uuid(3), uuid(7)], {1: 20, 2: 10})
    assert [(row.id, row.object) for row in now] == [(one.id, uuid(7)), (two.id, uuid(3))]
    storage = await world.start()
    assert await storage.segments_by_id([one.id, two.id]) == now
    assert await states(storage) == {3: COPY_FINISHED, 7: COPY_FINISHED}
    assert [await ends(storage, number) for number in (1, 2)] == [(20, 20), (10, 10)]


async def test_what_may_not_be_uploaded_is_left_out(world: World) -> None:
    storage = await world.start()
    new = segment(1)
    (new.id,) = await storage.start_segments([new])
    dead = await finished(storage, mapping(2, 0, 10))
    await storage.remove_mappings({2: 10})
    there = await uploaded(storage, 50, mapping(1, 0, 10))
    away = await uploaded(storage, 51, mapping(1, 10, 20))
    await storage.set_local([away.id], False)
    never = SegmentRow(uuid(9), 1, 0, id=4711)
    before = await everything(storage)
    rows = [thing(at, row) for at, row in enumerate([new, dead, there, away, never], 1)]
    assert await storage.start_objects(rows, {}) == []
    assert await everything(storage) == before
    assert await storage.start_objects([thing(7, there, tier=1), thing(8, away, tier=1)], {}) == [
        uuid(7)
    ], "another tier needs an object of its own, made of a file"


async def test_an_upload_that_came_too_late_is_never_finished(world: World) -> None:
    storage = await world.start()
    kept = await finished(storage, mapping(1, 0, 10))
    gone = await finished(storage, mapping(2, 0, 10))
    merged = await finished(storage, mapping(3, 0, 10))
    rows = [thing(1, kept), thing(2, gone), thing(3, merged), thing(4, kept)]
    assert len(await storage.start_objects(rows, {})) == 4
    await storage.remove_mappings({2: 10})
    await storage.drop_segments([gone.id])
    await finished(storage, mapping(3, 0, 10), removed=within(merged, mapping(3, 0, 10)))
    (now,) = await storage.finish_objects([row.uuid for row in rows] + [uuid(9)], {1: 10})
    assert (now.id, now.object) == (kept.id, uuid(1)), "one object of a segment, the first"
    assert await states(storage) == {1: COPY_FINISHED, 2: 0, 3: 0, 4: 0}
    assert await ends(storage, 1) == (0, 0), "computed from more than was finished"
    assert await storage.finish_objects([uuid(1)], {1: 10}) == [], "it is finished already"
    assert await ends(storage, 1) == (0, 0)
    assert await storage.finish_objects([], {1: 10}) == []
    assert await ends(storage, 1) == (10, 10)


async def test_an_object_in_another_tier_takes_the_place_of_the_one_there_is(world: World) -> None:
    storage = await world.start()
    row = await uploaded(storage, 1, mapping(1, 0, 10))
    assert await storage.start_objects([thing(2, row, tier=5)], {}) == [uuid(2)]
    (now,) = await storage.finish_objects([uuid(2)], {1: 10})
    assert (now.object, now.tier) == (uuid(2), 5)
    assert await states(storage) == {1: DELETE_STARTED, 2: COPY_FINISHED}
    assert await ends(storage, 1) == (10, 10)


async def test_an_object_goes_in_two_steps(world: World) -> None:
    storage = await world.start()
    row = await uploaded(storage, 1, mapping(1, 0, 10))
    other = await finished(storage, mapping(1, 10, 20))
    await storage.start_objects([thing(2, other)], {})
    await storage.drop_objects([uuid(1), uuid(2)])
    assert await states(storage) == {1: COPY_FINISHED, 2: COPY_STARTED}, "not to be deleted yet"
    await storage.delete_objects([uuid(1), uuid(2), uuid(3)], 99)
    storage = await world.start()
    assert await storage.objects(1, [COPY_STARTED, COPY_FINISHED], 9) == []
    found = await storage.objects(1, [DELETE_STARTED], 9)
    assert [(each.uuid, each.delete_after_ms) for each in found] == [(uuid(1), 99), (uuid(2), 99)]
    (now,) = await storage.segments_by_id([row.id])
    assert (now.object, now.tier, now.state, now.local) == (b"", 0, LIVE, True)
    await storage.delete_objects([uuid(1)], 200)
    assert await storage.objects_by_uuid([uuid(1)]) == found[:1], "the first word counts"
    assert await storage.finish_objects([uuid(2)], {}) == [], "it is never taken up again"
    await storage.drop_objects([uuid(1)])
    assert await storage.objects(1, ALL, 9) == found[1:]
    assert await storage.start_objects([thing(4, row)], {}) == [uuid(4)], "it may be tried anew"


async def test_what_a_scrub_found_is_entered_to_be_deleted(world: World) -> None:
    storage = await world.start()
    await uploaded(storage, 1, mapping(1, 0, 10))
    (known,) = await storage.objects_by_uuid([uuid(1)])
    strange = ObjectRow(uuid(2), 0, 1, 0, COPY_FINISHED, 77, 5, 99)
    await storage.condemn_objects([strange, ObjectRow(uuid(1), 0, 1, delete_after_ms=9)])
    await storage.condemn_objects([ObjectRow(uuid(2), 0, 1, delete_after_ms=1)])
    storage = await world.start()
    assert await storage.objects_by_uuid([uuid(1)]) == [known], "it has an owner"
    (found,) = await storage.objects(1, [DELETE_STARTED], 9)
    assert (found.uuid, found.size_bytes, found.delete_after_ms) == (uuid(2), 77, 99)
    assert await storage.unneeded_objects(1, 9) == []
    await storage.drop_objects([uuid(2)])
    assert await states(storage) == {1: COPY_FINISHED}


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


async def test_objects_whose_segments_are_not_read_are_found(world: World) -> None:
    storage = await world.start()
    rows = [await uploaded(storage, at, mapping(1, 10 * at, 10 * at + 10)) for at in range(4)]
    late = await finished(storage, mapping(2, 0, 10))
    await storage.start_objects([thing(9, late)], {})
    assert await storage.unneeded_objects(1, 9) == []
    await storage.remove_mappings({1: 30, 2: 10})
    storage = await world.start()
    found = [row.uuid for row in await storage.unneeded_objects(1, 9)]
    assert found == [uuid(0), uuid(1), uuid(2)], "what is not finished is its uploader's to delete"
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


async def test_only_what_is_in_the_remote_tier_may_lose_its_file(world: World) -> None:
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


async def test_what_is_dispatched_and_not_committed_is_found(world: World) -> None:
    storage = await world.start()
    assert await storage.uncommitted(9) == []
    await storage.save_tiering_offsets({1: (10, 5), 2: (3, 3), 8: (4, 0), 9: (7, 6)})
    storage = await world.start()
    assert await storage.uncommitted(9) == [1, 8, 9]
    assert await storage.uncommitted(2) == [1, 8]
    assert await storage.uncommitted(9, 1) == [8, 9]
    await storage.save_tiering_offsets({8: (4, 4)})
    assert await storage.uncommitted(9) == [1, 9]


async def test_nothing_is_written_for_partitions_of_other_brokers(world: World) -> None:
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


async def test_a_deleted_topic_leaves_its_objects_to_be_deleted(world: World) -> None:
    storage = await world.start()
    await uploaded(storage, 1, mapping(8, 0, 10), mapping(9, 0, 10))
    await storage.save_tiering_offsets({8: (10, 10), 9: (10, 0), 1: (1, 1)})
    await world.delete()
    storage = await world.start()
    await storage.save_tiering_offsets({8: (11, 11), 1: (2, 1)})
    assert await storage.unneeded_objects(1, 9) == []
    await storage.remove_mappings(dict.fromkeys(GONE, EVERYTHING))
    assert await storage.load_partitions(GONE) == [PartitionRow(8), PartitionRow(9)]
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(1)]
    assert await ends(storage, 1) == (2, 1)


async def test_tiers_are_entered_and_changed(world: World) -> None:
    storage = await world.start()
    rows = [TierRow(300, "s3://b/ü?x=1", CURRENT, 5), TierRow(2, "file:///d", BEING_LEFT, 2**40)]
    for row in rows:
        await storage.save_tier(row)
    storage = await world.start()
    assert await storage.tiers() == [rows[1], rows[0]]
    changed = TierRow(2, "file:///e", CURRENT, 9)
    await storage.save_tier(changed)
    assert await storage.tiers() == [changed, rows[0]]


async def test_a_copy_in_another_tier_takes_the_place_of_the_old_object(world: World) -> None:
    storage = await world.start()
    away = await uploaded(storage, 1, mapping(1, 0, 10))
    await storage.set_local([away.id], False)
    await uploaded(storage, 2, mapping(2, 0, 10))
    await storage.remove_mappings({2: 10})
    new = await finished(storage, mapping(3, 0, 10))
    await storage.start_objects([thing(3, new)], {})
    moved = {
        uuid(at): ObjectRow(uuid(10 + at), 0, 1, 1, COPY_STARTED, 4096, 800, 99, b"")
        for at in (1, 2, 3, 4)
    }
    (now,) = await storage.relocate_objects(moved)
    assert (now.id, now.object, now.tier, now.local) == (away.id, uuid(11), 1, False)
    storage = await world.start()
    assert await storage.segments_by_id([away.id]) == [now]
    old, other, third, copy = await storage.objects(1, ALL, 9)
    assert (old.state, old.delete_after_ms, old.tier) == (DELETE_STARTED, 99, 0)
    assert (other.state, third.state) == (COPY_FINISHED, COPY_STARTED)
    assert copy == ObjectRow(uuid(11), away.id, 1, 1, COPY_FINISHED, 4096, 800, 0, b"")
    assert await storage.relocate_objects(moved) == [], "it has been moved"
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(2)]


async def test_a_restore_enters_what_lies_in_the_remote_tier_only(world: World) -> None:
    storage = await world.start()
    rows = [segment(1), segment(2)]
    for row in rows:
        row.size_bytes, row.max_timestamp, row.generation = 4096, 77, 5
    one = [mapping(1, 0, 10, due_ms=4), mapping(2, 0, 10), mapping(UNKNOWN, 0, 10)]
    things = [ObjectRow(uuid(at), 0, 1, 3, COPY_STARTED, 4096, 9, 0, b"") for at in (1, 2)]
    entered = [(rows[0], things[0], one), (rows[1], things[1], [mapping(UNKNOWN, 10, 20)])]
    first, second = await storage.enter_remote(entered)
    storage = await world.start()
    found = await storage.segments_by_id([first, second])
    assert [(row.state, row.local, row.object, row.tier) for row in found] == [
        (LIVE, False, uuid(1), 3),
        (DELETING, False, uuid(2), 3),
    ]
    assert [(row.live_bytes, row.size_bytes, row.generation, row.created_ms) for row in found] == [
        (200, 4096, 5, 501),
        (0, 4096, 5, 502),
    ]
    rows[0].id = first
    assert await storage.segment_mappings([first, second]) == within(rows[0], *one[:2])
    assert [row.number for row in await storage.expiring(NEVER, 9)] == [1]
    made = await storage.objects(1, [COPY_FINISHED], 9)
    assert [row.segment_id for row in made] == [first, second]
    assert [row.uuid for row in await storage.unneeded_objects(1, 9)] == [uuid(2)]
    assert [(row.records, row.size_bytes) for row in await storage.stats([1])] == [(10, 100)]
    before = await everything(storage)
    last = ObjectRow(uuid(3), 0, 1)
    for taken in (
        [(segment(3), last, [mapping(2, 5, 20)])],
        [
            (segment(3), last, [mapping(3, 0, 5)]),
            (segment(4), ObjectRow(uuid(4), 0, 1), [mapping(3, 4, 9)]),
        ],
    ):
        with pytest.raises(StaleSwap):
            await storage.enter_remote(taken)
        assert await everything(storage) == before
    await finished(storage, mapping(1, 10, 20))
    (again,) = await storage.start_segments([segment(9)])
    assert again not in (first, second)


async def test_a_transaction_that_fails_leaves_everything_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await world.start()
    row = await uploaded(storage, 1, mapping(1, 0, 10))
    other = await finished(storage, mapping(1, 10, 20))
    await storage.start_objects([thing(2, other)], {})
    before = await everything(storage)

    def fail(*_: object) -> None:
        raise MetadataError("the disk is full")

    def lines() -> list[Any]:
        return [
            storage.start_objects([thing(3, other)], {1: 50}),
            storage.finish_objects([uuid(2)], {1: 50}),
            storage.relocate_objects({uuid(1): thing(4, row, tier=1)}),
        ]

    with monkeypatch.context() as patch:  # after the first writes of the transaction
        patch.setattr(sql_objects, "raise_offsets", fail)
        patch.setattr(sql_objects, "_point", fail)
        patch.setattr(MemoryStore, "write", fail)
        patch.setattr(RocksStore, "write", fail)
        for call in lines():
            with pytest.raises(MetadataError, match="full"):
                await call
    assert await everything(storage) == before
    for call in lines():
        await call
    assert await states(await world.start()) == {
        1: DELETE_STARTED,
        2: COPY_FINISHED,
        3: COPY_STARTED,
        4: COPY_FINISHED,
    }


async def test_more_than_fits_into_one_statement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PART", 3)
    monkeypatch.setattr(sql_objects, "UUIDS_AT_ONCE", 3)
    storage = await world.start()
    rows = [await finished(storage, mapping(1, 10 * at, 10 * at + 10)) for at in range(20)]
    things = [thing(at, row) for at, row in enumerate(rows)]
    uuids = [row.uuid for row in things]
    assert await storage.start_objects(things, dict.fromkeys(MINE, 9)) == uuids
    assert len(await storage.finish_objects(uuids, dict.fromkeys(MINE, 9))) == 20
    assert [await ends(storage, number) for number in MINE] == [(9, 9)] * len(MINE)
    assert len(await storage.set_local([row.id for row in rows], False)) == 20
    assert [row.uuid for row in await storage.objects_by_uuid(uuids)] == uuids
    await storage.delete_objects(uuids, 5)
    await storage.drop_objects(uuids)
    assert await storage.objects(1, ALL, 99) == []


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_storage_does_what_the_one_in_memory_does(world: World, seed: int) -> None:
    """Operations made up by chance, against two storages at once."""
    other = KeyValueWorld()
    rng = random.Random(seed)
    storages = [await world.start(), await other.start()]
    for step in range(60):
        world.clock.ms = other.clock.ms = 1_000 + step
        if step % 5 == 0:
            cut = mapping(1, step, step + 5)
            row = segment(step)
            for storage in storages:
                (row.id,) = await storage.start_segments([row])
                await storage.finish_segments(Swap([(row, [cut])]))
            continue
        call = _made_up(rng, step)
        results = [await call(storage) for storage in storages]
        assert results[0] == results[1], step
        if rng.random() < 0.1:
            storages = [await world.start(), await other.start()]
        if step % 4 == 3:
            assert await everything(storages[0]) == await everything(storages[1]), step


def _made_up(rng: random.Random, step: int) -> Any:
    what = rng.choice(["start", "finish"] * 2 + ["delete", "drop", "local", "remove", "move"])
    some = [uuid(rng.randint(1, step)) for _ in range(rng.randint(1, 8))]
    ids = [rng.randint(1, 1 + step // 5) for _ in range(3)]
    if what == "start":
        rows = [
            ObjectRow(uuid(100 * at + step), segment_id, 1, rng.randint(0, 1))
            for at, segment_id in enumerate(ids)
        ]
        return lambda storage: storage.start_objects(rows, {1: step})
    some += [uuid(100 * at + before) for at in range(3) for before in range(step)]
    some = rng.sample(some, min(len(some), rng.randint(1, 40)))
    if what == "finish":
        return lambda storage: storage.finish_objects(some, {1: step, 2: 5})
    if what == "delete":
        return lambda storage: storage.delete_objects(some[:4], step)
    if what == "drop":
        return lambda storage: storage.drop_objects(some)
    if what == "local":
        return lambda storage: storage.set_local(ids, step % 3 == 0)
    if what == "remove":
        return lambda storage: storage.remove_mappings({1: step // 2}, step)
    moved = {
        each: ObjectRow(uuid(10_000 + 100 * step + at), 0, 1, 2, delete_after_ms=step)
        for at, each in enumerate(some[:6])
    }
    return lambda storage: storage.relocate_objects(moved)


async def test_a_rocksdb_folder_of_the_format_before_is_taken_over(tmp_path: Path) -> None:
    world = KeyValueWorld(tmp_path)
    storage = await world.start()
    assert isinstance(storage, RocksStorage)
    row = await finished(storage, mapping(1, 0, 10))
    await storage.save_checkpoint(Checkpoint(1, 5, [PartitionCheckpoint(1, 10, 0, [], [])]))
    (now,) = await storage.segments_by_id([row.id])
    await world.close()

    import rocksdict

    packed = struct.pack(
        ">16siqBQQIqq", now.uuid, now.node_id, now.created_ms, now.state, now.size_bytes,
        now.live_bytes, now.generation, now.max_timestamp, now.delete_after_ms,
    )  # fmt: skip
    database = rocksdict.Rdict(f"{tmp_path}/offsets", rocksdict.Options(raw_mode=True))
    database.put(b"s" + row.id.to_bytes(8, "big"), packed + now.retention_class.encode())
    database.put(b"v", b"\x01")
    database.close()
    for _ in range(2):  # the second time there is nothing to do
        storage = await world.start()
        assert await storage.segments_by_id([row.id]) == [now]
        assert await storage.load_place(1) == 5
    await storage.start_objects([thing(1, row)], {})
    await storage.finish_objects([uuid(1)], {})
    storage = await world.start()
    (now,) = await storage.segments_by_id([row.id])
    assert (now.object, now.retention_class) == (uuid(1), "week")
    await world.close()
