"""The contract of `SegmentCatalog`, checked for every implementation: memory, SQLite, PostgreSQL,
RocksDB.

Covers: kafkawire.offsets.catalog.kv.store, kafkawire.offsets.catalog.kv.storage,
kafkawire.offsets.catalog.kv.swap.
"""

from __future__ import annotations

import itertools

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.offsets.catalog.port import (
    DELETING,
    EVERYTHING,
    LIVE,
    NEVER,
    STARTED,
    PartitionRow,
    StaleSwap,
    StorageMetrics,
    StoredStats,
    Swap,
)
from tests.kit.offsets.rows import STATES, everything, state
from tests.kit.offsets.worlds import (
    FOREIGN,
    GONE,
    UNKNOWN,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
    within,
)


async def test_new_storage_is_empty(world: World) -> None:
    storage = await world.start()
    assert await storage.load_log_position(1) == 0
    assert await storage.load_partitions([2, 1]) == [PartitionRow(2), PartitionRow(1)]
    assert await storage.load_partitions([]) == []
    assert await storage.mappings([]) == []
    assert await storage.mappings([(1, 0, 9)]) == [[]]
    assert await storage.segments(1, STATES, 9) == []
    assert await storage.segments_by_id([1]) == []
    assert await storage.segment_mappings([1]) == []
    assert await storage.expiring(NEVER, 9) == []
    assert await storage.orphans(9) == []
    assert await storage.stats([3]) == [StoredStats(3)]
    assert await storage.metrics() == StorageMetrics(0, 0, {}, 0, 0)


async def test_checkpoint_keeps_last_state_of_each_partition(world: World) -> None:
    storage = await world.start()
    await storage.save_checkpoint(Checkpoint(1, 2**40, [state(2), state(1)]))
    await storage.save_checkpoint(Checkpoint(1, 2**40 + 5, [state(2, 12), state(3)]))
    await storage.save_checkpoint(Checkpoint(2, 77, []))
    storage = await world.start()
    expected = [PartitionRow(3, state(3)), PartitionRow(4), PartitionRow(2, state(2, 12))]
    assert await storage.load_partitions([3, 4, 2]) == expected
    assert await storage.load_partitions([1]) == [PartitionRow(1, state(1))]
    assert (await storage.load_log_position(1), await storage.load_log_position(2)) == (
        2**40 + 5,
        77,
    )


async def test_checkpoint_stores_only_led_partitions(world: World) -> None:
    storage = await world.start()
    await storage.save_checkpoint(Checkpoint(1, 1, [state(1)]))
    before = await everything(storage)
    with pytest.raises(KafkaError) as caught:
        await storage.save_checkpoint(Checkpoint(1, 2, [state(1, 20), state(FOREIGN)]))
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await everything(storage) == before
    await storage.save_checkpoint(Checkpoint(2, 3, [state(FOREIGN)]))
    assert await storage.load_partitions([FOREIGN]) == [PartitionRow(FOREIGN, state(FOREIGN))]


