"""Adoption: which batches of log objects are appended, and what producers, epochs and transactions
are afterwards."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from kafkawire.codec.batches import TRANSACTIONAL, build
from kafkawire.codec.control import ABORT, TransactionMarker
from kafkawire.codec.errors import KafkaError
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.verification import NOT_VERIFIED
from kafkawire.manifest.keys import log_object_key
from kafkawire.offsets.catalog import object_logs
from tests.kit.env import EPOCH_MS
from tests.kit.log.cutting import cut
from tests.kit.log.logs import read_all
from tests.kit.log.object_world import NODE, ObjectWorld, put, sequenced
from tests.kit.memory_metadata import MemoryMetadata


@pytest.fixture
async def world() -> AsyncIterator[ObjectWorld]:
    world = ObjectWorld(journal_bytes=8192, hot_bytes=0)
    await world.start()
    yield world
    await world.abandon()


@pytest.fixture
async def partition(world: ObjectWorld) -> Partition:
    (partition,) = await world.topic("t", durability="s3")
    return partition


async def produce(partition: Partition, sequence: int, size: int = 1) -> int:
    done = partition.append(sequenced(bytes(size), sequence), EPOCH_MS)
    await partition.log.wait_until_committed()
    return done.base_offset


def number_of_next_object(world: ObjectWorld) -> int:
    return world.log.commit_log.object_sink._sequence


async def test_batch_with_the_log_start_in_its_middle_is_appended(
    world: ObjectWorld, partition: Partition
) -> None:
    await put(partition, b"a", b"b", b"c")
    await put(partition, b"d")
    assert await partition.delete_records(2) == 2
    await world.lose_folder()
    partition = world.find("t")
    assert (partition.log_start, partition.next_offset) == (2, 4)
    assert await read_all(partition) == [(2, b"c"), (3, b"d")]


async def test_deleted_records_are_not_appended(world: ObjectWorld, partition: Partition) -> None:
    await put(partition, b"a", b"b")
    await put(partition, b"c")
    await partition.delete_records(2)
    await world.lose_folder()
    partition = world.find("t")
    assert await read_all(partition) == [(2, b"c")]
    await partition.delete_records(-1)
    await world.lose_folder()
    partition = world.find("t")
    assert (partition.log_start, partition.next_offset, partition.high_watermark) == (3, 3, 3)
    assert await put(partition, b"d") == 3


async def test_only_the_part_that_a_power_failure_took_is_appended(
    world: ObjectWorld, partition: Partition
) -> None:
    await produce(partition, 0)
    await world.log.commit_log.disk_sink.wait_until_durable()
    for sequence in (1, 2):
        partition.append(sequenced(b"v", sequence), EPOCH_MS)
        world.log.commit_log._write_queued()
    world.log.commit_log.disk_sink.stop()
    await world.crash()
    partition = world.find("t")
    lost = 3 - partition.next_offset  # of the two that were never acknowledged
    assert await produce(partition, 2 - lost + 1) == 3 - lost
    await world.lose_folder()
    assert len(await read_all(world.find("t"))) == 4 - lost


async def test_batches_in_segments_after_the_checkpoint_change_producers(
    world: ObjectWorld, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is older than the segments: retries of what they have are duplicates."""
    for sequence in range(3):
        await produce(partition, sequence, 500)
    await world.log.checkpoint()

    async def nothing(_: Checkpoints) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", nothing)
        partition.append(sequenced(b"other", 0, producer_id=8), EPOCH_MS)
        for sequence in range(3, 39):
            await produce(partition, sequence, 500)
        await cut(world)
    assert partition.cut_offset > 3
    end = partition.cut_offset
    await world.lose_folder()
    partition = world.find("t")
    assert (partition.cut_offset, partition.next_offset) == (end, 40)
    assert partition.append(sequenced(b"other", 0, producer_id=8), EPOCH_MS).base_offset == 3
    assert partition.append(sequenced(bytes(500), 38), EPOCH_MS).base_offset == 39
    with pytest.raises(KafkaError):
        partition.append(sequenced(bytes(500), 40), EPOCH_MS)
    rows = partition.rows
    assert min(rows.base[at] for at in range(len(rows))) >= end  # nothing twice


