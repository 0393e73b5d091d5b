"""Storages keep objects in the same way: atomically, in large numbers, in any order of calls.

Covers: kafkawire.offsets.catalog.objects.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kafkawire.metadata import session
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage, RocksStore
from kafkawire.offsets.catalog.kv.store import MemoryStore
from kafkawire.offsets.catalog.kv.threaded import PluggedStore
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    ObjectRow,
    Swap,
)
from kafkawire.offsets.catalog.sql import objects as sql_objects
from tests.kit.offsets.rows import ALL, ends, everything, states, thing, uploaded, uuid
from tests.kit.offsets.worlds import (
    MINE,
    KeyValueWorld,
    World,
    each_world,  # noqa: F401  (a fixture, by name)
    finished,
    mapping,
    segment,
)


async def test_failed_transaction_changes_no_objects(
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
        patch.setattr(sql_objects.SqlRows, "raise_offsets", fail)
        patch.setattr(sql_objects.SqlRows, "store_segments", fail)
        patch.setattr(MemoryStore, "write", fail)
        patch.setattr(RocksStore, "write", fail)
        patch.setattr(PluggedStore, "write", fail)
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


async def test_more_objects_than_fit_into_one_statement(
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_object_storages_match_memory_storage(world: World, seed: int) -> None:
    """Random operations, applied to two storages."""
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


async def test_rocksdb_folder_of_previous_format_is_migrated(tmp_path: Path) -> None:
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
        assert await storage.load_log_position(1) == 5
    await storage.start_objects([thing(1, row)], {})
    await storage.finish_objects([uuid(1)], {})
    storage = await world.start()
    (now,) = await storage.segments_by_id([row.id])
    assert (now.object, now.retention_class) == (uuid(1), "week")
    await world.close()
