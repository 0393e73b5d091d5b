"""Two brokers of one cluster with one `tier.url`: each writes in a place of its own, reads what the
other has uploaded, and leaves it alone.

Covers: kafkawire.tiering.store.store_folder, kafkawire.tiering.upload.other_uploads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.broker.broker import Broker
from kafkawire.cli.app import app
from kafkawire.codec.batches import build
from kafkawire.manifest.keys import OWNER, SEGMENTS
from kafkawire.manifest.reader import read_manifest
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.create_topics import CreatableTopicConfig as Setting
from kafkawire.server.run import Server
from kafkawire.tiering.service import Tiering
from tests.kit.client import Client
from tests.kit.produce_fetch import fetch, values
from tests.kit.server import port_of, running
from tests.kit.tier.commands import (
    QUICK,
    URL,
    Typed,
    all_uploaded,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until

NEW = "s3://elsewhere/x"
Pair = tuple[Server, Server]
CONFIGS = {"tiering.max.lag.ms": "5000", "tiering.min.object.bytes": "0"}


@asynccontextmanager
async def broker(
    folder: Path, node_id: int, url: str = URL, **settings: str
) -> AsyncIterator[Server]:
    metadata = f"sqlite+aiosqlite:///{folder}/shared.db"
    quick = {**QUICK, "tier_url": url, **settings}
    data = folder / str(node_id)
    async with running(data, metadata=metadata, node_id=str(node_id), **quick) as server:
        yield server


@asynccontextmanager
async def both(folder: Path, url: str = URL) -> AsyncIterator[Pair]:
    """Two started brokers that know of each other and have attached their tiers."""
    async with broker(folder, 1, url) as one, broker(folder, 2, url) as two:
        for server in (one, two):
            await until(lambda s=server: len(s.broker.catalog.brokers) == 2)  # type: ignore[misc]
            await until(lambda s=server: tier_of(s).state == "attached")  # type: ignore[misc]
        yield one, two


def tier_of(server: Server) -> Tiering:
    tiering = server.broker.tiering
    assert tiering is not None
    return tiering


async def create(server: Server, name: str, *leaders: int) -> None:
    topic = CreatableTopic(name, -1, -1)
    topic.assignments = [CreatableReplicaAssignment(n, [led]) for n, led in enumerate(leaders)]
    topic.configs = [Setting(key, value) for key, value in CONFIGS.items()]
    await server.broker.topics.create([topic])


async def append(server: Server, name: str, index: int, count: int) -> None:
    await until(lambda: name in server.broker.catalog.by_name)
    partition = await server.broker.table.load_partition(name, index)
    for _ in range(count):
        partition.append(memoryview(bytearray(build([(b"k", bytes(100))], timestamp_ms=0))), 0)
    await partition.log.wait_until_committed()


def keys(bucket: FakeBucket, prefix: str) -> set[str]:
    return {key for key in bucket.objects if key.startswith(prefix)}


def manifest_at(bucket: FakeBucket, folder: str) -> Any:
    return read_manifest(lambda key: bucket.objects[folder + key])


def has_moved(server: Server) -> bool:
    tier_of(server).remover.wake()  # the time for which objects are kept may have passed
    return tier_of(server).mover.progress.state == "done"


def pause(server: Server, paused: bool) -> None:
    server.broker.config.tier_paused = paused
    tier_of(server).broker_changed()


async def settled(server: Server) -> None:
    command = Typed(server)
    await command.until(all_uploaded, "why")


async def test_each_broker_writes_in_a_place_of_its_own(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    bucket = buckets[URL]
    async with both(tmp_path) as (one, two):
        await create(one, "t", 1, 2)
        await append(one, "t", 0, 3)
        await append(two, "t", 1, 5)
        await settled(one)
        await settled(two)
        assert {tier_of(one).tiers.current.url, tier_of(two).tiers.current.url} == {
            URL,
            f"{URL}/nodes/2",
        }
        for server, folder, index, end in ((one, "", 0, 3), (two, "nodes/2/", 1, 5)):
            assert len(keys(bucket, folder + SEGMENTS)) == 1
            assert folder + OWNER in bucket.objects
            await until(lambda s=server: tier_of(s).rounds.sequence > 0)  # type: ignore[misc]
            manifest = manifest_at(bucket, folder)
            row = manifest.get_partition(manifest.topics["t"].partitions[index])
            assert row.end == end
            assert len(manifest.objects) == 1
        for server in (one, two):
            found = await Typed(server).json("scrub", "--repair")
            assert found["findings"] == []
            assert found["objects"] == found["rows"] == 1
    before = dict(bucket.objects)
    async with both(tmp_path) as (one, two):  # places stay
        assert tier_of(two).tiers.current.url == f"{URL}/nodes/2"
        assert tier_of(one).rounds.epoch == tier_of(two).rounds.epoch == 2
        assert len(keys(bucket, SEGMENTS)) == len(keys(bucket, f"nodes/2/{SEGMENTS}")) == 1
        assert before.keys() <= bucket.objects.keys()


@pytest.mark.slow
async def test_one_broker_moves_its_objects_and_leaves_the_others(
    tmp_path: Path, buckets: dict[str, FakeBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.tiering.migrate.SCAN_INTERVAL_S", 0.1)
    monkeypatch.setattr("kafkawire.tiering.migrate.GRACE_MS_AT_LEAST", 1)
    monkeypatch.setattr("kafkawire.tiering.retention.object_deletion.SCAN_INTERVAL_S", 0.1)
    async with both(tmp_path) as (one, two):
        await create(one, "t", 1, 2)
        for server, index in ((one, 0), (two, 1)):
            await append(server, "t", index, 3)
            await settled(server)
        for server in (one, two):
            server.broker.config.tier_delete_delay_ms = 1
            moved = await Typed(server).json("move", "--to", NEW)
            assert moved["to"] == NEW
            await until(lambda s=server: has_moved(s))  # type: ignore[misc]
            left = keys(buckets[URL], "nodes/2/")
            assert not keys(buckets[URL], SEGMENTS)
            assert bool(left) is (server is one)
        assert not buckets[URL].objects
        assert len(keys(buckets[NEW], SEGMENTS)) == 1
        assert len(keys(buckets[NEW], f"nodes/2/{SEGMENTS}")) == 1


async def test_alone_a_broker_uses_the_url_itself(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with broker(tmp_path, 7) as server:
        await until(lambda: tier_of(server).state == "attached")
        assert tier_of(server).tiers.current.url == URL
    assert not keys(buckets[URL], "nodes/")


async def hand_over(source: Server, target: Server, name: str, index: int) -> None:
    """Have another broker lead a partition."""
    broker, other = source.broker, target.broker
    number = broker.catalog.by_name[name].partitions[index].number
    assert not (await broker.log.hand_over([number])).refused
    seen = broker.catalog.stored_version
    await broker.metadata.move_partitions([number], other.node_id, seen)
    await until(lambda: leader_in(other, name, index) == other.node_id)
    await until(lambda: leader_in(broker, name, index) == other.node_id)


def leader_in(known: Broker, name: str, index: int) -> int:
    if name not in known.catalog.by_name:
        return 0
    return known.catalog.by_name[name].partitions[index].leader


async def test_partition_that_moves_is_uploaded_and_read_whole(
    tmp_path: Path, buckets: dict[str, FakeBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker uploads the segment that it has written, although the second leads one of
    the partitions in it; the second takes account of that, and reads it."""
    monkeypatch.setattr("kafkawire.tiering.upload.other_uploads.POLL_S", 0.05)
    async with both(tmp_path) as (one, two):
        pause(one, True)
        await create(one, "t", 1, 1)
        for index in (0, 1):
            await append(one, "t", index, 3)
        await hand_over(one, two, "t", 1)
        await append(two, "t", 1, 2)
        partition = await two.broker.table.load_partition("t", 1)
        assert partition.next_offset == 5
        assert partition.commit_offset == 0
        pause(one, False)
        for server in (one, two):
            await settled(server)
        await until(lambda: partition.commit_offset == 5)
        whole = {"": [(0, 0, 3), (1, 0, 3)], "nodes/2/": [(1, 3, 5)]}
        for folder, rows in whole.items():
            manifest = manifest_at(buckets[URL], folder)
            indexes = {number: at for at, number in enumerate(manifest.topics["t"].partitions)}
            entries = [manifest.entries[at] for at in range(len(manifest.entries))]
            found = [(indexes[each.number], each.base_offset, each.end_offset) for each in entries]
            assert sorted(found) == rows
        assert manifest.get_partition(partition.number).end == 5
        for server in (one, two):
            found = await Typed(server).json("scrub", "--repair")
            assert found["findings"] == []
    async with both(tmp_path) as (_, two):  # the other broker's file is in another data folder
        partition = await two.broker.table.load_partition("t", 1)
        assert partition.commit_offset == 5
        assert await read_count(two, 1, 5) == 5