async def test_start_stores_producers_that_only_segments_changed(
    world: ObjectWorld, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is appended, and the objects may be released at once."""

    async def nothing(_: Checkpoints) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", nothing)
        sequence = 0
        while not world.log.journals.ready:
            await produce(partition, sequence, 500)
            sequence += 1
        world.log.commit_log.roll()
        await cut(world)
    assert partition.cut_offset == partition.next_offset
    await world.lose_folder()
    (row,) = await world.storage.load_partitions([partition.number])
    assert row.checkpoint is not None
    assert row.checkpoint.next_offset == sequence
    (producer,) = row.checkpoint.producers
    assert producer.batches[-1][1] == sequence - 1


async def test_leader_epochs_begin_where_they_did(world: ObjectWorld, partition: Partition) -> None:
    await put(partition, b"a")
    await world.crash()
    await put(world.find("t"), b"b")
    await world.crash()
    await put(world.find("t"), b"c")
    before = [each for each in world.find("t").epochs if each[1] < 3]
    await world.lose_folder()
    partition = world.find("t")
    assert partition.epochs[:-1] == before
    assert partition.epochs[-1] == (partition.leader_epoch, 3)


async def test_transactions_are_found_again(world: ObjectWorld, partition: Partition) -> None:
    def transactional(sequence: int, producer_id: int) -> memoryview:
        batch = build(
            [(None, b"t")], timestamp_ms=EPOCH_MS, producer_id=producer_id, producer_epoch=0,
            base_sequence=sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        return memoryview(batch)

    partition.queue(transactional(0, 8), EPOCH_MS, None, NOT_VERIFIED)
    await partition.log.wait_until_committed()
    partition.append_marker(TransactionMarker(8, 0, ABORT, 0, 1), EPOCH_MS)
    await partition.log.wait_until_committed()
    partition.queue(transactional(0, 9), EPOCH_MS, None, NOT_VERIFIED)
    await partition.log.wait_until_committed()
    await world.lose_folder()
    partition = world.find("t")
    assert [tuple(each) for each in partition.list_aborted(0, 3)] == [(8, 0, 1)]
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 3)
    partition.append_marker(TransactionMarker(9, 0, ABORT, 0, 1), EPOCH_MS)
    await partition.log.wait_until_committed()
    assert partition.last_stable_offset == 4


async def test_gap_is_reported_and_not_assigned_again(
    world: ObjectWorld, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (b"a", b"b", b"c"):
        await put(partition, value)
    world.bucket.forget(log_object_key(world.epoch, 1))
    await end_log(world)
    with caplog.at_level(logging.CRITICAL):
        await world.lose_folder()
    assert "offsets 1-1 of t-0 are in no segment and no log object" in caplog.text
    partition = world.find("t")
    assert (partition.next_offset, partition.high_watermark) == (3, 3)
    assert await read_all(partition, 2) == [(2, b"c")]
    with pytest.raises(KafkaError):
        await read_all(partition)


async def test_offsets_that_sql_knows_are_not_assigned_again(
    world: ObjectWorld, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (b"a", b"b", b"c"):
        await put(partition, value)
    await world.log.checkpoint()
    world.bucket.forget(log_object_key(world.epoch, 2))
    await world.abandon()
    with caplog.at_level(logging.CRITICAL):
        await world.lose_folder()
    assert "t-0 continues at offset 3: offsets 2-2 were stored, according to SQL" in caplog.text
    assert await put(world.find("t"), b"d") == 3


async def end_log(world: ObjectWorld) -> None:
    """End the log of this life in SQL at its next object, as a later start would."""
    other = MemoryMetadata(world.database)
    catalog = await other.open()
    await other.register_broker(NODE, {}, None)
    epoch, end = catalog.brokers[NODE].epoch, number_of_next_object(world)
    await other.transact(
        lambda session: object_logs.end(session, NODE, world.epoch, end, epoch, EPOCH_MS)
    )


async def test_objects_of_deleted_topics_are_passed_over(
    world: ObjectWorld, partition: Partition
) -> None:
    (kept,) = await world.topic("kept", durability="s3")
    await put(partition, b"a")
    await put(kept, b"b")
    info = world.catalog.by_name["t"]
    await world.metadata.delete_topics([info.id])
    await world.lose_folder()
    assert await read_all(world.find("kept")) == [(0, b"b")]


async def test_much_is_appended_in_parts(
    world: ObjectWorld, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a journal, and more than is queued at a time."""
    monkeypatch.setattr("kafkawire.log.adoption.MAX_QUEUED_BYTES", 2000)
    for sequence in range(60):
        await produce(partition, sequence, 700)
    await world.lose_folder()
    partition = world.find("t")
    assert [offset for offset, _ in await read_all(partition)] == list(range(60))
    assert len(list(world.log.journals)) > 3
    await world.restart()
    assert [offset for offset, _ in await read_all(world.find("t"))] == list(range(60))
