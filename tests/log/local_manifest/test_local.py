"""The local manifest: its content, when it is written, and in a real broker.

Covers: kafkawire.log.local_manifest.maintenance, kafkawire.log.local_manifest.delta_builder,
kafkawire.log.local_manifest.job, kafkawire.log.local_manifest.maintenance,
kafkawire.log.partition.hooks.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import patch

import pytest

from kafkawire.log.local_manifest.service import ENDED
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange
from tests.kit import simloop
from tests.kit.client import Client, batch
from tests.kit.log.local_manifest import (
    ManifestWorld,
    at_once,  # noqa: F401  (a fixture, by name)
    begun,
    rows_of,
)
from tests.kit.log.logs import FOLDER
from tests.kit.produce_fetch import produce
from tests.kit.server import port_of, running
from tests.kit.tier.local import GRACE_MS
from tests.kit.waiting import until


async def test_manifest_has_cut_offsets_only() -> None:
    async with begun() as world:
        partition = world.find("t")
        manifest = await world.complete_manifest()
        assert manifest.topics["t"].partitions == (partition.number,)
        assert manifest.state.cluster_id == world.catalog.cluster_id
        row = manifest.get_partition(partition.number)
        assert row is not None
        assert (row.log_start, row.end) == (0, partition.cut_offset)
        assert 0 < row.end < partition.next_offset
        assert len(row.epochs) > 1
        (uuid,) = [manifest.objects.uuid(0)]
        assert manifest.objects.segment(0) == uuid
        assert f"{FOLDER}/{segment_key(uuid)}" in world.fs.files


def test_many_changes_are_one_delta_and_none_is_no_file() -> None:
    """In virtual time: on a busy machine the changes may take longer than the delay of a delta."""
    simloop.run(simloop.SimLoop(), _many_changes())


async def _many_changes() -> None:
    async with begun() as world:
        before = (await world.complete_manifest()).sequence
        with patch("kafkawire.log.local_manifest.service.LINGER_S", 60.0):
            for at in range(50):
                await world.topic(f"more{at}")
            await world.fill(world.find("t"), 40)
            await world.cut()
            await asyncio.sleep(60.0)
            after = (await world.complete_manifest()).sequence
        assert after == before + 1
        files = world.states()
        await asyncio.sleep(0.05)
        assert world.states() == files


async def test_topics_are_created_altered_and_deleted() -> None:
    async with begun() as world:
        await world.topic("more", 3)
        change = ConfigChange(TOPIC_RESOURCE, "t", "cleanup.policy", "compact")
        await world.metadata.alter_configs([change])
        world.catalog.apply_config(change)
        world.log.alter_topic(world.catalog.by_name["t"])
        manifest = await world.complete_manifest()
        assert manifest.topics["t"].configs == {"cleanup.policy": "compact"}
        assert len(manifest.topics["more"].partitions) == 3
        number = world.find("t").number
        await world.delete_topic("t")
        manifest = await world.complete_manifest()
        assert list(manifest.topics) == ["more"]
        assert manifest.get_partition(number) is None
        await world.log.segments.tend()
        assert len((await world.complete_manifest()).objects) == 0


async def test_moved_log_start_is_in_manifest() -> None:
    async with begun(2) as world:
        partition = world.find("t")
        await partition.delete_records(45)
        row = (await world.complete_manifest()).get_partition(partition.number)
        assert row is not None
        assert row.log_start == 45
        await partition.delete_records(partition.next_offset)
        row = (await world.complete_manifest()).get_partition(partition.number)
        assert row is not None
        assert row.log_start == row.end == partition.next_offset


async def test_replaced_segment_is_listed_as_deleted_while_file_exists() -> None:
    async with begun(3) as world:
        before = await world.complete_manifest()
        world.config.segment_dead_max_ms = 0
        with patch("kafkawire.log.segments.merge.plan.MAX_SMALL", 3):
            await world.log.segments.tend()
        after = await world.complete_manifest()
        assert len(after.objects) < len(before.objects)
        assert max(after.objects.generation) == 1
        now_ms = world.env.clock.now_ms()
        old = {before.objects.uuid(at) for at in range(len(before.objects))}
        gone = old - {after.objects.uuid(at) for at in range(len(after.objects))}
        assert gone
        assert gone == set(after.deleted)
        assert all(until >= now_ms + GRACE_MS for until in after.deleted.values())

        def get(key: str) -> bytes:  # a reader that began before
            return bytes(world.fs.files[f"{FOLDER}/{key}"].data)

        number = world.find("t").number
        assert rows_of(get, before, number) == rows_of(get, after, number)


async def test_segments_only_in_remote_tier_are_not_listed() -> None:
    configs = {"remote_storage_enable": "true", "local_retention_ms": "1"}
    world = ManifestWorld()
    partition = await world.begin(**configs)
    await world.fill(partition, 40)
    await world.cut()
    assert len((await world.complete_manifest()).objects) == 1
    await world.upload()
    world.later(10_000)
    await world.scan()
    assert await world.locals() == [False]
    manifest = await world.complete_manifest()
    assert len(manifest.objects) == 0
    (until,) = manifest.deleted.values()
    assert until == world.env.clock.now_ms() + GRACE_MS
    row = manifest.get_partition(partition.number)
    assert row is not None
    assert row.end == partition.cut_offset
    (segment,) = await world.rows()
    await world.storage.delete_objects([segment.object], 0)
    swapper = world.log.segments.swapper
    await swapper.update(lambda: world.storage.set_local([segment.id], True))
    manifest = await world.complete_manifest()
    assert len(manifest.objects) == 1
    assert not manifest.deleted
    await world.end()


async def test_deltas_are_folded_and_removed_later() -> None:
    with patch("kafkawire.log.local_manifest.maintenance.FOLDED_AFTER", 3):
        async with begun() as world:
            for at in range(8):
                await world.topic(f"more{at}")
                await world.complete_manifest()
            snapshots = [name for name in world.names() if name.startswith("snapshot")]
            assert len(snapshots) >= 3
            world.later(600_001)
            for at in range(8, 14):
                await world.topic(f"more{at}")
                await world.complete_manifest()
            assert not set(snapshots[:3]) & set(world.names())
            assert len(world.names()) < 14
            await world.restart()
            assert len((await world.complete_manifest()).topics) == 15


@pytest.mark.slow
async def test_real_broker_writes_manifest_for_spark(tmp_path: Path) -> None:
    async with running(tmp_path, journal_roll_ms="50", cut_interval_ms="20") as server:
        client = await Client.connect(port_of(server))
        await server.broker.topics.create([CreatableTopic("t", 1, 1)])
        await client.call(produce("t", batch(b"one", b"two")), 7)
        home = tmp_path / "brokers" / str(server.broker.node_id)

        def get(key: str) -> bytes:
            return (home / key).read_bytes()

        def complete() -> bool:
            written = (home / "manifest/current").exists() and len(read_manifest(get).objects)
            return bool(written) and not [*home.glob("manifest/*.new")]

        await until(complete, "a manifest with the records")
        manifest = read_manifest(get)
        (number,) = manifest.topics["t"].partitions
        assert rows_of(get, manifest, number) == [(0, b"one"), (1, b"two")]
        await client.close()
    assert json.loads((home / ENDED).read_bytes())["topics"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["bit", "gone"])
async def test_damaged_manifest_is_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    async def start() -> str:
        caplog.clear()
        async with running(tmp_path) as server:
            manifest = server.broker.manifest
            assert manifest is not None
            if "t" not in server.broker.catalog.by_name:  # an empty log has no clean end
                await server.broker.topics.create([CreatableTopic("t", 1, 1)])
            await until(lambda: manifest.settled, "a manifest")
        return "\n".join(each.getMessage() for each in caplog.records if each.levelno > 20)

    home = tmp_path / "brokers" / "1"
    assert "manifest" not in await start()
    assert "manifest" not in await start()
    (*_, snapshot) = sorted(home.glob("manifest/snapshot-*"))
    if harm == "gone":
        snapshot.unlink()
    else:
        data = bytearray(snapshot.read_bytes())
        data[len(data) // 2] ^= 1
        snapshot.write_bytes(data)
    assert f"the local manifest in {home}/manifest is damaged, it is written again" in await start()
    assert "manifest" not in await start()


async def test_manifest_can_be_disabled(tmp_path: Path) -> None:
    async with running(tmp_path, local_manifest_enable="false") as server:
        assert server.broker.manifest is None
        assert server.broker.log.hooks.listeners == [server.broker.schedules]
    home = tmp_path / "brokers" / str(server.broker.node_id)
    assert "manifest" not in [path.name for path in home.iterdir()]