@pytest.mark.slow
async def test_restore_into_one_broker(
    tmp_path: Path, buckets: dict[str, FakeBucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is gone: one broker has the records of both, and ends with one place."""
    monkeypatch.setattr("kafkawire.tiering.migrate.SCAN_INTERVAL_S", 0.1)
    monkeypatch.setattr("kafkawire.tiering.migrate.GRACE_MS_AT_LEAST", 1)
    monkeypatch.setattr("kafkawire.tiering.retention.object_deletion.SCAN_INTERVAL_S", 0.1)
    bucket, wanted = buckets[URL], {0: 3, 1: 5, 2: 4}
    async with both(tmp_path) as (one, two):
        await create(one, "t", 1, 1, 2)
        for index, count in ((0, 3), (1, 3)):
            await append(one, "t", index, count)
        await hand_over(one, two, "t", 1)
        for index, count in ((1, 2), (2, 4)):
            await append(two, "t", index, count)
        for server in (one, two):
            await settled(server)
        part = await two.broker.table.load_partition("t", 1)
        await until(lambda: part.commit_offset == 5)

    def opened(url: str, _: object) -> FakeStore:
        return FakeStore(bucket)

    monkeypatch.setattr("kafkawire.cli.restore.steps.open_store", opened)
    data = tmp_path / "new"
    words = ["tier", "restore", "--tier", URL, "--data", str(data), "--yes"]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    assert "Doubtful" not in result.output
    async with running(
        data, tier_url=URL, node_id="1", tier_delete_delay_ms="1", **QUICK
    ) as server:
        for index, end in wanted.items():
            assert await read_count(server, index, end) == end
        await until(lambda: has_moved(server))
        assert not keys(bucket, "nodes/")
        assert tier_of(server).rounds.epoch == 2
        for index, end in wanted.items():
            assert await read_count(server, index, end) == end
        found = await Typed(server).json("scrub", "--repair")
        assert found["findings"] == []


async def read_count(server: Server, index: int, end: int) -> int:
    client, read = await Client.connect(port_of(server)), 0
    while read < end:
        answer = await client.call(fetch("t", read, wait_ms=30_000, partition=index), 12)
        row = answer.responses[0].partitions[0]
        assert row.error_code == 0
        read += len(values(row))
    await client.close()
    return read
