"""The life cycle of an object in the remote tier, for every `SegmentCatalog`.

Covers: kafkawire.offsets.catalog.kv.objects, kafkawire.offsets.catalog.objects.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.format_errors import FormatError
from kafkawire.offsets.catalog.port import (
    BEING_LEFT,
    COPY_FINISHED,
    COPY_STARTED,
    CURRENT,
    DELETE_STARTED,
    DELETING,
    EVERYTHING,
    LIVE,
    NEVER,
    ObjectRow,
    PartitionRow,
    SegmentRow,
    StaleSwap,
    TierRow,
    pack_ranges,
    unpack_ranges,
)
from tests.kit.offsets.rows import ALL, ends, everything, states, thing, uploaded, uuid
from tests.kit.offsets.worlds import (
    GONE,
    UNKNOWN,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
    within,
)


def test_packed_ranges_round_trip() -> None:
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


async def test_object_is_started_then_finished(world: World) -> None:
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


async def test_segments_not_allowed_to_be_uploaded_are_excluded(world: World) -> None:
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
    ], "another tier needs an object of its own, made from a file"


async def test_upload_finished_too_late_is_refused(world: World) -> None:
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


async def test_object_in_other_tier_replaces_existing_one(world: World) -> None:
    storage = await world.start()
    row = await uploaded(storage, 1, mapping(1, 0, 10))
    assert await storage.start_objects([thing(2, row, tier=5)], {}) == [uuid(2)]
    (now,) = await storage.finish_objects([uuid(2)], {1: 10})
    assert (now.object, now.tier) == (uuid(2), 5)
    assert await states(storage) == {1: DELETE_STARTED, 2: COPY_FINISHED}
    assert await ends(storage, 1) == (10, 10)


async def test_object_is_deleted_in_two_steps(world: World) -> None:
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
    assert await storage.objects_by_uuid([uuid(1)]) == found[:1], "the first request counts"
    assert await storage.finish_objects([uuid(2)], {}) == [], "it is never resumed"
    await storage.drop_objects([uuid(1)])
    assert await storage.objects(1, ALL, 9) == found[1:]
    assert await storage.start_objects([thing(4, row)], {}) == [uuid(4)], "it may be tried again"


async def test_objects_found_by_scrub_are_scheduled_for_deletion(world: World) -> None:
    storage = await world.start()
    await uploaded(storage, 1, mapping(1, 0, 10))
    (known,) = await storage.objects_by_uuid([uuid(1)])
    strange = ObjectRow(uuid(2), 0, 1, 0, COPY_FINISHED, 77, 5, 99)
    await storage.schedule_object_deletion([strange, ObjectRow(uuid(1), 0, 1, delete_after_ms=9)])
    await storage.schedule_object_deletion([ObjectRow(uuid(2), 0, 1, delete_after_ms=1)])
    storage = await world.start()
    assert await storage.objects_by_uuid([uuid(1)]) == [known], "it has an owner"
    (found,) = await storage.objects(1, [DELETE_STARTED], 9)
    assert (found.uuid, found.size_bytes, found.delete_after_ms) == (uuid(2), 77, 99)
    assert await storage.unneeded_objects(1, 9) == []
    await storage.drop_objects([uuid(2)])
    assert await states(storage) == {1: COPY_FINISHED}


async def test_objects_of_deleted_topic_are_scheduled_for_deletion(world: World) -> None:
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


async def test_tiers_are_stored_and_changed(world: World) -> None:
    storage = await world.start()
    rows = [
        TierRow(300, "s3://b/ü?x=1", CURRENT, 5, 1),
        TierRow(2, "file:///d", BEING_LEFT, 2**40, 1),
    ]
    for row in rows:
        await storage.save_tier(row)
    storage = await world.start()
    assert await storage.tiers() == [rows[1], rows[0]]
    changed = TierRow(2, "file:///e", CURRENT, 9, 1)
    await storage.save_tier(changed)
    assert await storage.tiers() == [changed, rows[0]]


async def test_first_broker_claims_the_url(world: World) -> None:
    storage = await world.start()
    made = TierRow(0, "s3://bucket/p", CURRENT, 5, 1)
    for now_ms in (5, 6):
        assert await storage.claim_tier("s3://bucket/p", "s3://bucket/p/nodes/1", now_ms) == made
    assert (
        await storage.claim_tier("s3://bucket/p?region=x", "s3://bucket/p/nodes/1?region=x", 7)
        == made
    )
    other = await storage.claim_tier("s3://other", "s3://other/nodes/1", 8)
    assert other == TierRow(1, "s3://other", CURRENT, 8, 1)
    assert await storage.tiers() == await storage.adopt_tiers() == [made, other]


async def test_copy_in_other_tier_replaces_old_object(world: World) -> None:
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


async def test_restore_adds_remote_only_segments(world: World) -> None:
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
