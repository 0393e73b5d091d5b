"""Release of log objects: what it waits for, and in which order SQL and the bucket change."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.maintenance.object_release import MAX_AT_ONCE, ObjectRelease
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import StoreError
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch, read_all
from tests.kit.log.object_world import NODE, ObjectWorld, put
from tests.kit.memory_metadata import MemoryMetadata


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectWorld]:
    """Nothing is released but by the test."""
    monkeypatch.setattr(ObjectRelease, "start", lambda _: None)
    world = ObjectWorld()
    await world.start()
    yield world
    await world.abandon()


@pytest.fixture
async def partition(world: ObjectWorld) -> Partition:
    """With three records, each in an object."""
    (partition,) = await world.topic("t", durability="s3")
    for value in (b"a", b"b", b"c"):
        await put(partition, value)
    return partition


def release(world: ObjectWorld) -> ObjectRelease:
    assert world.logs.release is not None
    return world.logs.release


async def released(world: ObjectWorld) -> int:
    return (await world.rows())[-1].released


async def test_object_waits_for_upload_and_checkpoint(
    world: ObjectWorld, partition: Partition
) -> None:
    made = release(world)
    assert await made.run_once() == 0
    await world.log.checkpoint()
    partition.commit_offset = 1
    await put(partition, b"d")
    assert (await made.run_once(), await released(world)) == (1, 1)
    assert log_object_key(world.epoch, 0) not in world.bucket.objects
    partition.commit_offset = 4
    assert await made.run_once() == 2  # the checkpoint does not have the last one
    assert await made.run_once() == 0
    await world.log.checkpoint()
    assert (await made.run_once(), await released(world)) == (1, 4)
    assert world.log.commit_log.object_sink.unreleased_bytes == 0
    assert not world.bucket.objects


async def test_deleted_records_need_no_upload(world: ObjectWorld, partition: Partition) -> None:
    await world.log.checkpoint()
    await partition.delete_records(2)
    assert await release(world).run_once() == 2


async def test_deleted_topic_needs_no_object(world: ObjectWorld, partition: Partition) -> None:
    info = world.catalog.by_name["t"]
    await world.metadata.delete_topics([info.id])
    world.catalog.remove_topic(info.id)
    world.log.remove_topic(info)
    await world.log.checkpoint()
    assert await release(world).run_once() == 3


async def test_rows_decide_for_partitions_that_are_not_in_memory(
    world: ObjectWorld, partition: Partition
) -> None:
    (other,) = await world.topic("other", durability="s3")
    await put(other, b"x")
    await world.log.checkpoint()
    partition.commit_offset = other.commit_offset = 3
    for each in (partition, other):
        world.log.loader.unload(each)
    made = release(world)
    assert await made.run_once() == 0
    await world.log.loader.load([partition.number, other.number])
    partition = world.find("t")
    await partition.delete_records(3)
    world.log.loader.unload(partition)
    assert await made.run_once() == 3


async def test_sql_changes_before_the_bucket(world: ObjectWorld, partition: Partition) -> None:
    partition.commit_offset = 3
    await world.log.checkpoint()
    made = release(world)
    world.bucket.faults.down = True
    with pytest.raises(StoreError):
        await made.run_once()
    assert await released(world) == 3
    assert (len(world.bucket.objects), len(made.retained)) == (3, 3)
    world.bucket.faults.down = False
    assert await made.run_once() == 3
    assert not world.bucket.objects


async def test_superseded_process_deletes_nothing(world: ObjectWorld, partition: Partition) -> None:
    partition.commit_offset = 3
    await world.log.checkpoint()
    other = MemoryMetadata(world.database)
    await other.open()
    await other.register_broker(NODE, {}, None)
    assert await release(world).run_once() == 0
    assert len(world.bucket.objects) == 3
    (row,) = await other.transact(lambda session: session.rows("SELECT released FROM object_logs"))
    assert row == (0,)


async def test_objects_of_earlier_lives_are_released_first(
    world: ObjectWorld, partition: Partition
) -> None:
    first = world.epoch
    await world.lose_folder()
    partition = world.find("t")
    await put(partition, b"d")
    made = release(world)
    assert [each.log for each in made.retained] == [first] * 3 + [world.epoch]
    partition.commit_offset = 4
    await world.log.checkpoint()
    assert await made.run_once() == 3  # one log at a time
    assert await made.run_once() == 1
    rows = {row.broker_epoch: (row.released, row.ended) for row in await world.rows()}
    assert rows == {first: (3, 3), world.epoch: (1, None)}
    assert world.objects == [log_object_key(first, 3).removeprefix("log/")]  # the fence is kept
    await world.lose_folder()
    assert (world.find("t").next_offset, await read_all(world.find("t"), 4)) == (4, [])


async def test_appended_objects_wait_for_a_checkpoint_that_has_them(
    world: ObjectWorld, partition: Partition
) -> None:
    await world.lose_folder()
    partition = world.find("t")
    partition.commit_offset = 3
    made = release(world)
    assert world.log.checkpoints.log_position >= made.retained[-1].log_position  # of the start
    world.log.checkpoints.log_position = 0
    assert await made.run_once() == 0


async def test_checkpoint_is_saved_early_if_much_waits_for_it(
    world: ObjectWorld, partition: Partition
) -> None:
    partition.commit_offset = 3
    made = release(world)
    before = world.log.checkpoints.log_position
    assert await made.run_once() == 0
    config: BrokerConfig = world.log.commit_log.config
    config.log_unreleased_max_bytes = 4 * world.log.commit_log.object_sink.unreleased_bytes
    assert await made.run_once() == 3
    assert world.log.checkpoints.log_position > before


async def test_one_transaction_releases_at_most_so_many(
    world: ObjectWorld, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.log.maintenance.object_release.MAX_AT_ONCE", 2)
    assert MAX_AT_ONCE <= 1000, "the most that one request deletes"
    partition.commit_offset = 3
    await world.log.checkpoint()
    assert [await release(world).run_once() for _ in range(3)] == [2, 1, 0]


async def test_produces_are_accepted_again_once_objects_are_released(
    world: ObjectWorld, partition: Partition
) -> None:
    objects = world.log.commit_log.object_sink
    objects._max_unreleased = objects.unreleased_bytes + 1
    await put(partition, b"d")
    assert objects.refusal is not None
    partition.commit_offset = 4
    await world.log.checkpoint()
    assert await release(world).run_once() == 4
    assert objects.refusal is None
    partition.append(batch(b"e"), EPOCH_MS)
