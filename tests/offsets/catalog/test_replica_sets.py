"""Replica sets and followers in SQL: stored by the newest process only, in order of versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.postgres import new_database

NODE = 1
NOW_MS = 1_700_000_000_000
LISTENERS = {"PLAINTEXT": ("127.0.0.1", 9092)}


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    url = f"sqlite:///{tmp_path}/metadata.db"
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))
    memory = request.param == "memory"
    made: SqlStore = MemoryMetadata(MemoryDatabase()) if memory else SqlMetadata(url)
    catalog = await made.open()
    await made.register_broker(NODE, LISTENERS, None)
    assert catalog.brokers[NODE].epoch == 1
    yield made
    await made.close()


async def put(store: SqlStore, epoch: int, in_sync: str, version: int) -> bool:
    return await store.transact(
        lambda session: replica_sets.store(session, NODE, epoch, set(in_sync), version, NOW_MS)
    )


async def get(store: SqlStore) -> ReplicaSet | None:
    return await store.transact(lambda session: replica_sets.load(session, NODE))


async def register(store: SqlStore, row: FollowerRow, now_ms: int) -> None:
    await store.transact(lambda session: replica_sets.register(session, row, now_ms))


async def test_sets_are_stored_in_order_of_their_versions(store: SqlStore) -> None:
    assert await get(store) is None
    assert await put(store, 1, "ab", 0)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset("ab"), 1)
    assert await put(store, 1, "a", 1)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset("a"), 2)
    assert await put(store, 1, "", 2)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset(), 3)
    every = await store.transact(replica_sets.load_all)
    assert every == [await get(store)]


async def test_a_change_whose_answer_was_lost_is_repeated(store: SqlStore) -> None:
    for _ in range(2):
        assert await put(store, 1, "ab", 0)
    for _ in range(2):
        assert await put(store, 1, "b", 1)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset("b"), 2)


async def test_a_change_of_another_version_is_refused(store: SqlStore) -> None:
    assert await put(store, 1, "ab", 0)
    for version in (0, 2):
        with pytest.raises(MetadataError, match="replica set of broker 1"):
            await put(store, 1, "a", version)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset("ab"), 1)


async def test_a_superseded_process_changes_nothing(store: SqlStore) -> None:
    assert await put(store, 1, "ab", 0)
    assert not await put(store, 2, "b", 1)
    assert not await put(store, 0, "b", 1)
    assert await get(store) == ReplicaSet(NODE, 1, frozenset("ab"), 1)


async def test_followers_are_registered_by_their_replica_id(store: SqlStore) -> None:
    one = FollowerRow("aa", 2, "10.0.0.2", 9099, b"s" * 32)
    other = replace(one, replica_id="bb", node_id=1)
    newer = replace(one, replica_id="cc", port=9098)
    for at, each in enumerate((one, other, newer)):
        await register(store, each, NOW_MS + at)
    found = await store.transact(replica_sets.load_followers)
    assert found == [other, newer, one]
    moved = replace(one, host="10.0.0.3", secret=b"t" * 32)
    await register(store, moved, NOW_MS + 9)
    assert await store.transact(replica_sets.load_followers) == [other, moved, newer]


async def test_set_that_is_not_needed_is_deleted(store: SqlStore) -> None:
    assert await put(store, 1, "ab", 0)
    await store.transact(lambda session: replica_sets.delete(session, NODE, 2))
    assert await get(store) is not None
    await store.transact(lambda session: replica_sets.delete(session, NODE, 1))
    assert await get(store) is None
    assert await put(store, 1, "b", 0)