async def test_rows_of_another_leader_are_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention and settings change the mappings of led partitions only."""
    storage = await world.start()
    await finished(storage, mapping(1, 0, 10), mapping(8, 0, 10))
    before = await everything(storage)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_node_id", 2)
        assert await storage.remove_mappings({1: EVERYTHING, 8: 10}) == []
        await storage.set_due([1, 8], 5)
        await storage.set_due(None, 5)
        assert await everything(storage) == before
        await world.delete()
        (row,) = await storage.remove_mappings({1: 10, 8: EVERYTHING})
        assert row.live_bytes, "those of deleted topics go, whichever broker led them"
    await storage.set_due([1], 5)
    (stored,) = await storage.load_partitions([1])
    assert [each.due_ms for each in stored.mappings] == [5]


async def test_missing_partitions_are_ignored(world: World) -> None:
    storage = await world.start()
    await storage.save_checkpoint(Checkpoint(1, 1, [state(8), state(1), state(UNKNOWN)]))
    assert await storage.load_partitions([UNKNOWN]) == [PartitionRow(UNKNOWN)]
    await world.delete()
    storage = await world.start()
    await storage.save_checkpoint(Checkpoint(1, 2, [state(8, 10), state(9), state(1, 10)]))
    rows = await storage.load_partitions([9, 1])
    assert [row.checkpoint for row in rows] == [None, state(1, 10)]
    assert await storage.load_log_position(1) == 2


async def test_started_segment_is_found_and_discarded_after_restart(world: World) -> None:
    storage = await world.start()
    rows = [segment(at) for at in range(3)] + [segment(3, node_id=2)]
    ids = await storage.start_segments(rows)
    assert len(set(ids)) == 4
    storage = await world.start()
    for row, segment_id in zip(rows, ids, strict=True):
        row.id = segment_id
    rows.sort(key=lambda row: row.id)
    mine = [row for row in rows if row.node_id == 1]
    assert await storage.segments(1, [STARTED], 9) == mine
    assert await storage.segments(1, [LIVE, DELETING], 9) == []
    assert await storage.segments(1, STATES, 2) == mine[:2]
    assert await storage.segments(1, STATES, 9, after_id=mine[0].id) == mine[1:]
    assert await storage.segments_by_id(reversed(ids)) == rows  # type: ignore[arg-type]
    await storage.drop_segments(ids)
    (again,) = await storage.start_segments([segment(4)])
    assert again not in ids, "an id was assigned twice"
    assert [row.id for row in await storage.segments(1, STATES, 9)] == [again]


async def test_cut_adds_mappings_and_counts_them(world: World) -> None:
    storage = await world.start()
    one = await finished(
        storage, mapping(1, 0, 10), mapping(2, 5, 7, due_ms=40), checkpoints=[state(2)]
    )
    world.clock.ms = 2_000
    two = await finished(storage, mapping(1, 10, 30, due_ms=50))
    storage = await world.start()
    first, second = within(one, mapping(1, 0, 10), mapping(2, 5, 7, due_ms=40))
    (third,) = within(two, mapping(1, 10, 30, due_ms=50))
    rows = await storage.load_partitions([1, 2])
    assert rows == [PartitionRow(1, None, [first, third]), PartitionRow(2, state(2), [second])]
    stored = await storage.segments(1, [LIVE], 9)
    assert [(row.id, row.live_bytes, row.size_bytes) for row in stored] == [
        (one.id, 120, 4096),
        (two.id, 200, 4096),
    ]
    assert [(row.generation, row.retention_class, row.max_timestamp) for row in stored] == [
        (0, "week", 77),
        (0, "week", 77),
    ]
    assert await storage.segment_mappings([two.id, one.id]) == [first, second, third]
    stats = await storage.stats([2, 1])
    assert stats == [
        StoredStats(2, 9, 3, 1, 2, 20, 1_000, 1_000),
        StoredStats(1, -1, 0, 2, 30, 300, 1_000, 2_000),
    ]
    assert await storage.metrics() == StorageMetrics(1, 3, {LIVE: 2}, 8192, 320)


async def test_lookup_finds_mappings_covering_range(world: World) -> None:
    storage = await world.start()
    ends = [0, 10, 20, 30, 40]
    rows = [mapping(1, low, high) for low, high in itertools.pairwise(ends)]
    one = await finished(storage, *rows, mapping(2, 0, 100))
    rows = within(one, *rows)
    asked = [(1, 0, 1), (1, 9, 10), (1, 9, 11), (1, 10, 20), (1, 0, NEVER), (1, 39, 40)]
    expected = [rows[:1], rows[:1], rows[:2], rows[1:2], rows, rows[3:]]
    assert await storage.mappings(asked) == expected
    none = [(1, 40, 50), (1, 5, 5), (1, 9, 3), (3, 0, 9), (UNKNOWN, 0, 9), (1, -5, 0)]
    assert await storage.mappings(none) == [[] for _ in none]
    (two,) = await storage.mappings([(2, 50, 51)])
    assert [row.number for row in two] == [2]


async def test_rewrite_replaces_segments_it_read(world: World) -> None:
    storage = await world.start()
    one = await finished(storage, mapping(1, 0, 10, due_ms=5), mapping(2, 0, 10))
    two = await finished(storage, mapping(1, 10, 20))
    old = [*within(one, mapping(1, 0, 10, due_ms=5)), *within(two, mapping(1, 10, 20))]
    new = await finished(storage, mapping(1, 0, 20), removed=old, delete_after_ms=99)
    assert (await storage.load_partitions([1]))[0].mappings == within(new, mapping(1, 0, 20))
    found = {row.id: row for row in await storage.segments(1, STATES, 9)}
    assert (found[one.id].state, found[one.id].live_bytes) == (LIVE, 100)
    assert (found[two.id].state, found[two.id].live_bytes) == (DELETING, 0)
    assert found[two.id].delete_after_ms == 99
    assert [found[row.id].generation for row in (one, two, new)] == [0, 0, 1]
    assert await storage.expiring(NEVER, 9) == []
    assert [stats.records for stats in await storage.stats([1, 2])] == [20, 10]
    await storage.drop_segments([one.id, two.id])
    assert {row.id for row in await storage.segments(1, STATES, 9)} == {one.id, new.id}
    third = await finished(storage, mapping(1, 0, 20), removed=within(new, mapping(1, 0, 20)))
    assert (await storage.segments_by_id([third.id]))[0].generation == 2


async def test_stale_swap_changes_nothing(world: World) -> None:
    storage = await world.start()
    one = await finished(storage, mapping(1, 0, 10, due_ms=5), mapping(2, 0, 10))
    row = segment(99)
    (row.id,) = await storage.start_segments([row])
    before = await everything(storage)
    (there,) = within(one, mapping(1, 0, 10, due_ms=5))
    stale = [
        Swap([(row, [mapping(1, 0, 20)])], [there._replace(segment_id=row.id)]),  # moved meanwhile
        Swap([(row, [mapping(1, 0, 20)])], [there._replace(end_offset=11)]),
        Swap([(row, [mapping(1, 0, 20)])], [there, there._replace(number=3)]),
        Swap([(row, [mapping(1, 9, 20)])]),  # offsets that are taken
        Swap([(row, [mapping(3, 0, 5), mapping(2, 3, 4)])]),
        Swap([(one, [mapping(1, 10, 20)])]),  # not STARTED
        Swap([(segment(98), [mapping(1, 10, 20)])]),  # never started
    ]
    for swap in stale:
        with pytest.raises(StaleSwap):
            await storage.finish_segments(swap)
        assert await everything(storage) == before
    moved = there._replace(due_ms=77)  # a due time may have been changed meanwhile
    await storage.finish_segments(Swap([(row, [mapping(1, 0, 20)])], [moved]))
    assert await everything(storage) != before
    assert await storage.expiring(NEVER, 9) == []


async def test_retention_drops_segments_entirely_below(world: World) -> None:
    storage = await world.start()
    rows = [mapping(1, 0, 10), mapping(1, 10, 20), mapping(2, 0, 10, due_ms=3)]
    one = await finished(storage, *rows)
    two = await finished(storage, mapping(1, 20, 30))
    assert await storage.remove_mappings({}) == []
    assert await storage.remove_mappings({1: 9, 3: 50}) == []
    (touched,) = await storage.remove_mappings({1: 15})
    assert (touched.id, touched.state, touched.live_bytes) == (one.id, LIVE, 200)
    world.clock.ms = 5_000
    gone = await storage.remove_mappings({1: 30, 2: 10}, delete_after_ms=60)
    assert [(row.id, row.state, row.live_bytes, row.delete_after_ms) for row in gone] == [
        (one.id, DELETING, 0, 60),
        (two.id, DELETING, 0, 60),
    ]
    assert gone == await storage.segments(1, [DELETING], 9)
    assert await storage.expiring(NEVER, 9) == []
    assert await storage.stats([1]) == [StoredStats(1, -1, 0, 0, 0, 0, 1_000, 1_000)]


async def test_deleted_topic_is_found_and_removed(world: World) -> None:
    storage = await world.start()
    rows = [mapping(8, 0, 10, due_ms=4), mapping(9, 0, 10), mapping(1, 0, 10, due_ms=6)]
    one = await finished(storage, *rows, checkpoints=[state(8), state(1)])
    assert await storage.orphans(9) == []
    await world.delete()
    storage = await world.start()
    assert await storage.orphans(9) == [8, 9]
    assert [row.number for row in await storage.expiring(NEVER, 1)] == [1]
    await storage.set_due(None, 2)
    assert [row.number for row in await storage.expiring(3, 9)] == [1]
    assert await storage.orphans(9) == [8, 9], "orphans have no due time to set"
    assert len(await storage.orphans(1)) == 1
    late = await finished(storage, mapping(8, 10, 20), checkpoints=[state(8, 99)])
    (found,) = await storage.segments_by_id([late.id])
    assert (found.state, found.live_bytes) == (DELETING, 0), (
        "no mapping of a deleted topic is added"
    )
    (touched,) = await storage.remove_mappings({8: EVERYTHING, 9: EVERYTHING})
    assert (touched.id, touched.live_bytes, touched.state) == (one.id, 100, LIVE)
    assert await storage.load_partitions(GONE) == [PartitionRow(8), PartitionRow(9)]
    assert await storage.stats(GONE) == [StoredStats(8), StoredStats(9)]
    assert await storage.orphans(9) == []
    assert [row.number for row in await storage.expiring(NEVER, 9)] == [1]


async def test_due_work_is_found_in_order(world: World) -> None:
    storage = await world.start()
    rows = [mapping(1, 0, 10, 30), mapping(2, 0, 10, 10), mapping(3, 0, 10, 20), mapping(4, 0, 9)]
    one = await finished(storage, *rows)
    rows = within(one, *rows)
    assert await storage.expiring(30, 9) == [rows[1], rows[2]]
    assert await storage.expiring(31, 9) == [rows[1], rows[2], rows[0]]
    assert await storage.expiring(NEVER, 1) == [rows[1]]
    assert await storage.expiring(0, 9) == []
    await storage.set_due([2, 4, 5], 15)
    assert [row.number for row in await storage.expiring(NEVER, 9)] == [2, 4, 3, 1]
    await storage.set_due([], 1)
    await storage.set_due([3], NEVER)
    assert [row.number for row in await storage.expiring(NEVER, 9)] == [2, 4, 1]
    await storage.set_due(None, 7)
    found = await storage.expiring(8, 9)
    assert [(row.number, row.due_ms) for row in found] == [(1, 7), (2, 7), (3, 7), (4, 7)]
    assert (await storage.load_partitions([1]))[0].mappings == found[:1]
