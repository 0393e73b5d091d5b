"""Removing a broker from the metadata, for every store, and what SQL has of it, so that it stays.

Covers: kafkawire.metadata.statements.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.catalog import BROKER_RESOURCE, ConfigChange, NewTopic
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.statements import held_by_broker
from kafkawire.metadata.store import BrokerSuperseded, CatalogChanged, Metadata
from kafkawire.offsets.catalog import object_logs
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.postgres import new_database

SEGMENT = (
    "INSERT INTO segments (id, uuid, node_id, state, size_bytes, live_bytes, generation,"
    " retention_class, created_ms, max_timestamp, delete_after_ms)"
    " VALUES (1, X'01', {node}, 1, 9, 9, 0, '', 0, 0, 0)"
)
OBJECT = (
    "INSERT INTO remote_objects (uuid, segment_id, node_id, tier, state, size_bytes, created_ms,"
    " delete_after_ms, ranges) VALUES (X'02', 1, {node}, 0, 1, 9, 0, 0, X'')"
)
RANGE = (
    "INSERT INTO offset_mappings (partition_number, base_offset, segment_id, end_offset, start,"
    " length, index_start, index_length, index_checksum, max_timestamp, batches, records, due_ms,"
    " created_at) VALUES ({partition}, 0, 1, 9, 0, 9, 0, 0, 0, 0, 1, 9, -1, 0)"
)

LOG = (
    "INSERT INTO object_logs (node_id, broker_epoch, url, released, ended, changed_ms)"
    " VALUES ({node}, {epoch}, 'file:///tier/nodes/2', 3, {ended}, 0)"
)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def start(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Metadata]]:
    """Start stores that share one database, one per process."""
    made: list[Metadata] = []
    durable, url = MemoryDatabase(), f"sqlite:///{tmp_path}/metadata.db"
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))

    def new() -> Metadata:
        made.append(MemoryMetadata(durable) if request.param == "memory" else SqlMetadata(url))
        return made[-1]

    yield new
    for store in made:
        await store.close()


async def two(start: Callable[[], Metadata]) -> tuple[Metadata, Metadata]:
    """Brokers 1 and 2."""
    stores = start(), start()
    for node_id, store in enumerate(stores, 1):
        await store.open()
        await store.register_broker(node_id, {}, None)
    return stores


async def refused(code: ErrorCode, store: Metadata, node_id: int) -> None:
    with pytest.raises(KafkaError) as caught:
        await store.remove_broker(node_id, await store.catalog_version())
    assert caught.value.code is code


async def test_removal_is_found_by_other_processes(start: Callable[[], Metadata]) -> None:
    first, second = await two(start)
    await first.alter_configs([ConfigChange(BROKER_RESOURCE, "2", "x", "y")])
    await second.beat(2)
    changes = await first.changes_since(0)
    assert changes.registered == frozenset({1, 2})
    (before,) = [each.epoch for each in changes.brokers if each.node_id == 2]
    with pytest.raises(CatalogChanged):
        await first.remove_broker(2, changes.version - 1)
    await first.remove_broker(2, changes.version)
    found = await first.changes_since(changes.version)
    assert (found.registered, found.broker_settings) == (frozenset({1}), {})
    assert await first.beat(1) == {1: 1}
    with pytest.raises(BrokerSuperseded, match="was removed"):
        await second.beat(2)
    catalog = await start().open()
    assert (set(catalog.brokers), catalog.broker_overrides) == ({1}, {})
    assert catalog.group(2) is not None
    await refused(ErrorCode.BROKER_ID_NOT_REGISTERED, first, 2)
    with pytest.raises(BrokerSuperseded, match="was removed"):
        await second.register_broker(2, {"P": ("h", 1)}, None)

    again = start()
    catalog = await again.open()
    await again.register_broker(2, {}, None)
    assert catalog.brokers[2].epoch > before
    assert (await first.changes_since(found.version)).registered == frozenset({1, 2})


async def test_leader_of_partitions_is_not_removed(start: Callable[[], Metadata]) -> None:
    first, _ = await two(start)
    (info,) = await first.create_topics([NewTopic("t", [1, 2])])
    await refused(ErrorCode.INVALID_REQUEST, first, 2)
    assert set((await start().open()).brokers) == {1, 2}
    await first.delete_topics([info.id])
    await first.remove_broker(2, await first.catalog_version())
    assert set((await start().open()).brokers) == {1}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([SEGMENT.format(node=2)], "has 1 segment: only"),
        ([OBJECT.format(node=2)], "has 1 object in"),
        ([SEGMENT.format(node=1), RANGE], "has 1 range of deleted topics"),
        ([LOG.format(node=2, epoch=1, ended="NULL")], "has 1 log that may"),
        ([LOG.format(node=2, epoch=at, ended=4) for at in (1, 2)], "has 2 logs that may"),
        ([LOG.format(node=2, epoch=1, ended=3), LOG.format(node=1, epoch=1, ended=4)], None),
        ([SEGMENT.format(node=1), OBJECT.format(node=1)], None),
    ],
)
async def test_broker_with_segments_or_log_objects_is_not_removed(
    tmp_path: Path, rows: list[str], sentence: str | None
) -> None:
    store = SqlMetadata(f"sqlite:///{tmp_path}/metadata.db")
    catalog = await store.open()
    for node_id in (1, 2):
        await store.register_broker(node_id, {}, None)
    (info,) = await store.create_topics([NewTopic("t", [2])])
    await store.delete_topics([info.id])

    def prepare(session: Session) -> None:
        for row in rows:
            session.run(row.format(partition=info.partitions[0].number))

    await store.transact(prepare)
    if sentence is None:
        await store.remove_broker(2, catalog.stored_version)
    else:
        with pytest.raises(KafkaError, match=sentence) as caught:
            await store.remove_broker(2, catalog.stored_version)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    found = await store.changes_since(0)
    assert found.registered == (frozenset({1}) if sentence is None else frozenset({1, 2}))
    await store.close()


@pytest.mark.parametrize(
    ("logs", "sentence"),
    [
        ([("own", "NULL")], None),
        ([("own", "NULL"), ("earlier", "3")], None),
        ([("earlier", "NULL")], "has 1 log that may"),
        ([("own", "NULL"), ("earlier", "4")], "has 1 log that may"),
    ],
)
async def test_broker_removes_itself_with_its_own_open_log(
    tmp_path: Path, logs: list[tuple[str, str]], sentence: str | None
) -> None:
    store = SqlMetadata(f"sqlite:///{tmp_path}/metadata.db")
    catalog = await store.open()
    await store.register_broker(2, {}, None)
    epoch = catalog.brokers[2].epoch

    def prepare(session: Session) -> None:
        for life, ended in logs:
            at = epoch if life == "own" else epoch - 1
            session.run(LOG.format(node=2, epoch=at, ended=ended))

    await store.transact(prepare)
    held = await store.transact(lambda session: held_by_broker(session, 2, epoch))
    assert (held is None) == (sentence is None)
    if sentence is None:
        await store.remove_broker(2, catalog.stored_version, epoch)
        left = await store.transact(lambda session: object_logs.load(session, 2))
        assert [each.broker_epoch for each in left] == [epoch - 1] * (len(logs) - 1), "its fence"
    else:
        with pytest.raises(KafkaError, match=sentence):
            await store.remove_broker(2, catalog.stored_version, epoch)
        assert len(await store.transact(lambda session: object_logs.load(session, 2))) == len(logs)
    await store.close()


async def test_broker_that_was_started_elsewhere_does_not_remove_itself(
    start: Callable[[], Metadata],
) -> None:
    first, _ = await two(start)
    catalog = await start().open()
    epoch = catalog.brokers[2].epoch
    with pytest.raises(BrokerSuperseded):
        await first.remove_broker(2, await first.catalog_version(), epoch - 1)
    await first.remove_broker(2, await first.catalog_version(), epoch)
    assert set((await start().open()).brokers) == {1}
