"""A decommissioned broker hands over all that it has, removes itself and ends.

Covers: kafkawire.broker.following.removal, kafkawire.broker.following.removal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.broker.config_service import Resource
from kafkawire.broker.following.removal import OwnRemoval
from kafkawire.broker.overrides import AlterConfigOp, Op, ResourceType
from kafkawire.codec.batches import build
from kafkawire.log.segments.merge import decommissioned
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import CONDITIONAL_PUT, LOGS
from kafkawire.manifest.reader import read_manifest
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.create_topics import CreatableTopicConfig as Setting
from kafkawire.metadata.catalog import DECOMMISSIONING
from kafkawire.offsets.catalog.port import LIVE
from kafkawire.server.run import Server
from tests.kit.log.logs import read_all
from tests.kit.server import running
from tests.kit.tier.commands import (
    QUICK,
    URL,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import until


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decommissioned, "ROUND_S", 0.2)


SHORT = {**QUICK, "log_segment_delete_delay_ms": "0", "tier_delete_delay_ms": "1"}
PARTITIONS = 3


@asynccontextmanager
async def two(folder: Path, *, shared: bool, **settings: str) -> AsyncIterator[list[Server]]:
    """Brokers 1 and 2; `shared`: in one data folder."""
    metadata = f"sqlite+aiosqlite:///{folder}/shared.db"
    folders = [folder / ("data" if shared else str(node)) for node in (1, 2)]
    async with (
        running(folders[0], metadata=metadata, node_id="1", **SHORT, **settings) as one,
        running(folders[1], metadata=metadata, node_id="2", **SHORT, **settings) as two,
    ):
        for server in (one, two):
            await until(lambda s=server: len(s.broker.liveness.may_lead()) == 2)  # type: ignore[misc]
        yield [one, two]


async def create(broker: Broker, name: str, leader: int, **configs: str) -> None:
    topic = CreatableTopic(name, -1, -1)
    topic.assignments = [CreatableReplicaAssignment(n, [leader]) for n in range(PARTITIONS)]
    topic.configs = [Setting(key.replace("_", "."), value) for key, value in configs.items()]
    await broker.topics.create([topic])


async def fill(broker: Broker, name: str, count: int = 5) -> None:
    await until(lambda: name in broker.catalog.by_name)
    for index in range(PARTITIONS):
        partition = await broker.table.load_partition(name, index)
        for at in range(count):
            data = build([(None, b"%d-%d" % (index, at))], timestamp_ms=0)
            partition.append(memoryview(bytearray(data)), 0)
        await partition.log.wait_until_committed()


async def decommission(broker: Broker, node_id: int, *, undo: bool = False) -> None:
    op = AlterConfigOp(DECOMMISSIONING, Op.DELETE if undo else Op.SET, None if undo else "true")
    wish = Resource(ResourceType.BROKER, str(node_id), [op])
    assert await broker.topics.configs.alter([wish], False) == [None]


async def records(broker: Broker, name: str) -> list[list[tuple[int, bytes | None]]]:
    return [await read_all(await broker.table.load_partition(name, at)) for at in range(PARTITIONS)]


def leads_all(broker: Broker, name: str) -> bool:
    found = broker.catalog.by_name.get(name)
    return found is not None and {row.leader for row in found.partitions} == {broker.node_id}


def manifests(keys: set[str]) -> set[str]:
    return {key for key in keys if "/manifest/snapshot-" in key or "/manifest/delta-" in key}


def manifest_at(bucket: FakeBucket, folder: str) -> Manifest:
    return read_manifest(lambda key: bucket.objects[folder + key])


async def removed(broker: Broker) -> str:
    """Wait until a broker has removed itself; return what it says."""
    said: list[str] = []
    removal = OwnRemoval(broker, broker.removal, said.append)
    while not await removal.check():
        await broker.log.segments.tend()
        await broker.env.sleep(0.1)
    (why,) = said
    return why


@pytest.mark.slow
async def test_broker_leaves_a_shared_data_folder_without_a_tier(tmp_path: Path) -> None:
    async with two(tmp_path, shared=True) as (one, other):
        first, second = one.broker, other.broker
        await create(first, "t", 1)
        await fill(first, "t")
        before = await records(first, "t")
        await decommission(first, 1)
        said = await removed(first)
        assert "broker 1 was decommissioned and is removed" in said
        await until(lambda: set(second.catalog.brokers) == {2})
        assert leads_all(second, "t")
        assert await records(second, "t") == before
        assert not list((tmp_path / "data/brokers/1/segments").glob("*.segment"))
        assert second.catalog.broker_configs(1) == {}
        assert first.log.commit_log.failed is not None
        await fill(second, "t", 1)


@pytest.mark.slow
async def test_broker_with_log_objects_leaves_its_bucket_empty(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with two(tmp_path, shared=False, tier_url=URL) as (one, other):
        first, second = one.broker, other.broker
        await create(second, "t", 2, durability="s3", tiering_max_lag_ms="5000")
        await fill(second, "t")
        before = await records(second, "t")
        place = "nodes/2/"
        assert any(key.startswith(place + LOGS) for key in buckets[URL].objects)
        await decommission(second, 2)
        await removed(second)
        await until(lambda: set(first.catalog.brokers) == {1})
        assert leads_all(first, "t")
        assert await records(first, "t") == before
        left = {key for key in buckets[URL].objects if key.startswith(place)}
        kept = {f"{place}{name}" for name in ("owner", "manifest/current", CONDITIONAL_PUT)}
        assert left == {*kept, *manifests(left)}
        assert not manifest_at(buckets[URL], place).objects


@pytest.mark.slow
async def test_undone_decommissioning_keeps_the_broker(tmp_path: Path) -> None:
    async with two(tmp_path, shared=True) as (one, other):
        first, second = one.broker, other.broker
        await create(first, "t", 1)
        await fill(first, "t")
        removal = OwnRemoval(first, first.removal, lambda _: pytest.fail("it was removed"))
        assert not await removal.check()
        await decommission(first, 1)
        await until(lambda: leads_all(second, "t"))
        await decommission(first, 1, undo=True)
        assert not await removal.check()
        assert not await first.removal.remove_itself()
        await until(lambda: not second.catalog.is_decommissioned(1))
        await second.log.segments.tend()
        kept = await first.storage.segments(1, (LIVE,), 100)
        await second.log.segments.tend()
        assert await first.storage.segments(1, (LIVE,), 100) == kept
        await fill(second, "t", 1)
