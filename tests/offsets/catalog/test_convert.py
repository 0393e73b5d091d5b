"""Offsets moved from SQL to RocksDB and back: every row, index keys, the next segment id.

Covers: kafkawire.cli.offsets.convert.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.store import MemoryStore
from kafkawire.offsets.catalog.port import DELETING, SegmentCatalog, TierRow
from kafkawire.offsets.storage import convert
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from tests.kit.client import Client, batch
from tests.kit.offsets.rows import everything, state, thing, uploaded
from tests.kit.offsets.worlds import MINE, Clock, SqlWorld, finished, mapping, segment
from tests.kit.server import port_of, running


async def filled(storage: SegmentCatalog) -> None:
    """A storage with rows of each kind, in each state."""
    await storage.save_checkpoint(Checkpoint(1, 77, [state(number) for number in MINE]))
    await storage.save_tier(TierRow(0, "s3://one/x", 1, 5, 1))
    await uploaded(storage, 1, mapping(1, 0, 10, due_ms=9_000), mapping(2, 5, 9))
    gone = await finished(storage, mapping(3, 0, 10))
    other = await finished(storage, mapping(4, 0, 10))
    await storage.start_objects([thing(2, other)], {4: 10})
    await uploaded(storage, 3, mapping(5, 0, 10))
    await storage.save_tiering_offsets({1: (10, 10), 2: (9, 4)})
    await storage.remove_mappings({3: 10, 5: 10}, 123)
    (row,) = await storage.segments_by_id([gone.id])
    assert row.state == DELETING
    await storage.start_segments([segment(99)])
    await storage.schedule_object_deletion([thing(8, gone)])


async def sql_world(folder: Path) -> SqlWorld:
    folder.mkdir()  # noqa: ASYNC240 (a test may block its loop)
    world = SqlWorld(f"sqlite:///{folder}/metadata.db")
    await world.make()
    return world


async def facts(storage: SegmentCatalog) -> list[Any]:
    found = await everything(storage)
    found += [await storage.unneeded_objects(1, 100), await storage.expiring(10_000, 100)]
    found += [await storage.stats(MINE), await storage.load_log_position(1)]
    return found


async def test_conversion_round_trip_keeps_all_rows(tmp_path: Path) -> None:
    world, other = await sql_world(tmp_path / "one"), await sql_world(tmp_path / "other")
    storage = await world.start()
    await filled(storage)
    before = await facts(storage)
    assert world.store is not None
    stored = await world.store.transact(lambda session: convert.read_sql(session, 1))
    assert stored.counts() == {
        "checkpoints": 6, "mappings": 3, "segments": 5, "objects": 4, "tiers": 1
    }  # fmt: skip
    rows = MemoryRows()
    memory = MemoryStorage(rows, 1, Clock().now_ms)
    store = memory._store
    assert isinstance(store, MemoryStore)
    convert.write_kv(store, 1, stored)
    assert await facts(memory) == before
    assert convert.read_kv(store, 1) == stored
    back = await other.start()
    assert other.store is not None
    await other.store.transact(lambda session: convert.write_sql(session, 1, stored, 5))
    assert await facts(back) == before
    # The next segment gets an unused id, although the segment with the last id is deleted.
    assert await back.start_segments([segment(7)]) == await memory.start_segments([segment(7)])
    with pytest.raises(convert.ConversionError, match="same numbers"):
        await other.store.transact(lambda session: convert.write_sql(session, 1, stored, 5))
    await other.store.transact(lambda session: convert.forget_sql(session, 1))
    empty = await other.store.transact(lambda session: convert.read_sql(session, 1))
    assert sum(empty.counts().values()) == 0
    await world.close()
    await other.close()


async def test_partitions_unknown_to_sql_are_refused(tmp_path: Path) -> None:
    world = await sql_world(tmp_path / "one")
    await world.start()
    assert world.store is not None
    stored = convert.StoredOffsets(checkpoints=[(state(1_000_000), 5)])
    with pytest.raises(convert.ConversionError, match="deleted topics"):
        await world.store.transact(lambda session: convert.write_sql(session, 1, stored, 5))
    await world.close()


def typed(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["offsets", "convert", *words])
    return result.exit_code, result.output


async def produced(data: Path, storage: str, count: int) -> int:
    """Records produced to a broker with this storage; the offset of the last."""
    async with running(data, offset_storage=storage) as server:
        client = await Client.connect(port_of(server))
        if "t" not in server.broker.catalog.by_name:
            made = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await client.call(CreateTopicsRequest(topics=[made], timeout_ms=5000), 7)
        rows = [PartitionProduceData(0, batch(*[b"x"] * count))]
        data_of = [TopicProduceData(name="t", partition_data=rows)]
        asked = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data_of)
        (answer,) = (await client.call(asked, 9)).responses[0].partition_responses
        await client.close()
    assert answer.error_code == 0
    return int(answer.base_offset) + count - 1


@pytest.mark.slow
async def test_converted_broker_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    data = tmp_path / "data"
    assert await produced(data, "sql", 3) == 2
    done = await asyncio.to_thread(typed, "--data", str(data), "--to", "rocksdb")
    assert done[0] == 0, done
    with pytest.raises(MetadataError, match="convert --to sql"):
        await produced(data, "sql", 1)
    assert await produced(data, "rocksdb", 2) == 4

    def stopped(*_: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patch:  # SQL has all rows, and RocksDB is not removed yet
        patch.setattr(shutil, "rmtree", stopped)
        assert (await asyncio.to_thread(typed, "--data", str(data), "--to", "sql"))[0] == 1
    assert (await asyncio.to_thread(typed, "--data", str(data), "--to", "sql"))[0] == 0
    assert await produced(data, "sql", 1) == 5
