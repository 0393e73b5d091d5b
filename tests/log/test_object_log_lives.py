"""Lives of a broker with topics of durability=s3: what each start ends, stores, appends and opens.

Covers: kafkawire.log.object_logs, kafkawire.log.objects.port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import LogError
from kafkawire.manifest.keys import log_object_key
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog import object_logs
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch, read_all
from tests.kit.log.object_world import NODE, ObjectWorld, put, sequenced
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[ObjectWorld]:
    world = ObjectWorld()
    await world.start()
    yield world
    await world.abandon()


async def test_records_survive_loss_of_folder(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    for value in (b"a", b"b", b"c"):
        await put(partition, value)
    before = partition.leader_epoch
    await world.lose_folder()
    partition = world.find("t")
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (partition.next_offset, partition.high_watermark) == (3, 3)
    assert partition.leader_epoch > before
    assert await put(partition, b"d") == 3


async def test_duplicates_are_known_after_loss_of_folder(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    for sequence in range(2):
        partition.append(sequenced(b"v", sequence), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    await world.lose_folder()
    partition = world.find("t")
    assert partition.append(sequenced(b"v", 1), EPOCH_MS).base_offset == 1
    assert partition.append(sequenced(b"v", 2), EPOCH_MS).base_offset == 2
    await world.log.commit_log.wait_until_committed()
    assert partition.next_offset == 3


async def test_broker_without_such_topics_uses_no_bucket(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t")
    await put(partition, b"a")
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"a")]
    assert not world.bucket.requests
    assert await world.rows() == []


async def test_written_and_not_stored_records_are_stored_by_the_next_start(
    world: ObjectWorld,
) -> None:
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    world.bucket.faults.down = True
    partition.append(batch(b"b"), EPOCH_MS)
    await world.log.commit_log.disk_sink.wait_until_durable()
    assert partition.high_watermark == 1
    await world.abandon()
    world.fs.kill()
    starting = asyncio.ensure_future(world.start())
    await until(lambda: world.bucket.requests["get"] > 1)
    assert not starting.done()  # the start waits for the bucket
    world.bucket.faults.down = False
    await starting
    epoch = world.epoch
    assert log_object_key(epoch, 0) in world.bucket.objects
    await world.lose_folder()
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b")]


async def test_checkpoint_of_start_does_not_cover_what_is_not_stored(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    world.bucket.faults.down = True
    partition.append(batch(b"b"), EPOCH_MS)
    await world.log.commit_log.disk_sink.wait_until_durable()
    await world.abandon()
    world.fs.kill()
    world.bucket.faults.down = False
    puts = world.bucket.requests["put"]

    def refuse(moment: str, kind: str, key: str) -> None:
        """Fail everything after the fence."""
        if kind == "put" and moment == "done":
            world.bucket.faults.down = True

    world.bucket.hook = refuse
    starting = asyncio.ensure_future(world.start())
    await until(lambda: world.bucket.requests["put"] > puts + 1)
    (row,) = await world.storage.load_partitions([partition.number])
    assert row.checkpoint is None or row.checkpoint.next_offset <= 1
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    world.bucket.hook, world.bucket.faults.down = (lambda *_: None), False
    await world.lose_folder()
    partition = world.find("t")
    assert await read_all(partition) == [(0, b"a")]
    assert await put(partition, b"c") == 1


async def test_zombie_stores_nothing_after_its_successor_started(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    zombie, loop_env, store, metadata = partition, world.env, world.store, world.metadata
    world.env = ObjectWorld().env
    await world.start(fresh=True)
    heir = world.find("t")
    zombie.append(batch(b"z"), EPOCH_MS)
    with pytest.raises(KafkaError) as refused:
        await zombie.log.wait_until_committed()
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert zombie.high_watermark == 1
    assert len(world.reasons) == 1
    assert await put(heir, b"b") == 1
    assert await read_all(heir) == [(0, b"a"), (1, b"b")]
    store.crash()
    metadata.crash()
    for task in list(loop_env.tasks):
        task.cancel()


async def test_log_that_is_needed_later_is_opened_once_sql_can(
    world: ObjectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.log.object_logs.wait_s", lambda *_: 0.0)
    (partition,) = await world.topic("t", durability="s3")
    failures = [MetadataError("the database is locked")] * 2

    def fault(method: str) -> Exception | None:
        return failures.pop() if method == "transact" and failures else None

    world.metadata._fault = fault
    await put(partition, b"a")
    assert not failures
    (row,) = await world.rows()
    assert (row.broker_epoch, row.released, row.ended) == (world.epoch, 0, None)


async def test_superseded_process_cannot_open_a_log(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    other = MemoryMetadata(world.database)
    await other.open()
    await other.register_broker(NODE, {}, None)
    partition.append(batch(b"a"), EPOCH_MS)
    with pytest.raises(KafkaError):
        await world.log.commit_log.wait_until_committed()
    assert world.reasons == [f"broker {NODE} was started elsewhere: this process is superseded"]
    assert await world.rows() == []


@pytest.mark.parametrize("statement", ["end", "open_log"])
async def test_start_that_is_superseded_fails(
    world: ObjectWorld, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    world.bucket.faults.down = True
    partition.append(batch(b"b"), EPOCH_MS)
    await world.log.commit_log.disk_sink.wait_until_durable()
    await world.abandon()
    world.fs.kill()
    world.bucket.faults.down = False
    monkeypatch.setattr(object_logs, statement, lambda *_: None)
    with pytest.raises(LogError, match="was started elsewhere"):
        await world.start()


async def test_clean_end_leaves_nothing_to_append(world: ObjectWorld) -> None:
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    partition.append(batch(b"b"), EPOCH_MS)  # queued, and stored by the end
    await world.restart()
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b")]
    assert world.log.after_clean_end


async def test_end_without_bucket_is_not_clean(
    world: ObjectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.log.append.object_sink.CLOSE_S", 0.01)
    (partition,) = await world.topic("t", durability="s3")
    await put(partition, b"a")
    world.bucket.faults.down = True
    partition.append(batch(b"b"), EPOCH_MS)
    await world.log.close()
    world.bucket.faults.down = False
    await world.start()
    assert not world.log.after_clean_end
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b")]
